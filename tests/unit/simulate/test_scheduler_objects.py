import math
from typing import Any

import msgspec
import pytest

from nodewise.errors import BadInput
from nodewise.simulate import scheduler_objects
from tests.cluster import kubernetes_objects as made


def test_a_pod_is_read() -> None:
    pod = scheduler_objects.pod(made.running_on("a", made.pod("web", cpu="1", priority=7)))
    assert (pod.key, pod.priority, pod.node, pod.nominated) == ("default/web", 7, "a", "")
    assert (pod.started_s, pod.grace_s, pod.is_leaving) == (math.inf, 0.0, False)


def test_an_extender_sees_no_kind_and_no_managed_fields() -> None:
    obj = made.node("a") | {"metadata": {"name": "a", "managedFields": [1], "uid": "u"}}
    assert msgspec.json.decode(scheduler_objects.node(obj).raw).keys() == {"metadata", "status"}
    assert msgspec.json.decode(scheduler_objects.node(obj).raw)["metadata"] == {"name": "a", "uid": "u"}


def test_the_api_server_names_a_pod_once() -> None:
    pod = scheduler_objects.named(scheduler_objects.pod(made.pod("web")), "1-2", created_s=0)
    assert pod.uid == pod.obj["metadata"]["uid"] == "1-2"
    assert scheduler_objects.named(pod, "other", created_s=9).uid == "1-2"
    assert pod.obj["metadata"]["namespace"] == "default"


def test_a_rejected_pod_carries_the_scheduler_s_word() -> None:
    pod = scheduler_objects.rejected(scheduler_objects.pod(made.pod("web")), "Unschedulable", "no room", "a")
    assert scheduler_objects.pod(pod.obj).nominated == "a"
    assert pod.obj["status"]["conditions"][0]["message"] == "no room"


def test_a_pod_on_a_node_waits_no_longer() -> None:
    waiting = scheduler_objects.rejected(
        scheduler_objects.pod(made.pod("web")), "Unschedulable", "no room", "a"
    )
    bound = scheduler_objects.bound(waiting, "b", now_s=60)
    assert scheduler_objects.pod(bound.obj) == bound
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
def test_what_cannot_be_read_is_named(obj: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        scheduler_objects.pod(obj)


def test_the_system_s_priority_classes_need_no_number() -> None:
    spec = {"priorityClassName": "system-node-critical"}
    assert scheduler_objects.pod({"metadata": {"name": "web"}, "spec": spec}).priority == 2_000_001_000
