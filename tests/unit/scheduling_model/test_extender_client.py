import json
from typing import Any

import httpx2
import pytest

from nodewise.base.errors import Unavailable
from nodewise.scheduling_model import extender_client
from nodewise.scheduling_model.extender_client import ExtenderClient
from tests.cluster import kubernetes_objects as made
from tests.unit.scheduling_model import fake_extender

POD = made.pod("web", limits={"telemetry/scheduling": "1"})
NODES = ["a", "b"]


def extender(transport: httpx2.BaseTransport, **fields: Any) -> ExtenderClient:
    (entry,) = extender_client.entries([{**fake_extender.ENTRY, **fields}])
    return ExtenderClient(entry, transport)


def test_request_has_the_names_of_nodes() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={})

    extender(httpx2.MockTransport(answer)).filter(POD, NODES)
    [request] = requests
    body = json.loads(request.content)
    assert str(request.url) == "http://extender/scheduler/filter"
    assert request.headers["content-type"] == "application/json"
    assert (body["Nodes"], body["NodeNames"]) == (None, NODES)
    assert body["Pod"] == {key: POD[key] for key in POD if key not in {"apiVersion", "kind"}}


def test_filter_response() -> None:
    answer = {"NodeNames": ["b"], "FailedNodes": {"a": "hot"}, "FailedAndUnresolvableNodes": {"c": "gone"}}
    client = extender(fake_extender.answering(body=answer))
    assert client.filter(POD, NODES) == (["b"], {"a": "hot"}, {"c": "gone"})


def test_verb_that_is_not_configured_is_not_called() -> None:
    client = extender(fake_extender.answering(500), filterVerb="", prioritizeVerb="")
    assert client.filter(POD, NODES).names == NODES
    assert client.prioritize(POD, NODES) == []


INTEREST = {
    "no managed resource": ([], True),
    "one that the pod asks for": ([{"name": "telemetry/scheduling"}], True),
    "another one": ([{"name": "gpu.intel.com/i915"}], False),
}


@pytest.mark.parametrize(("managed", "interested"), INTEREST.values(), ids=INTEREST)
def test_pods_with_a_managed_resource_are_sent(managed: list[dict[str, str]], *, interested: bool) -> None:
    assert extender(fake_extender.answering(), managedResources=managed).is_interested(POD) is interested


UNUSABLE = {
    "a status": (503, None, "", "failed filter with extender at URL http://extender/scheduler/"),
    "an error": (200, {"Error": "cannot read"}, "", "cannot read"),
    "nothing": (200, None, "", "json: cannot unmarshal the answer: "),
    "half an answer": (200, None, '{"NodeNames": ["a"', "json: cannot unmarshal the answer: "),
    "no UTF-8": (200, None, "\udcff", "json: cannot unmarshal the answer: "),
    "another type": (200, {"NodeNames": 1}, "", "json: cannot unmarshal the answer: Exp"),
}


@pytest.mark.parametrize(("status", "body", "text", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_invalid_response_is_an_error(status: int, body: Any, text: str, message: str) -> None:
    with pytest.raises(Unavailable) as raised:
        extender(fake_extender.answering(status, body, text)).filter(POD, NODES)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("text", ["null", '{"Nodes": null, "Extra": 1}'], ids=["null", "an unknown key"])
def test_response_without_nodes_is_empty(text: str) -> None:
    assert extender(fake_extender.answering(text=text)).filter(POD, NODES).names == []


def test_ignorable_extenders_are_last() -> None:
    documents = [
        {"urlPrefix": name, "ignorable": ignorable} for name, ignorable in (("a", True), ("b", False))
    ]
    assert [entry.url_prefix for entry in extender_client.entries(documents)] == ["b", "a"]
