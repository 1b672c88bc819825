"""The node labels that policies require, computed over all nodes as arrays, and the owners of node labels in
`metadata.managedFields`. No I/O.

A label changes only because of fresh values: if a rule that sets the label has no fresh value for a node, an existing
label that nodewise owns stays. The format of the keys is that of Telemetry Aware Scheduling 0.7
(`pkg/strategies/deschedule` and `pkg/strategies/labeling`).

The API server tracks which manager and operation last wrote a key (KEP-555, server-side apply).
"""

import copy
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.policies import rule_operators
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.rule_evaluation import RuleEvaluation
from nodewise.policies.taspolicy_parser import PREFIX

_NODES_PER_YIELD: Final = 100
"""Yielding costs as much as one label."""

T = TypeVar("T")
Labels = Mapping[str, str]
Mask = NDArray[np.bool_]


class LabelColumn(NamedTuple):
    """One label key over all nodes, by node number."""

    key: str
    values: tuple[str, ...]
    codes: NDArray[np.int16]
    """By fresh evidence: 0 for no label, k for the value `values[k - 1]`."""
    hold: Mask
    """Where missing values might change the result: an existing label of ours stays."""
    conflicting: bool = False
    """Whether rules with different operators set the key on some node; that node gets no label."""
    namespaces: frozenset[str] = frozenset()
    """The namespaces of the policies that set the label."""

    def held(self) -> "LabelColumn":
        """The column that leaves the labels of all nodes as they are."""
        size = len(self.codes)
        return self._replace(codes=np.zeros(size, np.int16), hold=np.ones(size, bool), conflicting=False)


class _Candidate(NamedTuple):
    """A value of a label key, over all nodes."""

    value: str
    evaluation: RuleEvaluation
    """The comparison whose metric values decide between several values of the key."""
    applies: Mask
    """Where fresh values meet all parts of the rule."""
    undecided: Mask
    """Where missing values leave open whether they do."""


def requested_labels(policy: Policy) -> dict[str, int]:
    """The keys of all labels that the policy may set on one node, with the bytes of the key and the longest value.

    In the order of the policy's rules.
    """
    sizes: dict[str, int] = {}
    for rule in policy.node_labels:
        for part, labels in zip(rule.parts, rule.labels, strict=True):
            for key, value in () if part.unusable else labels:
                sizes[key] = max(sizes.get(key, 0), len(key) + len(value))
    return sizes


def label_columns(
    policy: Policy, evaluated: Mapping[Comparison, RuleEvaluation]
) -> Generator[LabelColumn, None, None]:
    """One column per label key. `evaluated` has all usable comparisons of the policy.

    A rule with a part that cannot be evaluated sets no labels.
    """
    candidates: dict[str, list[_Candidate]] = {}
    for rule in policy.node_labels:
        if any(part.unusable for part in rule.parts):
            continue
        evaluations = [evaluated[part] for part in rule.parts]
        met = [(evaluation.inputs.known, evaluation.broken) for evaluation in evaluations]
        applies = np.logical_and.reduce([known & broken for known, broken in met])
        applies_not = np.logical_or.reduce([known & ~broken for known, broken in met])
        for evaluation, labels in zip(evaluations, rule.labels, strict=True):
            for key, value in labels:
                candidate = _Candidate(value, evaluation, applies, ~applies & ~applies_not)
                candidates.setdefault(key, []).append(candidate)
    for key, listed in candidates.items():
        yield _label_column(key, listed)._replace(namespaces=policy.namespaces)


def _label_column(key: str, candidates: Sequence[_Candidate]) -> LabelColumn:
    """The column of one key: of the rules that apply, the one with the most extreme metric value sets the label.

    The first of equal values wins. If rules with operators of different directions set different values, they cannot be
    compared: the node gets no label.
    """
    values = tuple(candidate.value for candidate in candidates)
    size = len(candidates[0].applies)
    winner = np.zeros(size, np.int16)
    conflict = np.zeros(size, bool)
    best = candidates[0].evaluation.inputs.column.values.copy()
    direction = np.zeros(size, np.int8)
    for position, candidate in enumerate(candidates, 1):
        order = rule_operators.sort_direction(candidate.evaluation.rule.operator)
        metric_values = candidate.evaluation.inputs.column.values
        differs = np.array([False, *(value != candidate.value for value in values)])[winner]
        conflict |= candidate.applies & differs & (direction != order)
        is_more_extreme = np.zeros(size, bool)
        if order:
            is_more_extreme = np.asarray(metric_values > best if order < 0 else metric_values < best, bool)
        takes = candidate.applies & ((winner == 0) | is_more_extreme)
        winner[takes] = position
        best = np.where(takes, metric_values, best)
        direction[takes] = order
    winner[conflict] = 0
    hold = np.logical_or.reduce([candidate.undecided for candidate in candidates])
    return LabelColumn(key, values, winner, hold, bool(conflict.any()))


def merge_label_columns(columns: Iterable[LabelColumn]) -> dict[str, LabelColumn]:
    """One column per key.

    Policies of the same name in several namespaces share `<policy>=violating`: a node has it while it violates any.
    """
    by_key: dict[str, LabelColumn] = {}
    for column in columns:
        other = by_key.get(column.key)
        if other is None:
            by_key[column.key] = column
        else:
            codes = np.maximum(column.codes, other.codes)
            by_key[column.key] = other._replace(
                codes=codes,
                hold=(column.hold | other.hold) & (codes == 0),
                namespaces=column.namespaces | other.namespaces,
            )
    return by_key


def desired_labels(
    columns: Mapping[str, LabelColumn],
    nodes: NodeIndex,
    owned: Mapping[str, Labels],
    held: frozenset[str] = frozenset(),
) -> Generator[None, None, dict[str, dict[str, str]]]:
    """By node name, all labels that the policies require; nodes without any are left out. Yields between nodes.

    `owned` are the labels of ours that nodes have now. Those with the keys `held` stay as they are.
    """
    wanted: dict[str, dict[str, str]] = {}
    known = len(nodes)
    for key, column in columns.items():
        positions = np.flatnonzero(column.codes[:known])
        names = nodes.names[positions].tolist()
        yield
        for number, (name, code) in enumerate(zip(names, column.codes[positions].tolist(), strict=True)):
            if number % _NODES_PER_YIELD == 0:
                yield
            wanted.setdefault(name, {})[key] = column.values[code - 1]
    _keep_labels(wanted, columns, nodes, owned, held)
    return wanted


def _keep_labels(
    wanted: dict[str, dict[str, str]],
    columns: Mapping[str, LabelColumn],
    nodes: NodeIndex,
    owned: Mapping[str, Labels],
    held: frozenset[str],
) -> None:
    """Keep existing labels of ours with the keys `held`, and where values are missing. Usually there is none."""
    known = len(nodes)
    holding = {key: column.hold for key, column in columns.items() if column.hold[:known].any()}
    if not holding and not held:
        return
    names = [name for name in owned if name in nodes]
    for name, number in zip(names, nodes.numbers(names).tolist(), strict=True):
        for key in owned[name].keys() & holding.keys():
            if holding[key][number]:
                wanted.setdefault(name, {})[key] = owned[name][key]
        for key in held.intersection(owned[name]):
            wanted.setdefault(name, {})[key] = owned[name][key]


def require_same_labels(
    columns: Mapping[str, LabelColumn], others: Mapping[str, LabelColumn]
) -> Generator[None, None, bool]:
    """Whether both require the same labels of all nodes. Yields between columns."""
    if columns.keys() != others.keys():
        return False
    for key, column in columns.items():
        yield
        other = others[key]
        if column.values != other.values or column.namespaces != other.namespaces:
            return False
        if not np.array_equal(column.codes, other.codes) or not np.array_equal(column.hold, other.hold):
            return False
    return True


def changed_label_groups(
    columns: Mapping[str, LabelColumn], wanted: Labels, owned: Labels
) -> dict[tuple[str, ...], set[str]]:
    """The keys whose label on one node changes, by the sorted namespaces of their policies; () if no policy is left."""
    groups: dict[tuple[str, ...], set[str]] = {}
    for key, _ in wanted.items() ^ owned.items():
        namespaces = columns[key].namespaces if key in columns else ()
        groups.setdefault(tuple(sorted(namespaces)), set()).add(key)
    return groups


def begins_to_violate(wanted: Labels, owned: Labels) -> bool:
    """Whether a label of a node becomes `violating`."""
    return any(value == VIOLATING != owned.get(key) for key, value in wanted.items())


def order_fairly(
    columns: Mapping[str, LabelColumn],
    wanted: Mapping[str, Labels],
    owned: Mapping[str, Labels],
    turn: int = 0,
    waited_for: Container[str] = (),
) -> Generator[None, None, list[str]]:
    """The nodes of `wanted` in the order in which they are written: the namespaces take turns. Yields between nodes.

    `turn` determines which namespace is first, because not all nodes may be written in one step.
    Each namespace has the nodes on which its labels change, so that one whose labels always change everywhere delays
    no other. Of each, nodes that begin to violate a policy come first, because pods are still placed there, and then
    those with a changed label that waiting pods require, whose keys are in `waited_for`.
    """
    violating: dict[str, list[str]] = {}
    releasing: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for node, labels in wanted.items():
        yield
        for group, keys in changed_label_groups(columns, labels, owned.get(node, {})).items():
            queues = others
            if any(labels.get(key) == VIOLATING for key in keys):
                queues = violating
            elif any(key in waited_for for key in keys):
                queues = releasing
            for namespace in group or ("",):
                queues.setdefault(namespace, []).append(node)
    by_effect = (violating, releasing, others)
    namespaces = sorted(set().union(*by_effect))
    first = turn % max(len(namespaces), 1)
    in_turns = interleave(
        [node for queues in by_effect for node in queues.get(name, ())]
        for name in namespaces[first:] + namespaces[:first]
    )
    return list(dict.fromkeys(in_turns))


def interleave(queues: Iterable[Iterable[T]]) -> list[T]:
    """The first item of each queue, then the second ones, and so on."""
    end = object()
    items = chain.from_iterable(zip_longest(*queues, fillvalue=end))
    return [item for item in items if item is not end]  # type: ignore[misc]


class LabelAssignment(NamedTuple):
    """The node labels of all policies together."""

    columns: dict[str, LabelColumn]
    """By label key."""
    conflicts: dict[PolicyKey, str]
    """By policy: why some of its labels are not written."""


def combine_policy_labels(
    policies: Mapping[PolicyKey, tuple[Policy, Sequence[LabelColumn]]],
) -> LabelAssignment:
    """Combine the columns of all policies.

    Policies that set a key to the same only value share it: a node has the label while any of them sets it. Otherwise
    the oldest policy sets the key. The keys of `labeling` belong to one of several TASPolicies of the same name.
    """
    columns: list[LabelColumn] = []
    conflicts: dict[PolicyKey, str] = {}
    owners: dict[str, tuple[PolicyKey, frozenset[str]]] = {}
    for key in sorted(
        policies, key=lambda key: (policies[key][0].created, key.namespace, key.name, key.kind)
    ):
        _, wanted = policies[key]
        rivals: dict[PolicyKey, list[str]] = {}
        mixed = []
        for column in wanted:
            values = frozenset(column.values)
            # a policy owns the keys of `labeling` with the same prefix together, and each other key alone
            scope = column.key.partition("/")[0] if column.key.startswith(PREFIX) else column.key
            owner, owner_values = owners.setdefault(scope, (key, values))
            is_shared = values == owner_values and len(values) == 1 and not column.key.startswith(PREFIX)
            if owner != key and not is_shared:
                rivals.setdefault(owner, []).append(column.key)
                continue
            columns.append(column)
            mixed += [column.key] if column.conflicting else []
        messages = [_describe_rival(key, owner, keys) for owner, keys in rivals.items()]
        if mixed:
            messages.append(f"rules with different operators set {', '.join(mixed)}; it is omitted there")
        if messages:
            conflicts[key] = "; ".join(messages)
    return LabelAssignment(merge_label_columns(columns), conflicts)


def _describe_rival(key: PolicyKey, owner: PolicyKey, keys: Sequence[str]) -> str:
    if key.kind == owner.kind == "TASPolicy":
        return f"policy {owner.path} has the same name, is older, and sets the labels instead"
    return f"{owner.text()} is older and sets {', '.join(keys)} instead"


FIELD_MANAGER: Final = "nodewise-telemetry"
"""The owner of our fields."""
NODEWISE_DOMAIN: Final = ".nodewise.io"
"""The end of the domains of the labels of `nodeLabels`. Keys of nodewise itself are in `nodewise.io`."""
OLD_MANAGERS: Final = frozenset(["extender"])
"""Telemetry Aware Scheduling set no manager, so the API server used the first part of its user agent."""

VERDICT_LABEL_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/"
"""The prefix of the keys of labels with the verdict of a policy; its uid follows.

The admission plugin NodeRestriction of the API server keeps kubelets from writing labels of this domain."""

PREFERENCE_SUFFIX: Final = ".preference"
"""The end of the keys of labels with the classes of a policy (`preference_classes`), after the uid."""

ManagedFieldsEntry = dict[str, Any]
"""One entry of managedFields."""


class LabelOwner(NamedTuple):
    """A field manager of node labels, and the labels that belong to it."""

    field_manager: str
    may_own: Callable[[str, str], bool]
    """Whether a label, by key and value, may be one of these, regardless of the current policies."""
    is_forced: bool
    """Whether a label of another owner is overwritten; otherwise it is a conflict."""
    pending_nodes_metric: str
    """The metric with the number of nodes that are still to be written."""

    def select(self, labels: Labels, known: Container[str] = ()) -> dict[str, str]:
        """The labels that may be of this owner, and those with the keys `known`."""
        return {key: value for key, value in labels.items() if key in known or self.may_own(key, value)}


def owned_labels(metadata: Mapping[str, Any], field_manager: str) -> dict[str, str]:
    """The labels that a manager owns by server-side apply, with their current values."""
    labels = metadata.get("labels") or {}
    return {
        key: labels[key]
        for entry in metadata.get("managedFields") or ()
        if _is_apply_of(entry, field_manager)
        for key in _label_keys(entry)
        if key in labels
    }


def inheritable_label_keys(metadata: Mapping[str, Any], policies: frozenset[str]) -> frozenset[str]:
    """The label keys that only the older system owns and that have the same meaning as ours.

    `<policy>=violating` of a policy that exists, and every key below `telemetry.aware.scheduling.`.
    """
    owners: dict[str, set[str]] = {}
    for entry in metadata.get("managedFields") or ():
        for key in _label_keys(entry):
            owners.setdefault(key, set()).add(str(entry.get("manager", "")))
    labels: Labels = metadata.get("labels") or {}
    return frozenset(
        key
        for key, managers in owners.items()
        if managers <= OLD_MANAGERS
        and (key.startswith(PREFIX) or (key in policies and labels.get(key) == VIOLATING))
    )


def _may_be_policy_label(key: str, value: str) -> bool:
    """Whether a label may be ours or the older system's, regardless of the current policies."""
    is_of_cluster_policy = key.partition("/")[0].endswith(NODEWISE_DOMAIN)
    is_candidate = value == VIOLATING or key.startswith(PREFIX) or is_of_cluster_policy
    return is_candidate and not _is_verdict_label(key)


def _is_verdict_label(key: str, value: str = "") -> bool:  # noqa: ARG001 - as for other owners
    return key.startswith(VERDICT_LABEL_PREFIX)


POLICY_LABELS: Final = LabelOwner(FIELD_MANAGER, _may_be_policy_label, False, "nodes_to_label")
"""The owner of the labels that policies name."""
VERDICT_LABELS: Final = LabelOwner("nodewise-native", _is_verdict_label, True, "native_nodes_to_label")
"""The owner of the labels with the verdicts of policies, and with their classes of preference."""


def transfer_ownership(
    metadata: Mapping[str, Any], keys: frozenset[str], api_version: str
) -> list[ManagedFieldsEntry]:
    """`managedFields` with these label keys moved from the older system's entries to ours; values do not change.

    This is how client-go's `csaupgrade` (v0.36) migrates a client-side apply to a server-side one.
    """
    entries = []
    for entry in copy.deepcopy(metadata.get("managedFields") or ()):
        if entry.get("manager") in OLD_MANAGERS and not entry.get("subresource"):
            _remove_labels(entry, keys)
        entries.append(entry)
    ours = next((entry for entry in entries if _is_apply_of(entry, FIELD_MANAGER)), None)
    if ours is None:
        ours = {
            "manager": FIELD_MANAGER,
            "operation": "Apply",
            "apiVersion": api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
        }
        entries.append(ours)
    fields: ManagedFieldsEntry = {f"f:{key}": {} for key in {*_label_keys(ours), *keys}}
    ours["fieldsV1"] = {"f:metadata": {"f:labels": fields}}
    return [entry for entry in entries if entry["fieldsV1"]]


def _remove_labels(entry: ManagedFieldsEntry, keys: frozenset[str]) -> None:
    """Remove some labels from an entry, and fields that are then empty."""
    fields = entry.setdefault("fieldsV1", {})
    metadata = fields.get("f:metadata") or {}
    labels = metadata.get("f:labels") or {}
    for key in keys:
        labels.pop(f"f:{key}", None)
    if not labels.keys() - {"."}:
        metadata.pop("f:labels", None)
    if not metadata:
        fields.pop("f:metadata", None)


def _is_apply_of(entry: ManagedFieldsEntry, field_manager: str) -> bool:
    return entry.get("manager") == field_manager and entry.get("operation") == "Apply"


def _label_keys(entry: ManagedFieldsEntry) -> list[str]:
    labels = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
    return [name.removeprefix("f:") for name in labels if name != "."]
