"""Filter and score plugins of the simulated scheduler, with queueing hints and the message for an unschedulable pod.

A filter plugin decides whether a pod fits a node, and which events make a retry worthwhile. Filter plugins run in
kube-scheduler's order; the first that rejects a node gives the reason. Sources: kubernetes v1.36.3
pkg/scheduler/framework/plugins/{nodeunschedulable,tainttoleration,nodeaffinity,noderesources}, and
pkg/scheduler/apis/config/v1/default_plugins.go for the order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from nodewise.scheduling_model import parsed_nodes_and_pods
from nodewise.scheduling_model.parsed_nodes_and_pods import CPU, MEMORY, PODS, Node, NodeInfo, Pod, Taint

Values = Sequence[str]
Term = Mapping[str, Any]

NOT_SCHEDULED: Final = ("NoSchedule", "NoExecute")
"""Taint effects that exclude a node."""

NOT_PREFERRED: Final = ("PreferNoSchedule",)
"""Taint effects that lower a node's score."""


def matches(pod: Pod, node: Node) -> bool:
    """Whether a node matches the pod's nodeSelector and required node affinity."""
    node_selector = pod.spec.get("nodeSelector") or {}
    if any(node.labels.get(label) != value for label, value in node_selector.items()):
        return False
    required = _node_affinity(pod).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_term_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def preference(pod: Pod, node: Node) -> int:
    """Sum of the weights of the preferred terms that a node matches."""
    preferred = _node_affinity(pod).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(term["weight"] for term in preferred if _term_matches(term.get("preference") or {}, node))


def untolerated(pod: Pod, node: Node, effects: Sequence[str]) -> list[Taint]:
    """The node's taints with one of these effects that the pod does not tolerate."""
    tolerations = pod.spec.get("tolerations") or ()
    taints = [taint for taint in node.taints if taint.effect in effects]
    return [taint for taint in taints if not any(tolerates(toleration, taint) for toleration in tolerations)]


def tolerates(toleration: Term, taint: Taint) -> bool:
    """Whether a toleration covers a taint; omitted fields match everything."""
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("key") not in (None, "", taint.key):
        return False
    operator = toleration.get("operator") or "Equal"
    return operator == "Exists" or (operator == "Equal" and (toleration.get("value") or "") == taint.value)


def _node_affinity(pod: Pod) -> Term:
    affinity: Term = (pod.spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity


def _term_matches(term: Term, node: Node) -> bool:
    """Whether a node meets all requirements of a term; a term without requirements matches nothing."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    return all(
        _label_meets_requirement(requirement, node.labels.get(requirement["key"])) for requirement in labels
    ) and all(_field_meets_requirement(requirement, node.name) for requirement in fields)


def _label_meets_requirement(requirement: Term, label: str | None) -> bool:
    judge = _OPERATORS.get(requirement["operator"])
    return judge is not None and judge(label, requirement.get("values") or ())


def _field_meets_requirement(requirement: Term, name: str) -> bool:
    values = requirement.get("values") or ()
    known = requirement["key"] == "metadata.name" and requirement["operator"] in ("In", "NotIn")
    return known and len(values) == 1 and _label_meets_requirement(requirement, name)


def _parse_integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _make_integer_comparison(holds: Callable[[int, int], bool]) -> Callable[[str | None, Values], bool]:
    def judge(label: str | None, values: Values) -> bool:
        has = None if label is None else _parse_integer(label)
        bound = _parse_integer(values[0]) if len(values) == 1 else None
        return has is not None and bound is not None and holds(has, bound)

    return judge


_OPERATORS: Final[Mapping[str, Callable[[str | None, Values], bool]]] = {
    "In": lambda label, values: label in values,
    "NotIn": lambda label, values: label not in values,
    "Exists": lambda label, _: label is not None,
    "DoesNotExist": lambda label, _: label is None,
    "Gt": _make_integer_comparison(int.__gt__),
    "Lt": _make_integer_comparison(int.__lt__),
}
"""Predicates by operator; the label is None if the node does not have it."""


NO_NODES: Final = "no nodes available to schedule pods"
"""The whole message for a cluster without nodes."""

_EVENT_BYTES: Final = 1024
_CUT: Final = b" ..."


class Rejection(NamedTuple):
    """The reasons against a node. `for_good` means that preemption cannot help; `plugin` is empty for extenders."""

    reasons: tuple[str, ...]
    for_good: bool = False
    plugin: str = ""


Rejections = Mapping[str, Rejection]
"""Rejections by node. A node that is neither here nor feasible was not tried, or an extender dropped it."""


def text(nodes: int, rejected: Iterable[Rejection], absent: str = "", preemption: str = "") -> str:
    """The message; `absent` is the reason for all nodes without a rejection, empty to omit them."""
    rejections = list(rejected)
    counts = Counter(reason for rejection in rejections for reason in rejection.reasons)
    if absent and nodes > len(rejections):
        counts[absent] += nodes - len(rejections)
    parts = sorted(f"{count} {reason}" for reason, count in counts.items())
    reasons = f" {', '.join(parts)}." if parts else ""
    return f"0/{nodes} nodes are available:{reasons}" + (f" {preemption}" if preemption else "")


def event(message: str) -> str:
    """The message of an event: at most 1024 bytes of UTF-8."""
    encoded = message.encode()
    if len(encoded) <= _EVENT_BYTES:
        return message
    return (encoded[: _EVENT_BYTES - len(_CUT)] + _CUT).decode(errors="replace")


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
    return any(tolerates(toleration, _CORDON) for toleration in pod.spec.get("tolerations") or ())


def _reject_untolerated_taint(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    tainted = _has_untolerated_taint(pod, info.node)
    return ("node(s) had untolerated taint(s)",) if tainted else ()


def _has_untolerated_taint(pod: Pod, node: Node) -> bool:
    return bool(untolerated(pod, node, NOT_SCHEDULED))


def _reject_unmatched_affinity(pod: Pod, info: NodeInfo) -> tuple[str, ...]:
    return () if matches(pod, info.node) else ("node(s) didn't match Pod's node affinity/selector",)


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
    return _has_other_taints(event) or _make_newly_satisfied_hint(matches)(pod, event)


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


MAX_SCORE: Final = 100
_RESOURCES: Final = (CPU, MEMORY)
_TAINTS_WEIGHT: Final = 3
_AFFINITY_WEIGHT: Final = 2


def total_scores(pod: Pod, infos: Sequence[NodeInfo]) -> list[int]:
    """Total scores of the nodes, in their order."""
    taints = [len(untolerated(pod, info.node, NOT_PREFERRED)) for info in infos]
    preferences = [preference(pod, info.node) for info in infos]
    fewer_taints = [MAX_SCORE - share for share in _percent_of_largest(taints)]
    requested = parsed_nodes_and_pods.container_requests_for_scoring(pod.obj)
    return [
        least_allocated(requested, info)
        + balanced(pod, info)
        + _TAINTS_WEIGHT * few
        + _AFFINITY_WEIGHT * share
        for info, few, share in zip(infos, fewer_taints, _percent_of_largest(preferences), strict=True)
    ]


def least_allocated(requested: tuple[int, int], info: NodeInfo) -> int:
    """The share of CPU and memory that stays free, in per cent, averaged over both.

    `requested` are the pod's milli-cores and bytes.
    """
    has = info.node.allocatable
    shares = [
        _free_share(taken + more, has[name])
        for name, taken, more in zip(_RESOURCES, info.scored, requested, strict=True)
        if has.get(name)
    ]
    return sum(shares) // len(shares) if shares else 0


def balanced(pod: Pod, info: NodeInfo) -> int:
    """Higher if the pod brings the used shares of CPU and memory closer together: 50 to 100."""
    if not any(pod.requests.get(name) for name in _RESOURCES):
        return 0
    before, after = _balance_of_used_shares(info), _balance_of_used_shares(info, pod)
    return MAX_SCORE // 2 + (MAX_SCORE // 2 + after - before) // 2


def _free_share(taken: int, has: int) -> int:
    return (has - taken) * MAX_SCORE // has if taken <= has else 0


def _balance_of_used_shares(info: NodeInfo, pod: Pod | None = None) -> int:
    has, requested = info.node.allocatable, pod.requests if pod else {}
    used = [
        min((info.requested.get(name, 0) + requested.get(name, 0)) / has[name], 1.0)
        for name in _RESOURCES
        if has.get(name)
    ]
    deviation = abs(used[0] - used[1]) / 2 if len(used) == len(_RESOURCES) else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _percent_of_largest(counts: Sequence[int]) -> list[int]:
    """Per cent of the largest count; all 0 if no count is positive."""
    largest = max(counts, default=0)
    return [MAX_SCORE * count // largest if largest else 0 for count in counts]
