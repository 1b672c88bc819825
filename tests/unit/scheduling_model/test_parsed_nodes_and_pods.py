import math
from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.scheduling_model import parsed_nodes_and_pods
from tests.cluster import kubernetes_objects as made


def test_a_pod_is_read() -> None:
    pod = parsed_nodes_and_pods.pod(made.running_on("a", made.pod("web", cpu="1", priority=7)))
    assert (pod.key, pod.priority, pod.node, pod.nominated) == ("default/web", 7, "a", "")
    assert (pod.started_s, pod.grace_s, pod.is_leaving) == (math.inf, 0.0, False)


def test_an_extender_sees_no_kind_and_no_managed_fields() -> None:
    obj = made.node("a") | {"metadata": {"name": "a", "managedFields": [1], "uid": "u"}}
    assert msgspec.json.decode(parsed_nodes_and_pods.node(obj).raw).keys() == {"metadata", "status"}
    assert msgspec.json.decode(parsed_nodes_and_pods.node(obj).raw)["metadata"] == {"name": "a", "uid": "u"}


def test_the_api_server_names_a_pod_once() -> None:
    pod = parsed_nodes_and_pods.pod_as_stored(parsed_nodes_and_pods.pod(made.pod("web")), "1-2", created_s=0)
    assert pod.uid == pod.obj["metadata"]["uid"] == "1-2"
    assert parsed_nodes_and_pods.pod_as_stored(pod, "other", created_s=9).uid == "1-2"
    assert pod.obj["metadata"]["namespace"] == "default"


def test_a_rejected_pod_carries_the_scheduler_s_word() -> None:
    pod = parsed_nodes_and_pods.rejected(
        parsed_nodes_and_pods.pod(made.pod("web")), "Unschedulable", "no room", "a"
    )
    assert parsed_nodes_and_pods.pod(pod.obj).nominated == "a"
    assert pod.obj["status"]["conditions"][0]["message"] == "no room"


def test_a_pod_on_a_node_waits_no_longer() -> None:
    waiting = parsed_nodes_and_pods.rejected(
        parsed_nodes_and_pods.pod(made.pod("web")), "Unschedulable", "no room", "a"
    )
    bound = parsed_nodes_and_pods.bound(waiting, "b", now_s=60)
    assert parsed_nodes_and_pods.pod(bound.obj) == bound
    assert (bound.node, bound.nominated, bound.started_s) == ("b", "", 60)


BROKEN: dict[str, tuple[Any, str]] = {
    "no name": ({"metadata": {}}, "metadata.name: None; expected a name"),
    "a class without its number": (
        {"metadata": {"name": "web"}, "spec": {"priorityClassName": "vip"}},
        "spec.priority: None; expected the number of the class 'vip' as well",
    ),
    "a start that is no time": (
        {"metadata": {"name": "web"}, "status": {"startTime": "noon"}},
        "status.startTime: 'noon'",
    ),
}


@pytest.mark.parametrize(("obj", "message"), BROKEN.values(), ids=BROKEN)
def test_error_names_unreadable_part(obj: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parsed_nodes_and_pods.pod(obj)


def test_the_system_s_priority_classes_need_no_number() -> None:
    spec = {"priorityClassName": "system-node-critical"}
    assert parsed_nodes_and_pods.pod({"metadata": {"name": "web"}, "spec": spec}).priority == 2_000_001_000
