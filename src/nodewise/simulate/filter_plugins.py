"""The plugins that say whether a pod may go to a node, and which events make it worth trying again.

A table in kube-scheduler's order: the first plugin that objects has the word. Sources: kubernetes v1.36.3
pkg/scheduler/framework/plugins/{nodeunschedulable,tainttoleration,nodeaffinity,noderesources},
and pkg/scheduler/apis/config/v1/default_plugins.go for the order.
"""

from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple

from nodewise.simulate import node_selectors
from nodewise.simulate.node_info import NodeInfo
from nodewise.simulate.resources import PODS
from nodewise.simulate.scheduler_objects import Node, Pod, Taint
from nodewise.simulate.unschedulable_message import Rejection

EXTENDER: Final = "Extender"
"""The name under which an extender's rejection is remembered; every event makes it worth another try."""

_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class Event(NamedTuple):
    """Something that happened in the cluster; of a node, how it was and how it is."""

    kind: Literal["node added", "node changed", "node gone", "pod bound", "pod changed", "pod gone"]
    old: Node | None = None
    new: Node | None = None


def node_event(old: Node, new: Node) -> Event | None:
    """What a change of a node is to pods that wait; None where nothing changed that a scheduler looks at."""
    uncordoned = old.is_cordoned and not new.is_cordoned
    return Event("node changed", old, new) if uncordoned or _looked_at(old) != _looked_at(new) else None


def _looked_at(node: Node) -> tuple[object, ...]:
    annotations = (node.obj.get("metadata") or {}).get("annotations") or {}
    conditions = (node.obj.get("status") or {}).get("conditions") or ()
    states = {condition.get("type"): condition.get("status") for condition in conditions}
    return node.allocatable, node.labels, node.taints, states, annotations


class Plugin(NamedTuple):
    """`objections` are the reasons against a node, none if there are none; a rejection is `for_good` always,
    unless `is_for_good` says otherwise. `helps` says whether an event may have made a rejected pod fit.
    """

    name: str
    objections: Callable[[Pod, NodeInfo], tuple[str, ...]]
    helps: Callable[[Pod, Event], bool]
    is_for_good: Callable[[Pod, NodeInfo], bool] = lambda _pod, _info: True


Plugins = tuple[Plugin, ...]


def standard(ignored: Collection[str] = ()) -> Plugins:
    """The default plugins; resources that extenders manage by themselves may be ignored."""
    return (*_BY_NODE, _resources(frozenset(ignored)))


def judge(plugins: Plugins, pod: Pod, info: NodeInfo) -> Rejection | None:
    """The first objection against a pod on a node; None if it may go there."""
    for plugin in plugins:
        if reasons := plugin.objections(pod, info):
            return Rejection(reasons, plugin.is_for_good(pod, info), plugin.name)
    return None


def may_help(plugins: Plugins, rejectors: Collection[str], pod: Pod, event: Event) -> bool:
    """Whether an event makes it worth trying a pod again that these plugins, or an extender, rejected."""
    if EXTENDER in rejectors or not rejectors:
        return True
    return any(plugin.helps(pod, event) for plugin in plugins if plugin.name in rejectors)


def _unschedulable(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    if not info.node.is_cordoned or _tolerates_cordon(pod):
        return ()
    return ("node(s) were unschedulable",)


def _tolerates_cordon(pod: Pod) -> bool:
    return any(
        node_selectors.tolerates(toleration, _CORDON) for toleration in pod.spec.get("tolerations") or ()
    )


def _tainted(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    tainted = _is_tainted(pod, info.node)
    return ("node(s) had untolerated taint(s)",) if tainted else ()


def _is_tainted(pod: Pod, node: Node) -> bool:
    return bool(node_selectors.untolerated(pod, node, node_selectors.NOT_SCHEDULED))


def _unwanted(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    wanted = node_selectors.matches(pod, info.node)
    return () if wanted else ("node(s) didn't match Pod's node affinity/selector",)


def _was_uncordoned(_pod: Pod, event: Event) -> bool:
    before, after = event.old, event.new
    return after is not None and not after.is_cordoned and (before is None or before.is_cordoned)


def _became(is_right: Callable[[Pod, Node], bool]) -> Callable[[Pod, Event], bool]:
    """Whether a node is right for the pod that was not, or was not there."""

    def helps(pod: Pod, event: Event) -> bool:
        before, after = event.old, event.new
        return after is not None and is_right(pod, after) and not (before and is_right(pod, before))

    return helps


def _has_other_taints(event: Event) -> bool:
    """Upstream, a change of taints stands in for a node's coming, for plugins that do not look at taints."""
    before, after = event.old, event.new
    if before is None or after is None:
        return False
    return before.taints != after.taints or (before.is_cordoned and not after.is_cordoned)


def _wanted_now(pod: Pod, event: Event) -> bool:
    return _has_other_taints(event) or _became(node_selectors.matches)(pod, event)


_BY_NODE: Final[Plugins] = (
    Plugin("NodeUnschedulable", _unschedulable, _was_uncordoned),
    Plugin("TaintToleration", _tainted, _became(lambda pod, node: not _is_tainted(pod, node))),
    Plugin("NodeAffinity", _unwanted, _wanted_now),
)


def _resources(ignored: frozenset[str]) -> Plugin:
    """NodeResourcesFit. A pod that is larger than the whole node is rejected for good."""

    def short(pod: Pod, info: NodeInfo) -> list[str]:
        has, taken = info.node.allocatable, info.requested
        return [
            name
            for name, amount in pod.requests.items()
            if amount and amount > has.get(name, 0) - taken.get(name, 0) and name not in ignored
        ]

    def objections(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
        crowded = len(info.pods) + 1 > info.node.allocatable.get(PODS, 0)
        reasons = [f"Insufficient {name}" for name in short(pod, info)]
        return (*(["Too many pods"] if crowded else []), *reasons)

    def is_for_good(pod: Pod, info: NodeInfo) -> bool:
        return bool(short(pod, NodeInfo(info.node)))

    def helps(pod: Pod, event: Event) -> bool:
        if event.kind == "pod gone" or _has_other_taints(event):
            return True
        after = event.new
        if after is None or objections(pod, NodeInfo(after)):
            return False
        return event.old is None or _has_grown(pod, event.old, after)

    return Plugin("NodeResourcesFit", objections, helps, is_for_good)


def _has_grown(pod: Pod, before: Node, after: Node) -> bool:
    requested = (PODS, *(name for name, amount in pod.requests.items() if amount))
    return any(after.allocatable.get(name, 0) > before.allocatable.get(name, 0) for name in requested)
