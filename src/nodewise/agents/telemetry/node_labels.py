"""Which node labels policies want: decided over all nodes as arrays, then told node by node. No I/O.

A label changes only on fresh evidence. Where a rule that has a say lacks its value, a label of ours stays as it is.
Key forms: Telemetry Aware Scheduling 0.7, `pkg/strategies/deschedule` and `pkg/strategies/labeling`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.telemetry.policy import Policy, is_label_part
from nodewise.agents.telemetry.rule_evaluation import Measured

PREFIX: Final = "telemetry.aware.scheduling."
VIOLATING: Final = "violating"
MOST_PREFIX: Final = 253
"""Characters of a label key before its `/` (apimachinery v0.36 `pkg/util/validation`)."""

Labels = Mapping[str, str]
Mask = NDArray[np.bool_]


class LabelColumn(NamedTuple):
    """One label key over all nodes, by node number."""

    key: str
    values: tuple[str, ...]
    codes: NDArray[np.int16]
    """By fresh evidence: 0 no label, k the value `values[k - 1]`."""
    hold: Mask
    """Where evidence is missing that might say otherwise: a label of ours stays as it is."""
    conflicting: bool = False
    """Whether rules with different operators claim the key on some node; there it gets no label."""


def deschedule(policy: Policy, measured: Sequence[Measured]) -> LabelColumn | None:
    """The label `<policy>=violating`; None for a policy that does not deschedule."""
    if not measured or not is_label_part(policy.name):
        return None  # a key that the API server refuses would take the node's other labels with it
    broken, unknown = _broken(measured, all_of=policy.strategies["deschedule"].all_of)
    return LabelColumn(policy.name, (VIOLATING,), broken.astype(np.int16), unknown)


def labeling(policy: Policy, measured: Sequence[Measured]) -> tuple[LabelColumn, ...]:
    """The labels `telemetry.aware.scheduling.<policy>/<name>`, one column a name."""
    if not measured or len(PREFIX + policy.name) > MOST_PREFIX:
        return ()
    claims: dict[str, list[tuple[Measured, str]]] = {}
    for item in measured:
        for text in item.rule.labels:
            name, separator, value = text.partition("=")
            if separator:
                claims.setdefault(name, []).append((item, value))
    applies, unknown = np.ones(len(measured[0].states), bool), np.zeros(len(measured[0].states), bool)
    if policy.strategies["labeling"].all_of:
        applies, unknown = _broken(measured, all_of=True)
    return tuple(
        _chosen(f"{PREFIX}{policy.name}/{name}", claimed, applies, unknown)
        for name, claimed in claims.items()
    )


def _broken(measured: Sequence[Measured], *, all_of: bool) -> tuple[Mask, Mask]:
    """Where the strategy is broken on fresh evidence, and where missing values leave that open."""
    fresh = np.array([item.known for item in measured])
    broken = np.array([item.broken for item in measured]) & fresh
    kept = fresh & ~broken
    surely: Mask = broken.all(axis=0) if all_of else broken.any(axis=0)
    surely_not: Mask = kept.any(axis=0) if all_of else kept.all(axis=0)
    return surely, ~surely & ~surely_not


def _chosen(key: str, claimed: Sequence[tuple[Measured, str]], applies: Mask, unknown: Mask) -> LabelColumn:
    """Of the broken rules of one name the extreme value wins, the first among equals; unlike operators exclude
    each other.
    """
    values = tuple(value for _, value in claimed)
    size = len(applies)
    winner = np.zeros(size, np.int16)
    clash = np.zeros(size, bool)
    best = claimed[0][0].column.values.copy()
    operator = np.full(size, "", object)
    for position, (item, _) in enumerate(claimed, 1):
        broken = item.broken & item.known & applies
        clash |= broken & (winner > 0) & (operator != item.rule.operator)
        takes = broken & ((winner == 0) | _beats(item, best))
        winner[takes] = position
        best = np.where(takes, item.column.values, best)
        operator[takes] = item.rule.operator
    winner[clash] = 0
    stale = ~np.all([item.known for item, _ in claimed], axis=0)
    return LabelColumn(key, values, winner, stale | unknown, bool(clash.any()))


def _beats(item: Measured, best: NDArray[np.int64] | NDArray[np.object_]) -> Mask:
    """Where the rule's value is more extreme in its operator's sense than the best so far."""
    if item.rule.operator == "GreaterThan":
        return np.asarray(item.column.values > best, bool)
    if item.rule.operator == "LessThan":
        return np.asarray(item.column.values < best, bool)
    return np.zeros(len(best), bool)


def united(columns: Iterable[LabelColumn]) -> dict[str, LabelColumn]:
    """One column a key. Policies of one name in several namespaces share `<policy>=violating`: it is there while
    any of them is violated.
    """
    by_key: dict[str, LabelColumn] = {}
    for column in columns:
        other = by_key.get(column.key)
        if other is None:
            by_key[column.key] = column
        else:
            codes = np.maximum(column.codes, other.codes)
            by_key[column.key] = other._replace(codes=codes, hold=(column.hold | other.hold) & (codes == 0))
    return by_key


def desired(
    columns: Mapping[str, LabelColumn], nodes: NodeIndex, owned: Mapping[str, Labels]
) -> dict[str, dict[str, str]]:
    """By node name: the labels that we want it to have, all of them; nodes without any are left out.

    `owned` are the labels that we have there now.
    """
    wanted: dict[str, dict[str, str]] = {}
    known = len(nodes)
    for key, column in columns.items():
        positions = np.flatnonzero(column.codes[:known])
        names = nodes.names[positions].tolist()
        for name, code in zip(names, column.codes[positions].tolist(), strict=True):
            wanted.setdefault(name, {})[key] = column.values[code - 1]
    _hold(wanted, columns, nodes, owned)
    return wanted


def _hold(
    wanted: dict[str, dict[str, str]],
    columns: Mapping[str, LabelColumn],
    nodes: NodeIndex,
    owned: Mapping[str, Labels],
) -> None:
    """Keep what we own where the evidence for a change is missing, which is seldom anywhere."""
    known = len(nodes)
    holding = {key: column.hold for key, column in columns.items() if column.hold[:known].any()}
    if not holding:
        return
    names = [name for name in owned if name in nodes]
    for name, number in zip(names, nodes.numbers(names).tolist(), strict=True):
        for key in owned[name].keys() & holding.keys():
            if holding[key][number]:
                wanted.setdefault(name, {})[key] = owned[name][key]


class Claims(NamedTuple):
    """What all policies together want of node labels."""

    columns: dict[str, LabelColumn]
    """By label key."""
    clashes: dict[tuple[str, str], str]
    """By namespace and name of a policy: why some of its labels are not written."""


def claims(decided: Mapping[tuple[str, str], tuple[Policy, Sequence[LabelColumn]]]) -> Claims:
    """The columns that count.

    `<policy>=violating` is shared by policies of one name; of two that label, the older one does.
    """
    columns: list[LabelColumn] = []
    clashes: dict[tuple[str, str], str] = {}
    labelled_by: dict[str, tuple[str, str]] = {}
    for key in sorted(decided, key=lambda key: (decided[key][0].created, key)):
        policy, wanted = decided[key]
        columns += [column for column in wanted if column.key == policy.name]
        prefixed = [column for column in wanted if column.key.startswith(f"{PREFIX}{policy.name}/")]
        first = labelled_by.setdefault(policy.name, key) if prefixed else key
        if first != key:
            clashes[key] = f"policy {'/'.join(first)} has the same name, is older, and labels in its stead"
            continue
        columns += prefixed
        unlike = [column.key for column in prefixed if column.conflicting]
        if unlike:
            clashes[key] = f"rules with different operators claim {', '.join(unlike)}; it is left out there"
    return Claims(united(columns), clashes)
