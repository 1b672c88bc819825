import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodewise.base.errors import BadSettings, Unavailable
from nodewise.scheduling_model import extender_client, parsed_nodes_and_pods
from nodewise.scheduling_model.extender_client import ExtenderClient
from tests.cluster import kubernetes_objects as made
from tests.unit.scheduling_model import fake_extender

POD = parsed_nodes_and_pods.pod_as_stored(
    parsed_nodes_and_pods.pod(made.pod("web", limits={"telemetry/scheduling": "1"})), "u1", 0
)
SMALL = parsed_nodes_and_pods.pod_as_stored(
    parsed_nodes_and_pods.pod(made.running_on("a", made.pod("small"))), "u2", 0
)
A = parsed_nodes_and_pods.node_info_with_pods(parsed_nodes_and_pods.node(made.node("a")), [SMALL])
B = parsed_nodes_and_pods.NodeInfo(parsed_nodes_and_pods.node(made.node("b")))
NODES = [A, B]


@contextlib.contextmanager
def extender(transport: httpx2.BaseTransport, **fields: Any) -> Iterator[ExtenderClient]:
    (entry,) = extender_client.entries([{**fake_extender.ENTRY, **fields}])
    with ExtenderClient(entry, transport) as made:
        yield made


def asked(**fields: Any) -> tuple[Any, httpx2.Request]:
    """The body of a filter request, and the request."""
    requests = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={})

    with extender(httpx2.MockTransport(answer), **fields) as client:
        client.filter(POD, NODES)
    return json.loads(requests[0].content), requests[0]


def test_request_with_node_names() -> None:
    body, request = asked()
    assert str(request.url) == "http://extender/scheduler/filter"
    assert request.headers["content-type"] == "application/json"
    assert (body["Nodes"], body["NodeNames"]) == (None, ["a", "b"])
    assert body["Pod"]["metadata"]["uid"] == "u1"


def test_request_with_whole_nodes() -> None:
    body, _ = asked(nodeCacheCapable=False)
    assert body["NodeNames"] is None
    assert [item["metadata"]["name"] for item in body["Nodes"]["items"]] == ["a", "b"]


def test_filter_response() -> None:
    answer = {"NodeNames": ["b"], "FailedNodes": {"a": "hot"}, "FailedAndUnresolvableNodes": {"c": "gone"}}
    with extender(fake_extender.answering(body=answer)) as client:
        assert client.filter(POD, NODES) == ([B], {"a": "hot"}, {"c": "gone"})


def test_whole_nodes_of_a_response_hold_no_pods() -> None:
    answer = {"Nodes": {"items": [A.node.obj]}}
    with extender(fake_extender.answering(body=answer), nodeCacheCapable=False) as client:
        assert client.filter(POD, NODES).nodes == [parsed_nodes_and_pods.NodeInfo(A.node)]


def test_names_are_ignored_after_a_request_with_whole_nodes() -> None:
    with extender(fake_extender.answering(body={"NodeNames": ["a"]}), nodeCacheCapable=False) as client:
        assert client.filter(POD, NODES).nodes == []


def test_verb_that_is_not_configured_is_not_called() -> None:
    fields = {"filterVerb": "", "prioritizeVerb": ""}
    with extender(fake_extender.failing(AssertionError()), **fields) as client:
        assert client.filter(POD, NODES).nodes == NODES
        assert client.prioritize(POD, NODES) == []


INTEREST = {
    "no managed resource": ([], True),
    "one that the pod asks for": ([{"name": "telemetry/scheduling"}], True),
    "another one": ([{"name": "gpu.intel.com/i915"}], False),
}


@pytest.mark.parametrize(("managed", "interested"), INTEREST.values(), ids=INTEREST)
def test_pods_with_a_managed_resource_are_sent(managed: list[dict[str, str]], *, interested: bool) -> None:
    with extender(fake_extender.answering(), managedResources=managed) as client:
        assert client.is_interested(POD) is interested


UNUSABLE = {
    "a status": (
        fake_extender.answering(503),
        "failed filter with extender at URL http://extender/scheduler/",
    ),
    "an error": (fake_extender.answering(body={"Error": "cannot read"}), "cannot read"),
    "a stranger": (
        fake_extender.answering(body={"NodeNames": ["z"]}),
        'extender "http://extender/scheduler/" claims a filtered node "z" which is not found in the input',
    ),
    "nothing": (fake_extender.answering(text=""), "EOF"),
    "half an answer": (fake_extender.answering(text='{"NodeNames": ["a"'), "unexpected EOF"),
    "a page": (
        fake_extender.answering(text="<html>"),
        "invalid character '<' looking for beginning of value",
    ),
    "another type": (
        fake_extender.answering(body={"NodeNames": 1}),
        "json: cannot unmarshal the answer: Exp",
    ),
    "a list": (fake_extender.answering(body=[]), "json: cannot unmarshal the answer: Expected"),
}


@pytest.mark.parametrize(("transport", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_invalid_response_is_an_error(transport: httpx2.BaseTransport, message: str) -> None:
    with extender(transport) as client, pytest.raises(Unavailable) as raised:
        client.filter(POD, NODES)
    assert str(raised.value).startswith(message)


READABLE = {
    "null": "null",
    "bytes after the answer": '{"FailedNodes": {}} and more',
    "a second answer": '{} {"Error": "unread"}',
    "keys that nobody knows": '{"Nodes": null, "Extra": 1}',
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_responses_that_go_accepts_are_accepted(text: str) -> None:
    with extender(fake_extender.answering(text=text)) as client:
        assert client.filter(POD, NODES).nodes == []


def test_unreadable_certificates_are_invalid_settings() -> None:
    tls = {"tlsConfig": {"caFile": "no-such-ca"}}
    with (
        pytest.raises(BadSettings, match=r"no-such-ca.*expected PEM files"),
        extender(fake_extender.answering(), **tls),
    ):
        pass


URL = {"urlPrefix": "http://extender"}


def test_defaults_are_those_of_kube_scheduler() -> None:
    (entry,) = extender_client.entries([URL])
    assert (entry.timeout_s, entry.ignorable, entry.node_cache_capable) == (5.0, False, False)


def test_complete_entry() -> None:
    tls = {"caFile": "ca", "certFile": "cert", "keyFile": "key", "serverName": "nodewise"}
    managed = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}, {"name": "gpu.intel.com/i915"}]
    document = URL | {
        "enableHTTPS": True,
        "tlsConfig": tls,
        "httpTimeout": "300ms",
        "managedResources": managed,
    }
    (entry,) = extender_client.entries([document])
    assert entry.enable_https
    assert entry.tls_config
    assert entry.tls_config.server_name == "nodewise"
    assert entry.timeout_s == 0.3
    assert entry.ignored == {"telemetry/scheduling"}


def test_ignorable_extenders_are_last() -> None:
    documents = [
        {"urlPrefix": name, "ignorable": ignorable} for name, ignorable in (("a", True), ("b", False))
    ]
    assert [entry.url_prefix for entry in extender_client.entries(documents)] == ["b", "a"]


INVALID = {
    "no weight": ({"prioritizeVerb": "prioritize"}, r"extenders\[0\].weight: 0; expected a positive weight"),
    "a key that is none": ({"filterverb": "filter"}, "unknown field `filterverb`"),
    "a verb that is not modelled": ({"bindVerb": "bind"}, r"extenders\[0\].bindVerb: 'bind'; expected none"),
    "a time that is none": ({"httpTimeout": "soon"}, r"extenders\[0\].httpTimeout: invalid duration 'soon'"),
    "a CA that nobody looks at": (
        {"tlsConfig": {"insecure": True, "caFile": "ca"}},
        r"extenders\[0\].tlsConfig: both insecure and caFile",
    ),
    "a resource twice": (
        {"managedResources": [{"name": "a/b"}, {"name": "a/b"}]},
        "a/b in 2 managedResources",
    ),
}


@pytest.mark.parametrize(("fields", "message"), INVALID.values(), ids=INVALID)
def test_entries_that_kube_scheduler_rejects_are_rejected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        extender_client.entries([URL | fields])


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(BadSettings) as raised:
        extender_client.entries([URL | {"bindVerb": "bind", "prioritizeVerb": "p"}, {"filterVerb": "f"}])
    assert len(raised.value.problems) == 3
