import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodewise.base.errors import BadSettings, Unavailable
from nodewise.scheduling_model import extender_client, parsed_nodes_and_pods
from nodewise.scheduling_model.extender_client import ExtenderClient, Victims
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


def test_names_are_asked_about() -> None:
    body, request = asked()
    assert str(request.url) == "http://extender/scheduler/filter"
    assert request.headers["content-type"] == "application/json"
    assert (body["Nodes"], body["NodeNames"]) == (None, ["a", "b"])
    assert body["Pod"]["metadata"]["uid"] == "u1"


def test_whole_nodes_are_asked_about() -> None:
    body, _ = asked(nodeCacheCapable=False)
    assert body["NodeNames"] is None
    assert [item["metadata"]["name"] for item in body["Nodes"]["items"]] == ["a", "b"]


def test_a_filter_s_answer() -> None:
    answer = {"NodeNames": ["b"], "FailedNodes": {"a": "hot"}, "FailedAndUnresolvableNodes": {"c": "gone"}}
    with extender(fake_extender.answering(body=answer)) as client:
        assert client.filter(POD, NODES) == ([B], {"a": "hot"}, {"c": "gone"})


def test_nodes_that_come_back_whole_are_taken_for_empty() -> None:
    answer = {"Nodes": {"items": [A.node.obj]}}
    with extender(fake_extender.answering(body=answer), nodeCacheCapable=False) as client:
        assert client.filter(POD, NODES).nodes == [parsed_nodes_and_pods.NodeInfo(A.node)]


def test_names_mean_nothing_to_who_sends_whole_nodes() -> None:
    with extender(fake_extender.answering(body={"NodeNames": ["a"]}), nodeCacheCapable=False) as client:
        assert client.filter(POD, NODES).nodes == []


def test_a_verb_that_is_not_configured_is_not_asked() -> None:
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
def test_whom_it_concerns(managed: list[dict[str, str]], *, interested: bool) -> None:
    with extender(fake_extender.answering(), managedResources=managed) as client:
        assert client.is_interested(POD) is interested


@pytest.mark.parametrize(
    ("cached", "key", "victims"),
    [
        (True, "NodeNameToMetaVictims", [{"UID": "u2"}]),
        (False, "NodeNameToVictims", [json.loads(bytes(SMALL.raw))]),
    ],
    ids=["by uid", "whole"],
)
def test_victims_are_sent_and_always_come_back_by_uid(cached: bool, key: str, victims: object) -> None:
    sent = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.update(json.loads(request.content))
        left = {"a": {"Pods": [{"UID": "u2"}], "NumPDBViolations": 2}}
        return httpx2.Response(200, json={"NodeNameToMetaVictims": left})

    with extender(httpx2.MockTransport(answer), nodeCacheCapable=cached) as client:
        left = client.preempt(POD, {"a": Victims((SMALL,))}, {"a": A})
    assert left == {"a": Victims((SMALL,), 2)}
    assert sent[key] == {"a": {"Pods": victims, "NumPDBViolations": 0}}


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
def test_what_is_no_answer(transport: httpx2.BaseTransport, message: str) -> None:
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
def test_what_go_reads_is_read(text: str) -> None:
    with extender(fake_extender.answering(text=text)) as client:
        assert client.filter(POD, NODES).nodes == []


def test_victims_that_are_not_there_are_refused() -> None:
    ghost = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u9"}]}}}
    with extender(fake_extender.answering(body=ghost)) as client:
        with pytest.raises(Unavailable, match=r"claims to preempt pod \(UID: &{u9}\) on node: a, but"):
            client.preempt(POD, {"a": Victims((SMALL,))}, {"a": A})
        with pytest.raises(Unavailable, match='nodeinfo not found for node name "a"'):
            client.preempt(POD, {"a": Victims((SMALL,))}, {})


def test_certificates_that_cannot_be_read_are_settings_to_mend() -> None:
    tls = {"tlsConfig": {"caFile": "no-such-ca"}}
    with (
        pytest.raises(BadSettings, match=r"no-such-ca.*expected PEM files"),
        extender(fake_extender.answering(), **tls),
    ):
        pass
