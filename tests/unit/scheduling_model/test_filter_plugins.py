from typing import Any

import pytest

from nodewise.scheduling_model import parsed_nodes_and_pods, scheduler_plugins
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, NodeInfo, Pod
from nodewise.scheduling_model.scheduler_plugins import ClusterEvent, Rejection
from tests.cluster import kubernetes_objects as made

PLUGINS = scheduler_plugins.standard()


def node(**fields: Any) -> Node:
    spec = fields.pop("spec", {})
    return parsed_nodes_and_pods.node(made.node("a", **fields) | {"spec": spec})


def pod(name: str = "web", spec: dict[str, Any] | None = None, **fields: Any) -> Pod:
    obj = made.pod(name, **fields)
    return parsed_nodes_and_pods.pod(obj | {"spec": obj["spec"] | (spec or {})})


TAINTED = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
CORDONED = {"unschedulable": True}
SSD = {"nodeSelector": {"disk": "ssd"}}
TOLERANT = {"tolerations": [{"operator": "Exists"}]}

JUDGEMENTS: dict[str, tuple[Pod, NodeInfo, Rejection | None]] = {
    "room for it": (pod(), NodeInfo(node()), None),
    "no room now": (
        pod(cpu="2"),
        parsed_nodes_and_pods.node_info_with_pods(node(), [pod("other", cpu="3")]),
        Rejection(("Insufficient cpu",), False, "NodeResourcesFit"),
    ),
    "no room ever": (
        pod(cpu="5", memory="17Gi"),
        NodeInfo(node()),
        Rejection(("Insufficient cpu", "Insufficient memory"), True, "NodeResourcesFit"),
    ),
    "as many pods as the node takes": (
        pod(),
        parsed_nodes_and_pods.node_info_with_pods(node(pods=1), [pod("other")]),
        Rejection(("Too many pods",), False, "NodeResourcesFit"),
    ),
    "a resource that the node lacks": (
        pod(limits={"telemetry/scheduling": "1"}),
        NodeInfo(node()),
        Rejection(("Insufficient telemetry/scheduling",), True, "NodeResourcesFit"),
    ),
    "a cordoned node": (
        pod(),
        NodeInfo(node(spec=CORDONED)),
        Rejection(("node(s) were unschedulable",), True, "NodeUnschedulable"),
    ),
    "a tainted node": (
        pod(),
        NodeInfo(node(spec=TAINTED)),
        Rejection(("node(s) had untolerated taint(s)",), True, "TaintToleration"),
    ),
    "who tolerates all": (pod(spec=TOLERANT), NodeInfo(node(spec=TAINTED | CORDONED)), None),
    "another node is wanted": (
        pod(spec=SSD),
        NodeInfo(node()),
        Rejection(("node(s) didn't match Pod's node affinity/selector",), True, "NodeAffinity"),
    ),
    "only the first objection is heard": (
        pod(spec=SSD, cpu="99"),
        NodeInfo(node(spec=TAINTED)),
        Rejection(("node(s) had untolerated taint(s)",), True, "TaintToleration"),
    ),
}


@pytest.mark.parametrize(("asking", "info", "rejection"), JUDGEMENTS.values(), ids=JUDGEMENTS)
def test_judgements(asking: Pod, info: NodeInfo, rejection: Rejection | None) -> None:
    assert scheduler_plugins.judge(PLUGINS, asking, info) == rejection


def test_a_resource_that_an_extender_manages_may_be_ignored() -> None:
    lax = scheduler_plugins.standard({"telemetry/scheduling"})
    assert scheduler_plugins.judge(lax, pod(limits={"telemetry/scheduling": "1"}), NodeInfo(node())) is None


def changed(old: Node, new: Node) -> ClusterEvent:
    return ClusterEvent("node changed", old, new)


SMALL, LARGE = node(cpu="1"), node(cpu="8")
HELP: dict[str, tuple[str, Pod, ClusterEvent, bool]] = {
    "an extender may have changed its mind at any event": (
        scheduler_plugins.EXTENDER, pod(), ClusterEvent("pod bound"), True,
    ),
    "a pod that is gone makes room": ("NodeResourcesFit", pod(), ClusterEvent("pod gone"), True),
    "a pod that came makes none": ("NodeResourcesFit", pod(), ClusterEvent("pod bound"), False),
    "a node that grew": ("NodeResourcesFit", pod(cpu="2"), changed(SMALL, LARGE), True),
    "a node that grew, not enough": ("NodeResourcesFit", pod(cpu="9"), changed(SMALL, LARGE), False),
    "a node that shrank": ("NodeResourcesFit", pod(cpu="1"), changed(LARGE, SMALL), False),
    "a new node": ("NodeResourcesFit", pod(), ClusterEvent("node added", new=SMALL), True),
    "a node that was touched": ("NodeResourcesFit", pod(), changed(SMALL, SMALL), False),
    "other taints, upstream's stand-in for a new node": (
        "NodeResourcesFit", pod(), changed(node(spec=TAINTED), node()), True,
    ),
    "a node that is gone": ("NodeResourcesFit", pod(), ClusterEvent("node gone", old=SMALL), False),
    "a label that was wanted": (
        "NodeAffinity", pod(spec=SSD), changed(node(), node(labels={"disk": "ssd"})), True,
    ),
    "a label that was there before": (
        "NodeAffinity", pod(spec=SSD), changed(*[node(labels={"disk": "ssd"})] * 2), False,
    ),
    "a taint that is gone": ("TaintToleration", pod(), changed(node(spec=TAINTED), node()), True),
    "a label is nothing to taints": (
        "TaintToleration", pod(), changed(node(), node(labels={"disk": "ssd"})), False,
    ),
    "an end of the cordon": ("NodeUnschedulable", pod(), changed(node(spec=CORDONED), node()), True),
    "a cordon": ("NodeUnschedulable", pod(), changed(node(), node(spec=CORDONED)), False),
}  # fmt: skip


@pytest.mark.parametrize(("rejector", "waiting", "event", "helps"), HELP.values(), ids=HELP)
def test_what_may_help(rejector: str, waiting: Pod, event: ClusterEvent, *, helps: bool) -> None:
    assert scheduler_plugins.may_help(PLUGINS, {rejector}, waiting, event) is helps


def annotated(value: str) -> Node:
    obj = made.node("a")
    obj["metadata"] |= {"annotations": {"k": value}}
    return parsed_nodes_and_pods.node(obj)


CHANGES: dict[str, tuple[Node, Node, bool]] = {
    "an annotation": (annotated("1"), annotated("2"), True),
    "a label": (node(), node(labels={"a": "b"}), True),
    "a cordon": (node(), node(spec=CORDONED), False),
    "the end of a cordon": (node(spec=CORDONED), node(), True),
    "nothing": (node(), node(), False),
    "something that no scheduler looks at": (
        node(), parsed_nodes_and_pods.node(made.node("a") | {"spec": {"podCIDR": "10.0.0.0/8"}}), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "is_event"), CHANGES.values(), ids=CHANGES)
def test_which_change_of_a_node_is_an_event(old: Node, new: Node, *, is_event: bool) -> None:
    assert (scheduler_plugins.node_event(old, new) is not None) is is_event
