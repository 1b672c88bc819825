"""Node labels with the verdicts of policies, for native mode: a stock kube-scheduler enforces them. No I/O.

The admission policies of `deploy/native.yaml` add a requirement for the label of a policy to the pods that it selects:
`NotIn [violating]` to the node affinity, or `ok` to the node selector if the policy rejects nodes without a value. So
every node that the policy rejects, for whatever reason, is `violating`. A node that passes is `ok` only if a pod may
require that: a label on every node costs a write per node and policy, and space in every Node object. A policy with
`enforcement: Preferred` adds a preference for nodes that are not `violating`.
"""

from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

import numpy as np

from nodewise.policies.node_label_ownership import VERDICT_LABEL_PREFIX
from nodewise.policies.node_labels import LabelColumn
from nodewise.policies.placement_policy import Policy
from nodewise.policies.rule_evaluation import Codes
from nodewise.policies.taspolicy_parser import VIOLATING

OK: Final = "ok"


class LabelledPolicy(NamedTuple):
    """A policy, and what decides about its label."""

    policy: Policy
    codes: Codes | None
    """By node number, 0 where the policy accepts the node; None if it rejects no node, or has no label."""
    awaits_metrics: bool
    """Whether a metric has neither values nor a failure yet, so that the verdict is not meaningful."""


def label_key(uid: str) -> str:
    """The key of the label of a policy. It follows from the policy alone, so that pods keep it if the rules change."""
    return VERDICT_LABEL_PREFIX + uid


def rejects_missing(policy: Policy) -> bool:
    """Whether pods of the policy require `ok`. The expressions in `deploy/native.yaml` say the same."""
    return not policy.only_prefers and any(
        all(part.when_missing == "reject" for part in rule.parts) for rule in policy.avoid
    )


def verdict_labels(
    policies: Iterable[LabelledPolicy],
    size: int,
    required_ok: frozenset[tuple[str, str]] = frozenset(),
    accepting: frozenset[str] = frozenset(),
) -> Generator[None, None, dict[str, LabelColumn]]:
    """By key, the labels of the policies that reject nodes and are within the budget (`node_label_budget`).

    `size` is the number of nodes, with the unknown node. `required_ok` (`keys_with_ok`) are the keys of which
    unscheduled pods require the value `ok`, since the policy was another one when they were created. `accepting` are
    the keys of policies that reject no node now, and whose pods must not wait for ever. Yields between policies.
    """
    columns: dict[str, LabelColumn] = {}
    for labelled in policies:
        yield
        policy, codes = labelled.policy, labelled.codes
        key = label_key(policy.uid)
        if codes is None:
            if key in accepting:
                columns[key] = _accepting_column(key, size)._replace(namespaces=policy.namespaces)
        elif not policy.no_verdict_label:
            has_ok = rejects_missing(policy) or (policy.namespace, key) in required_ok
            columns[key] = _column(key, labelled, codes, has_ok=has_ok)
    return columns


def _column(key: str, labelled: LabelledPolicy, codes: Codes, *, has_ok: bool) -> LabelColumn:
    namespaces = labelled.policy.namespaces
    if labelled.awaits_metrics:
        return _held_column(key, len(codes))._replace(namespaces=namespaces)
    accepted = np.int16(2 if has_ok else 0)
    values = np.where(codes > 0, np.int16(1), accepted)
    return LabelColumn(key, (VIOLATING, OK), values, np.zeros(len(codes), np.bool_), namespaces=namespaces)


def _accepting_column(key: str, size: int) -> LabelColumn:
    """Every node is `ok`."""
    return LabelColumn(key, (VIOLATING, OK), np.full(size, 2, np.int16), np.zeros(size, np.bool_))


def _held_column(key: str, size: int) -> LabelColumn:
    """Labels that stay as they are."""
    return LabelColumn(key, (VIOLATING, OK), np.zeros(size, np.int16), np.ones(size, np.bool_))
