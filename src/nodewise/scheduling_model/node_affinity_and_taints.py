"""Matching of node selectors, node affinity, taints and tolerations.

Sources: k8s.io/component-helpers v0.36.3 scheduling/corev1/nodeaffinity, k8s.io/apimachinery v0.36.3
pkg/labels/selector.go, k8s.io/api v0.36.3 core/v1/toleration.go.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nodewise.scheduling_model.parsed_nodes_and_pods import Node, Pod, Taint

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
