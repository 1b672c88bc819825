"""Filter plugins: whether a pod fits a node, and which events make a retry worthwhile (queueing hints).

Plugins run in kube-scheduler's order; the first that rejects a node gives the reason. Sources: kubernetes v1.36.3
pkg/scheduler/framework/plugins/{nodeunschedulable,tainttoleration,nodeaffinity,noderesources},
and pkg/scheduler/apis/config/v1/default_plugins.go for the order.
"""

from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple

from nodewise.scheduling_model import node_affinity_and_taints
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, Pod, Taint
from nodewise.scheduling_model.parsed_nodes_and_pods import PODS
from nodewise.scheduling_model.unschedulable_message import Rejection

EXTENDER: Final = "Extender"
"""Rejector name of extenders; every event makes a retry worthwhile."""

_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class ClusterEvent(NamedTuple):
    """A cluster event; for a node event, the node before and after."""

    kind: Literal["node added", "node changed", "node gone", "pod bound", "pod changed", "pod gone"]
    old: Node | None = None
    new: Node | None = None


def node_event(old: Node, new: Node) -> ClusterEvent | None:
    """The event of a node update; None if no field that the scheduler reads has changed."""
    uncordoned = old.is_cordoned and not new.is_cordoned
    return (
        ClusterEvent("node changed", old, new)
        if uncordoned or _scheduling_fields(old) != _scheduling_fields(new)
        else None
    )


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    annotations = (node.obj.get("metadata") or {}).get("annotations") or {}
    conditions = (node.obj.get("status") or {}).get("conditions") or ()
    states = {condition.get("type"): condition.get("status") for condition in conditions}
    return node.allocatable, node.labels, node.taints, states, annotations


class SimulatedFilterPlugin(NamedTuple):
    """A filter plugin.

    `reject` returns the reasons against a node, empty if the pod fits. A rejection is `for_good` (preemption does not
    help) unless `is_for_good` returns False. `helps` is the queueing hint: whether an event may have made a rejected
    pod schedulable.
    """

    name: str
    reject: Callable[[Pod, NodeInfo], tuple[str, ...]]
    helps: Callable[[Pod, ClusterEvent], bool]
    is_for_good: Callable[[Pod, NodeInfo], bool] = lambda _pod, _info: True


SimulatedFilterPlugins = tuple[SimulatedFilterPlugin, ...]


def standard(ignored: Collection[str] = ()) -> SimulatedFilterPlugins:
    """The default plugins; `ignored` are resources that extenders manage."""
    return (*_BY_NODE, _make_resources_fit_plugin(frozenset(ignored)))


def judge(plugins: SimulatedFilterPlugins, pod: Pod, info: NodeInfo) -> Rejection | None:
    """The rejection by the first plugin that objects; None if the pod fits the node."""
    for plugin in plugins:
        if reasons := plugin.reject(pod, info):
            return Rejection(reasons, plugin.is_for_good(pod, info), plugin.name)
    return None


def may_help(
    plugins: SimulatedFilterPlugins, rejectors: Collection[str], pod: Pod, event: ClusterEvent
) -> bool:
    """Whether an event makes it worthwhile to retry a pod that these plugins, or an extender, rejected."""
    if EXTENDER in rejectors or not rejectors:
        return True
    return any(plugin.helps(pod, event) for plugin in plugins if plugin.name in rejectors)


def _reject_cordoned(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    if not info.node.is_cordoned or _tolerates_cordon(pod):
        return ()
    return ("node(s) were unschedulable",)


def _tolerates_cordon(pod: Pod) -> bool:
    return any(
        node_affinity_and_taints.tolerates(toleration, _CORDON)
        for toleration in pod.spec.get("tolerations") or ()
    )


def _reject_untolerated_taint(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    tainted = _has_untolerated_taint(pod, info.node)
    return ("node(s) had untolerated taint(s)",) if tainted else ()


def _has_untolerated_taint(pod: Pod, node: Node) -> bool:
    return bool(node_affinity_and_taints.untolerated(pod, node, node_affinity_and_taints.NOT_SCHEDULED))


def _reject_unmatched_affinity(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    return (
        ()
        if node_affinity_and_taints.matches(pod, info.node)
        else ("node(s) didn't match Pod's node affinity/selector",)
    )


def _was_uncordoned(_pod: Pod, event: ClusterEvent) -> bool:
    before, after = event.old, event.new
    return after is not None and not after.is_cordoned and (before is None or before.is_cordoned)


def _make_newly_satisfied_hint(is_right: Callable[[Pod, Node], bool]) -> Callable[[Pod, ClusterEvent], bool]:
    """A queueing hint: whether the node satisfies the predicate now and did not before, or is new."""

    def helps(pod: Pod, event: ClusterEvent) -> bool:
        before, after = event.old, event.new
        return after is not None and is_right(pod, after) and not (before and is_right(pod, before))

    return helps


def _has_other_taints(event: ClusterEvent) -> bool:
    """kube-scheduler treats a change of taints like a new node for plugins that do not read taints."""
    before, after = event.old, event.new
    if before is None or after is None:
        return False
    return before.taints != after.taints or (before.is_cordoned and not after.is_cordoned)


def _may_affinity_match_now(pod: Pod, event: ClusterEvent) -> bool:
    return _has_other_taints(event) or _make_newly_satisfied_hint(node_affinity_and_taints.matches)(
        pod, event
    )


_BY_NODE: Final[SimulatedFilterPlugins] = (
    SimulatedFilterPlugin("NodeUnschedulable", _reject_cordoned, _was_uncordoned),
    SimulatedFilterPlugin(
        "TaintToleration",
        _reject_untolerated_taint,
        _make_newly_satisfied_hint(lambda pod, node: not _has_untolerated_taint(pod, node)),
    ),
    SimulatedFilterPlugin("NodeAffinity", _reject_unmatched_affinity, _may_affinity_match_now),
)


def _make_resources_fit_plugin(ignored: frozenset[str]) -> SimulatedFilterPlugin:
    """NodeResourcesFit. A pod that exceeds the whole node is rejected for good."""

    def short(pod: Pod, info: NodeInfo) -> list[str]:
        has, taken = info.node.allocatable, info.requested
        return [
            name
            for name, amount in pod.requests.items()
            if amount and amount > has.get(name, 0) - taken.get(name, 0) and name not in ignored
        ]

    def reject(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
        crowded = len(info.pods) + 1 > info.node.allocatable.get(PODS, 0)
        reasons = [f"Insufficient {name}" for name in short(pod, info)]
        return (*(["Too many pods"] if crowded else []), *reasons)

    def is_for_good(pod: Pod, info: NodeInfo) -> bool:
        return bool(short(pod, NodeInfo(info.node)))

    def helps(pod: Pod, event: ClusterEvent) -> bool:
        if event.kind == "pod gone" or _has_other_taints(event):
            return True
        after = event.new
        if after is None or reject(pod, NodeInfo(after)):
            return False
        return event.old is None or _has_allocatable_grown(pod, event.old, after)

    return SimulatedFilterPlugin("NodeResourcesFit", reject, helps, is_for_good)


def _has_allocatable_grown(pod: Pod, before: Node, after: Node) -> bool:
    requested = (PODS, *(name for name, amount in pod.requests.items() if amount))
    return any(after.allocatable.get(name, 0) > before.allocatable.get(name, 0) for name in requested)
