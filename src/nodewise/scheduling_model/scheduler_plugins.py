"""Filter and score plugins of the simulated scheduler, and the message for an unschedulable pod.

Filter plugins run in kube-scheduler's order; the first that rejects a node gives the reason. Sources: kubernetes
v1.36.3 pkg/scheduler/framework/plugins/{nodeunschedulable,tainttoleration,nodeaffinity,noderesources}, and
pkg/scheduler/apis/config/v1/default_plugins.go for the order.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.scheduling_model import parsed_nodes_and_pods
from nodewise.scheduling_model.parsed_nodes_and_pods import CPU, MEMORY, PODS, Node, NodeInfo, Pod, Taint

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
    return (pod.spec.get("affinity") or {}).get("nodeAffinity") or {}


def _term_matches(term: Term, node: Node) -> bool:
    """Whether a node meets all requirements of a term; a term without requirements matches nothing."""
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    names_the_node = all(
        field["key"] == "metadata.name"
        and field["operator"] in ("In", "NotIn")
        and len(field.get("values") or ()) == 1
        and _meets_requirement(field, node.name)
        for field in fields
    )
    return names_the_node and all(
        _meets_requirement(label, node.labels.get(label["key"])) for label in labels
    )


def _meets_requirement(requirement: Term, label: str | None) -> bool:
    """Whether a label meets a requirement; it is None if the node does not have it."""
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return label in values
        case "NotIn":
            return label not in values
        case "Exists":
            return label is not None
        case "DoesNotExist":
            return label is None
        case "Gt" | "Lt" as operator if label is not None and len(values) == 1:
            try:
                difference = int(label) - int(values[0])
            except ValueError:
                return False
            return difference > 0 if operator == "Gt" else difference < 0
    return False


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
"""Rejector name of extenders."""
RESOURCES_FIT: Final = "NodeResourcesFit"

_CORDON: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def judge(  # complexity: one branch for each plugin
    pod: Pod, info: NodeInfo, ignored: Collection[str] = ()
) -> Rejection | None:
    """The rejection by the first plugin that objects; None if the pod fits the node.

    `ignored` are resources that extenders manage.
    """
    node = info.node
    if node.is_cordoned and not any(tolerates(each, _CORDON) for each in pod.spec.get("tolerations") or ()):
        return Rejection(("node(s) were unschedulable",), for_good=True, plugin="NodeUnschedulable")
    if untolerated(pod, node, NOT_SCHEDULED):
        return Rejection(("node(s) had untolerated taint(s)",), for_good=True, plugin="TaintToleration")
    if not matches(pod, node):
        reason = "node(s) didn't match Pod's node affinity/selector"
        return Rejection((reason,), for_good=True, plugin="NodeAffinity")
    reasons = ["Too many pods"] if len(info.pods) + 1 > node.allocatable.get(PODS, 0) else []
    for_good = False
    for name, amount in pod.requests.items():
        has = node.allocatable.get(name, 0)
        if amount and name not in ignored and amount > has - info.requested.get(name, 0):
            reasons.append(f"Insufficient {name}")
            for_good |= amount > has
    return Rejection(tuple(reasons), for_good, RESOURCES_FIT) if reasons else None


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
        max(has[name] - taken - more, 0) * MAX_SCORE // has[name]
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
