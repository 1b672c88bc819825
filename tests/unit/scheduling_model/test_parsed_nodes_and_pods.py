from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.scheduling_model import parsed_nodes_and_pods
from tests.cluster import kubernetes_objects as made


def test_pod_is_parsed() -> None:
    pod = parsed_nodes_and_pods.pod(made.running_on("a", made.pod("web", cpu="1", priority=7)))
    assert (pod.key, pod.priority, pod.node) == ("default/web", 7, "a")


def test_an_extender_sees_no_kind_and_no_managed_fields() -> None:
    obj = made.node("a") | {"metadata": {"name": "a", "managedFields": [1], "uid": "u"}}
    assert msgspec.json.decode(parsed_nodes_and_pods.node(obj).raw).keys() == {"metadata", "status"}
    assert msgspec.json.decode(parsed_nodes_and_pods.node(obj).raw)["metadata"] == {"name": "a", "uid": "u"}


def test_the_api_server_names_a_pod_once() -> None:
    pod = parsed_nodes_and_pods.pod_as_stored(parsed_nodes_and_pods.pod(made.pod("web")), "1-2", created_s=0)
    assert pod.uid == pod.obj["metadata"]["uid"] == "1-2"
    assert parsed_nodes_and_pods.pod_as_stored(pod, "other", created_s=9).uid == "1-2"
    assert pod.obj["metadata"]["namespace"] == "default"


def test_rejected_pod_has_the_message_of_the_scheduler_until_it_is_bound() -> None:
    pod = parsed_nodes_and_pods.pod(made.pod("web"))
    rejected = parsed_nodes_and_pods.rejected(pod, "Unschedulable", "no room")
    assert rejected.obj["status"]["conditions"][0]["message"] == "no room"
    bound = parsed_nodes_and_pods.bound(rejected, "b", now_s=60)
    assert parsed_nodes_and_pods.pod(bound.obj) == bound
    assert bound.node == "b"
    assert bound.obj["status"]["startTime"] == "1970-01-01T00:01:00Z"


BROKEN: dict[str, tuple[Any, str]] = {
    "no name": ({"metadata": {}}, "metadata.name: None; expected a name"),
    "a class without its number": (
        {"metadata": {"name": "web"}, "spec": {"priorityClassName": "vip"}},
        "spec.priority: None; expected the number of the class 'vip' as well",
    ),
}


@pytest.mark.parametrize(("obj", "message"), BROKEN.values(), ids=BROKEN)
def test_error_names_unreadable_part(obj: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parsed_nodes_and_pods.pod(obj)


def test_the_system_s_priority_classes_need_no_number() -> None:
    spec = {"priorityClassName": "system-node-critical"}
    assert parsed_nodes_and_pods.pod({"metadata": {"name": "web"}, "spec": spec}).priority == 2_000_001_000
