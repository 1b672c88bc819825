"""The node labels that policies require, computed over all nodes as arrays. No I/O.

A label changes only because of fresh values: if a rule that sets the label has no fresh value for a node, an existing
label that nodewise owns stays. The format of the keys is that of Telemetry Aware Scheduling 0.7
(`pkg/strategies/deschedule` and `pkg/strategies/labeling`).
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.telemetry.rule_evaluation import RuleEvaluation
from nodewise.agents.telemetry.taspolicy_parser import Policy, Strategy, is_valid_label_part

PREFIX: Final = "telemetry.aware.scheduling."
VIOLATING: Final = "violating"
MAX_PREFIX: Final = 253
"""Characters of a label key before its `/` (apimachinery v0.36 `pkg/util/validation`)."""

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


def requested_labels(policy: Policy) -> dict[str, int]:
    """The keys of all labels that the policy may set on one node, with the bytes of the key and the longest value.

    In the order of the policy's rules; the label of `deschedule` comes first.
    """
    sizes: dict[str, int] = {}
    drains = any(not rule.unusable for rule in policy.rules("deschedule"))
    if drains and is_valid_label_part(policy.name):
        sizes[policy.name] = len(policy.name) + len(VIOLATING)
    if len(PREFIX + policy.name) <= MAX_PREFIX:
        for rule in policy.rules("labeling"):
            for name, _, value in () if rule.unusable else (text.partition("=") for text in rule.labels):
                key = _labeling_key(policy, name)
                sizes[key] = max(sizes.get(key, 0), len(key) + len(value))
    return sizes


def strategies_without_labels(policy: Policy, omitted: frozenset[str]) -> Mapping[str, Strategy]:
    """The strategies of a policy without the labels of these keys."""
    strategies = dict(policy.strategies)
    if policy.name in omitted:
        del strategies["deschedule"]
    labeling = strategies.get("labeling")
    if labeling is not None:
        names = {text.partition("=")[0] for rule in labeling.rules for text in rule.labels}
        kept = {name for name in names if _labeling_key(policy, name) not in omitted}
        strategies["labeling"] = labeling.with_label_names(kept)
    return strategies


def _labeling_key(policy: Policy, name: str) -> str:
    return f"{PREFIX}{policy.name}/{name}"


def descheduling_column(policy: Policy, evaluations: Sequence[RuleEvaluation]) -> LabelColumn | None:
    """The label `<policy>=violating`; None if the policy does not deschedule."""
    if not evaluations or not is_valid_label_part(policy.name):
        return None  # a key that the API server refuses would take the node's other labels with it
    broken, unknown = _nodes_breaking_strategy(evaluations, all_of=policy.strategies["deschedule"].all_of)
    return LabelColumn(
        policy.name, (VIOLATING,), broken.astype(np.int16), unknown, namespaces=frozenset([policy.namespace])
    )


def labeling_columns(policy: Policy, evaluations: Sequence[RuleEvaluation]) -> tuple[LabelColumn, ...]:
    """The labels `telemetry.aware.scheduling.<policy>/<name>`, one column per name."""
    if not evaluations or len(PREFIX + policy.name) > MAX_PREFIX:
        return ()
    rules_by_name: dict[str, list[tuple[RuleEvaluation, str]]] = {}
    for evaluation in evaluations:
        for text in evaluation.rule.labels:
            name, separator, value = text.partition("=")
            if separator:
                rules_by_name.setdefault(name, []).append((evaluation, value))
    applies, unknown = np.ones(len(evaluations[0].states), bool), np.zeros(len(evaluations[0].states), bool)
    if policy.strategies["labeling"].all_of:
        applies, unknown = _nodes_breaking_strategy(evaluations, all_of=True)
    return tuple(
        _labeling_column(_labeling_key(policy, name), candidates, applies, unknown)._replace(
            namespaces=frozenset([policy.namespace])
        )
        for name, candidates in rules_by_name.items()
    )


def _nodes_breaking_strategy(evaluations: Sequence[RuleEvaluation], *, all_of: bool) -> tuple[Mask, Mask]:
    """By node number: whether fresh values break the strategy, and whether missing values leave that undecided."""
    fresh = np.array([evaluation.known for evaluation in evaluations])
    broken = np.array([evaluation.broken for evaluation in evaluations]) & fresh
    kept = fresh & ~broken
    surely: Mask = broken.all(axis=0) if all_of else broken.any(axis=0)
    surely_not: Mask = kept.any(axis=0) if all_of else kept.all(axis=0)
    return surely, ~surely & ~surely_not


def _labeling_column(
    key: str, candidates: Sequence[tuple[RuleEvaluation, str]], applies: Mask, unknown: Mask
) -> LabelColumn:
    """The column of one label name: of its broken rules, the one with the most extreme value sets the label.

    The first of equal values wins. Rules with different operators cannot be compared: the node gets no label.
    """
    values = tuple(value for _, value in candidates)
    size = len(applies)
    winner = np.zeros(size, np.int16)
    conflict = np.zeros(size, bool)
    best = candidates[0][0].column.values.copy()
    operator = np.full(size, "", object)
    for position, (evaluation, _) in enumerate(candidates, 1):
        broken = evaluation.broken & evaluation.known & applies
        conflict |= broken & (winner > 0) & (operator != evaluation.rule.operator)
        takes = broken & ((winner == 0) | _is_more_extreme(evaluation, best))
        winner[takes] = position
        best = np.where(takes, evaluation.column.values, best)
        operator[takes] = evaluation.rule.operator
    winner[conflict] = 0
    stale = ~np.all([evaluation.known for evaluation, _ in candidates], axis=0)
    return LabelColumn(key, values, winner, stale | unknown, bool(conflict.any()))


def _is_more_extreme(evaluation: RuleEvaluation, best: NDArray[np.int64] | NDArray[np.object_]) -> Mask:
    """Where the rule's value is more extreme than the best one, in the direction of its operator."""
    if evaluation.rule.operator == "GreaterThan":
        return np.asarray(evaluation.column.values > best, bool)
    if evaluation.rule.operator == "LessThan":
        return np.asarray(evaluation.column.values < best, bool)
    return np.zeros(len(best), bool)


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
    columns: Mapping[str, LabelColumn], nodes: NodeIndex, owned: Mapping[str, Labels]
) -> dict[str, dict[str, str]]:
    """By node name, all labels that the policies require; nodes without any are left out.

    `owned` are the labels of ours that nodes have now.
    """
    wanted: dict[str, dict[str, str]] = {}
    known = len(nodes)
    for key, column in columns.items():
        positions = np.flatnonzero(column.codes[:known])
        names = nodes.names[positions].tolist()
        for name, code in zip(names, column.codes[positions].tolist(), strict=True):
            wanted.setdefault(name, {})[key] = column.values[code - 1]
    _keep_labels_of_missing_values(wanted, columns, nodes, owned)
    return wanted


def _keep_labels_of_missing_values(
    wanted: dict[str, dict[str, str]],
    columns: Mapping[str, LabelColumn],
    nodes: NodeIndex,
    owned: Mapping[str, Labels],
) -> None:
    """Keep existing labels of ours where values are missing. Usually there is none."""
    known = len(nodes)
    holding = {key: column.hold for key, column in columns.items() if column.hold[:known].any()}
    if not holding:
        return
    names = [name for name in owned if name in nodes]
    for name, number in zip(names, nodes.numbers(names).tolist(), strict=True):
        for key in owned[name].keys() & holding.keys():
            if holding[key][number]:
                wanted.setdefault(name, {})[key] = owned[name][key]


def changed_label_groups(
    columns: Mapping[str, LabelColumn], wanted: Labels, owned: Labels
) -> dict[tuple[str, ...], set[str]]:
    """The keys whose label on one node changes, by the sorted namespaces of their policies; () if no policy is left."""
    groups: dict[tuple[str, ...], set[str]] = {}
    for key, _ in wanted.items() ^ owned.items():
        namespaces = columns[key].namespaces if key in columns else ()
        groups.setdefault(tuple(sorted(namespaces)), set()).add(key)
    return groups


def order_fairly(
    columns: Mapping[str, LabelColumn], wanted: Mapping[str, Labels], owned: Mapping[str, Labels]
) -> Generator[None, None, list[str]]:
    """The nodes of `wanted` in the order in which they are written: the namespaces take turns. Yields between nodes.

    Each namespace has the nodes on which its labels change, so that one whose labels always change everywhere delays
    no other.
    """
    queues: dict[str, list[str]] = {}
    for node, labels in wanted.items():
        yield
        for group in changed_label_groups(columns, labels, owned.get(node, {})):
            for namespace in group or ("",):
                queues.setdefault(namespace, []).append(node)
    turns = chain.from_iterable(zip_longest(*queues.values()))
    return list(dict.fromkeys(node for node in turns if node is not None))


class LabelAssignment(NamedTuple):
    """The node labels of all policies together."""

    columns: dict[str, LabelColumn]
    """By label key."""
    conflicts: dict[tuple[str, str], str]
    """By namespace and name of a policy: why some of its labels are not written."""


def combine_policy_labels(
    policies: Mapping[tuple[str, str], tuple[Policy, Sequence[LabelColumn]]],
) -> LabelAssignment:
    """Combine the columns of all policies.

    Policies of the same name share `<policy>=violating`. If two of them have `labeling`, the older one sets the labels.
    """
    columns: list[LabelColumn] = []
    conflicts: dict[tuple[str, str], str] = {}
    labelled_by: dict[str, tuple[str, str]] = {}
    for key in sorted(policies, key=lambda key: (policies[key][0].created, key)):
        policy, wanted = policies[key]
        columns += [column for column in wanted if column.key == policy.name]
        prefixed = [column for column in wanted if column.key.startswith(f"{PREFIX}{policy.name}/")]
        first = labelled_by.setdefault(policy.name, key) if prefixed else key
        if first != key:
            conflicts[key] = (
                f"policy {'/'.join(first)} has the same name, is older, and sets the labels instead"
            )
            continue
        columns += prefixed
        mixed = [column.key for column in prefixed if column.conflicting]
        if mixed:
            conflicts[key] = f"rules with different operators set {', '.join(mixed)}; it is omitted there"
    return LabelAssignment(merge_label_columns(columns), conflicts)
