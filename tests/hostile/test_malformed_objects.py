"""Malformed objects and metric responses: only pods that depend on them wait."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from nodewise.kube.resource_kinds import NODES
from tests.hostile import malformed_metrics_api_server, response_checks, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender
from tests.hostile.hostile_input_corpus import cases
from tests.hostile.malformed_metrics_api_server import (
    METRICS,
    TASPOLICIES,
    MalformedApiServer,
    MalformedResponse,
    metric_item,
    metric_list,
    plain_response,
)

PROMETHEUS = "/api/v1/query"
ODD = "odd"
"""The name of the metric with malformed responses, and of the policy that uses it."""


class MalformedCluster(NamedTuple):
    server: MalformedApiServer
    target: AttackedExtender

    def policy(self, name: str, spec: Any, **metadata: Any) -> None:
        meta = {"name": name, "namespace": "d", "creationTimestamp": "2026-01-01T00:00:00Z"} | metadata
        made = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": meta,
            "spec": spec,
        }
        self.server.call(lambda api: api.put(TASPOLICIES, made))

    def check_others(self) -> None:
        """Checks that another policy still takes effect and that no failure was logged."""
        answer = self.target.filter(three_node_cluster_objects.NODES)
        expected = (["n1", "n2"], {three_node_cluster_objects.HOT: three_node_cluster_objects.WHY})
        assert response_checks.check_filtered(answer, three_node_cluster_objects.NODES) == expected
        for event in ("task_failed", "agent_failed", "request_failed"):
            assert not self.target.events(event)

    def failed(self, policy: str) -> dict[str, str]:
        """The nodes that a policy rejects, with the reasons."""
        return response_checks.check_filtered(
            self.target.filter(three_node_cluster_objects.NODES, policy), three_node_cluster_objects.NODES
        )[1]


def _one_rule(**fields: Any) -> dict[str, Any]:
    rule = {"metricname": ODD, "operator": "GreaterThan", "target": 80} | fields
    return {"strategies": {"dontschedule": {"rules": [rule]}}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MalformedCluster]:
    folder = tmp_path_factory.mktemp("tenants")
    with malformed_metrics_api_server.serving() as server:
        server.odd[METRICS + ODD] = plain_response(b"nothing yet", 404)
        server.odd[PROMETHEUS] = plain_response(b"nothing yet", 404)
        options = {
            "--kubeconfig": server.kubeconfig(folder),
            "--sync-period": "100ms",
            "--metrics-timeout": "2s",
            "--prometheus-url": server.url,
            "--prometheus-timeout": "2s",
            "--max-age": "1h",
        }
        with AttackedExtender(folder, [part for pair in options.items() for part in pair]) as target:
            made = MalformedCluster(server, target)
            made.policy(ODD, _one_rule())
            yield made


POLICIES = cases("policies")


def test_policies_of_every_wrong_shape_are_named_and_stop_no_other(cluster: MalformedCluster) -> None:
    """An API server with an older definition, or without a schema, may store such policies."""
    names = {f"odd-{number}": case for number, case in enumerate(POLICIES.values())}
    for name, case in names.items():
        cluster.policy(name, case["spec"], **case.get("metadata", {}))
    cluster.policy("last", _one_rule(target="hot"))
    cluster.target.until("the last policy is logged", lambda: "d/last" in _named(cluster))
    named = _named(cluster) | {
        ":".join(event.get("name", ())) for event in cluster.target.events("object_unreadable")
    }
    unreadable = len(cluster.target.events("object_unreadable"))
    assert len(named & {f"d/{name}" for name in names}) + unreadable >= sum(
        case.get("problem", True) for case in names.values()
    )
    for name, case in names.items():
        if case["verdict"] == "none":
            assert set(cluster.failed(name)) == set(three_node_cluster_objects.NODES), (name, case)
        for why in cluster.failed(name).values():
            assert len(why) < 1000
    cluster.check_others()
    for name in [*names, "last"]:
        cluster.server.call(lambda api, name=name: api.remove(TASPOLICIES, name, "d"))  # type: ignore[misc]


def _named(cluster: MalformedCluster) -> set[str]:
    return {event["policy"] for event in cluster.target.events("policy_problem")}


def test_nodes_of_every_wrong_shape_stop_no_other(cluster: MalformedCluster) -> None:
    shapes: list[dict[str, Any]] = [
        {"metadata": {"name": "o1", "annotations": None}, "spec": None, "status": None},
        {"metadata": {"name": "o2", "annotations": {"a": "x" * 2**20}}},
        {"metadata": {"name": "o3", "labels": {"telemetry.aware.scheduling.demo/x": "?" * 1000}}},
        {"metadata": {"name": "o4", "labels": {"a": 7}, "annotations": []}},
        {"metadata": {"name": "o5", "labels": {str(number): "" for number in range(20_000)}}},
        {"metadata": {"name": 'a","b'}},
        {
            "metadata": {"name": "o7"},
            "status": {"addresses": "here", "allocatable": {"cpu": [], "memory": "1e999"}},
        },
        {"metadata": {"name": "o8", "uid": None, "resourceVersion": "x"}},
        {"metadata": {"name": "o9"}, "spec": {"taints": {"a": "b"}}},
    ]
    for shape in shapes:
        cluster.server.call(lambda api, shape=shape: api.put(NODES, {"kind": "Node"} | shape))  # type: ignore[misc]
    cluster.server.call(lambda api: api.put(NODES, {"kind": "Node", "metadata": {"name": "seen"}}))
    many = len(three_node_cluster_objects.NODES) + 1
    cluster.target.until("the last node is seen", lambda: _objects(cluster, "Node") >= many)
    cluster.check_others()
    assert _objects(cluster, "Node") + len(cluster.target.events("object_unreadable")) >= many
    for shape in shapes:
        name = shape["metadata"]["name"]
        cluster.server.call(lambda api, name=name: api.remove(NODES, name))  # type: ignore[misc]
    cluster.server.call(lambda api: api.remove(NODES, "seen"))
    cluster.target.until(
        "the nodes are gone", lambda: _objects(cluster, "Node") == len(three_node_cluster_objects.NODES)
    )
    cluster.check_others()


def _objects(cluster: MalformedCluster, kind: str) -> float:
    with cluster.target.admin() as line:
        text = line.ask("/metrics", b"", "GET", {}).body.decode()
    return next(
        float(row.split()[1])
        for row in text.splitlines()
        if row.startswith(f'nodewise_kube_objects{{kind="{kind}"}}')
    )


GOOD = metric_list(*(metric_item(node, 70) for node in three_node_cluster_objects.NODES))
ANSWERS: dict[str, tuple[MalformedResponse, str]] = {
    # a response, and its error in the log; empty if the response is partly accepted
    "HTML": (plain_response(b"<html>Login</html>", content_type="text/html"), "metric answer"),
    "no bytes": (plain_response(b""), "metric answer"),
    "half an answer": (plain_response(b'{"items":[{"describedObject"'), "metric answer"),
    "a list": (plain_response(b"[]"), "metric answer"),
    "null": (plain_response(b"null"), "metric answer"),
    "items that are an object": (plain_response(b'{"items":{}}'), "metric answer"),
    "items that are null": (plain_response(b'{"items":null}'), "empty list"),
    "nothing that is an item": (metric_list(1, "a", None, []), "empty list"),
    "nested too deep": (plain_response(b'{"items":' + b"[" * 100_000), "metric answer"),
    "bytes that are no UTF-8": (
        plain_response(b'{"items":[{"describedObject":{"name":"\xff"}}]}'),
        "empty list",
    ),
    "a server's defect that is nested too deep": (plain_response(b"[" * 100_000, 500), "[[["),
    "too many calls": (plain_response(b"{}", 429, retry_after="9999999999999999999"), "429"),
    "not allowed": (plain_response(b'{"kind":"Status","message":"no"}', 403), "no"),
    "moved": (plain_response(b"", 302, location="http://127.0.0.1:1/"), "302"),
    "no content": (plain_response(b"", 204), "metric answer"),
    "packed": (malformed_metrics_api_server.compressed_response(), "Content-Encoding"),
    "without end": (malformed_metrics_api_server.endless_response(), "answer"),
    "half an answer and silence": (malformed_metrics_api_server.hanging_response(), "no answer within"),
}
VALUES: dict[str, Any] = {
    "NaN": "NaN",
    "infinity": "+Inf",
    "a number beyond all numbers": "1e999999999",
    "a million digits": "9" * 10**6,
    "a million spaces": " " * 10**6,
    "nothing": None,
    "an empty text": "",
    "a list": [1],
    "true": True,
    "digits of another script": "٣",
    "an underscore": "1_0",
    "two suffixes": "1Kim",
}


@pytest.mark.parametrize(("response", "message"), ANSWERS.values(), ids=list(ANSWERS))
def test_an_answer_of_a_metric_server(
    cluster: MalformedCluster, response: MalformedResponse, message: str
) -> None:
    """The error is logged, the last valid values stay in use, and other metrics are unaffected."""
    _answered(cluster, GOOD)
    cluster.target.until("the metric is valid", lambda: not cluster.failed(ODD))
    before = len(cluster.target.events("metric_failed"))
    _answered(cluster, response)
    cluster.target.until(
        f"it is named by {message}",
        lambda: [
            event for event in cluster.target.events("metric_failed")[before:] if message in event["error"]
        ],
    )
    assert cluster.failed(ODD) == {}
    cluster.check_others()
    assert cluster.target.rss_mib() < 700


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_one_bad_value_is_named_and_spoils_its_own_node_only(cluster: MalformedCluster, value: Any) -> None:
    _answered(cluster, metric_list(metric_item("n1", 90), metric_item("n2", 70), metric_item("n3", 90)))
    cluster.target.until("all values are there", lambda: set(cluster.failed(ODD)) == {"n1", "n3"})
    before = len(cluster.target.events("metric_values_bad"))
    _answered(cluster, metric_list(metric_item("n1", 90), metric_item("n2", 70), metric_item("n3", value)))
    cluster.target.until("the value is gone", lambda: set(cluster.failed(ODD)) == {"n1"})
    (event,) = cluster.target.until(
        "it is logged", lambda: cluster.target.events("metric_values_bad")[before:]
    )
    assert (event["metric"], event["nodes"]) == (ODD, 1)
    assert len(event["example"]) < 300
    cluster.check_others()


def test_values_that_can_be_read_are_exact_however_odd(cluster: MalformedCluster) -> None:
    """Negative values, values beyond 64 bits, unknown nodes, a node twice, future timestamps, and other kinds."""
    odd = [
        metric_item("n1", -5),
        metric_item("n2", "9" * 60),
        metric_item("n3", 90),
        metric_item("n3", 70, timestamp="9999-12-31T23:59:59Z"),
        metric_item("stranger", 99),
        metric_item("", 99),
        metric_item(None, 99),
        {"value": "99"},
        *(metric_item(f"stranger-{number}", 99) for number in range(10_000)),
    ]
    _answered(cluster, metric_list(*odd))
    cluster.target.until("the values are there", lambda: set(cluster.failed(ODD)) == {"n2"})
    _answered(cluster, metric_list(metric_item("n1", 5), metric_item("n2", 5), metric_item("n3", 90)))
    cluster.target.until("the future timestamp is ignored", lambda: set(cluster.failed(ODD)) == {"n3"})
    cluster.check_others()


PROMETHEUS_ANSWERS: dict[str, MalformedResponse] = {
    name: response
    for name, (response, _) in ANSWERS.items()
    if name not in {"not allowed", "items that are null"}
}


@pytest.mark.parametrize("response", PROMETHEUS_ANSWERS.values(), ids=list(PROMETHEUS_ANSWERS))
def test_an_answer_of_prometheus(cluster: MalformedCluster, response: MalformedResponse) -> None:
    """The policy rejects all nodes, as its metric was never fetched; the error is logged; other pods are unaffected."""
    name = "asks"
    cluster.server.odd[PROMETHEUS] = response
    before = len(cluster.target.events("metric_failed"))
    cluster.policy(name, _one_rule(metricname="asked", query="up"))
    cluster.target.until("the error is logged", lambda: cluster.target.events("metric_failed")[before:])
    assert set(cluster.failed(name)) == set(three_node_cluster_objects.NODES)
    cluster.check_others()
    cluster.server.call(lambda api: api.remove(TASPOLICIES, name, "d"))
    cluster.target.until("it is gone", lambda: "does not exist" in next(iter(cluster.failed(name).values())))
    cluster.server.odd[PROMETHEUS] = plain_response(b"nothing", 404)


def _answered(cluster: MalformedCluster, response: MalformedResponse) -> None:
    """Sets the response for the metric, and waits until it was requested at least once."""
    path = METRICS + ODD
    cluster.server.odd[path] = response
    wanted = cluster.server.asked[path] + 1
    cluster.target.until("the metric is asked for", lambda: cluster.server.asked[path] >= wanted)
