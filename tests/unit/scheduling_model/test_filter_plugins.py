from typing import Any

import pytest

from nodewise.scheduling_model import parsed_nodes_and_pods, scheduler_plugins
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, NodeInfo, Pod
from nodewise.scheduling_model.scheduler_plugins import Rejection
from tests.cluster import kubernetes_objects as made


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
    "tolerates all taints": (pod(spec=TOLERANT), NodeInfo(node(spec=TAINTED | CORDONED)), None),
    "another node is wanted": (
        pod(spec=SSD),
        NodeInfo(node()),
        Rejection(("node(s) didn't match Pod's node affinity/selector",), True, "NodeAffinity"),
    ),
    "only the first plugin that rejects counts": (
        pod(spec=SSD, cpu="99"),
        NodeInfo(node(spec=TAINTED)),
        Rejection(("node(s) had untolerated taint(s)",), True, "TaintToleration"),
    ),
}


@pytest.mark.parametrize(("pod", "info", "rejection"), JUDGEMENTS.values(), ids=JUDGEMENTS)
def test_rejections_by_filter_plugins(pod: Pod, info: NodeInfo, rejection: Rejection | None) -> None:
    assert scheduler_plugins.judge(pod, info) == rejection


def test_ignored_resource_is_not_counted() -> None:
    marked = pod(limits={"telemetry/scheduling": "1"})
    assert scheduler_plugins.judge(marked, NodeInfo(node()), {"telemetry/scheduling"}) is None


HOT, BROKEN = Rejection(("hot",)), Rejection(("broken",))


@pytest.mark.parametrize(
    ("nodes", "rejected", "absent", "reasons"),
    [
        pytest.param(3, [HOT, BROKEN, HOT], "", " 1 broken, 2 hot.", id="counted by their text"),
        pytest.param(12, [HOT] * 10 + [BROKEN] * 2, "", " 10 hot, 2 broken.", id="sorted as text"),
        pytest.param(1, [Rejection(("a", "b"))], "", " 1 a, 1 b.", id="one node may have several"),
        pytest.param(2, [], "", "", id="nodes without a reason"),
        pytest.param(3, [HOT], "no help", " 1 hot, 2 no help.", id="common reason of all other nodes"),
        pytest.param(1, [HOT], "no help", " 1 hot.", id="no other nodes"),
    ],
)
def test_message_counts_reasons(nodes: int, rejected: list[Rejection], absent: str, reasons: str) -> None:
    assert scheduler_plugins.text(nodes, rejected, absent) == f"0/{nodes} nodes are available:{reasons}"


def test_event_is_cut_by_bytes() -> None:
    assert scheduler_plugins.event("x" * 1024) == "x" * 1024
    assert scheduler_plugins.event("x" * 1025) == "x" * 1020 + " ..."
    assert len(scheduler_plugins.event("é" * 600).encode()) <= 1024
