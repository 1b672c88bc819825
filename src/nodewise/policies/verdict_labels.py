"""Node labels with the verdicts of policies, for native mode, and what a pod requires of them: a stock kube-scheduler
enforces the verdicts. No I/O.

The admission policies of `deploy/native.yaml` add a requirement for the label of a policy to the pods that it selects:
`NotIn [violating]` to the node affinity, or `ok` to the node selector if the policy rejects nodes without a value. So
every node that the policy rejects, for whatever reason, is `violating`. A node that passes is `ok` only if a pod may
require that: a label on every node costs a write per node and policy, and space in every Node object. A policy with
`enforcement: Preferred` adds a preference for nodes that are not `violating`.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np

from nodewise.policies.node_labels import PREFERENCE_SUFFIX, VERDICT_LABEL_PREFIX, LabelColumn
from nodewise.policies.placement_policy import Policy
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.rule_evaluation import Codes

OK: Final = "ok"


class LabelledPolicy(NamedTuple):
    """A policy, and what decides about its label."""

    policy: Policy
    codes: Codes | None
    """By node number, 0 where the policy accepts the node; None if it rejects no node, or has no label."""
    awaits_metrics: bool
    """Whether a metric has neither values nor a failure yet, so that the verdict is not meaningful."""

    @property
    def label(self) -> str:
        """The key of its label."""
        return label_key(self.policy.uid)


def label_key(uid: str) -> str:
    """The key of the label of a policy. It follows from the policy alone, so that pods keep it if the rules change."""
    return VERDICT_LABEL_PREFIX + uid


def preference_label_key(uid: str) -> str:
    """The key of the label with the classes of preference of a policy (`preference_classes`)."""
    return f"{VERDICT_LABEL_PREFIX}{uid}{PREFERENCE_SUFFIX}"


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
    """By key, the labels of the policies that reject nodes and are within the budget (`policy_budgets`).

    `size` is the number of nodes, with the unknown node. `required_ok` (`keys_with_ok`) are the keys of which
    unscheduled pods require the value `ok`, since the policy was another one when they were created. `accepting` are
    the keys of policies that reject no node now, and whose pods must not wait for ever. Yields between policies.
    """
    columns: dict[str, LabelColumn] = {}
    for labelled in policies:
        yield
        policy, codes, key = labelled.policy, labelled.codes, labelled.label
        hold = False
        if codes is None:
            if key not in accepting:
                continue
            values = np.full(size, 2, np.int16)
        elif policy.no_verdict_label:
            continue
        elif labelled.awaits_metrics:
            values, hold = np.zeros(size, np.int16), True  # labels stay as they are
        else:
            has_ok = rejects_missing(policy) or (policy.namespace, key) in required_ok
            values = np.where(codes > 0, np.int16(1), np.int16(2 if has_ok else 0))
        columns[key] = LabelColumn(
            key, (VIOLATING, OK), values, np.full(size, hold), namespaces=policy.namespaces
        )
    return columns


MAX_KEYS: Final = 64
"""Keys of one pod that are read. The API server adds at most 31, but the pod itself can have thousands of others."""


class Expression(msgspec.Struct, frozen=True):
    """A requirement of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class Term(msgspec.Struct, frozen=True):
    """A node selector term. Nodes meet all its expressions."""

    matchExpressions: tuple[Expression, ...] | None = None  # noqa: N815 - the API's name
    matchFields: tuple[Expression, ...] | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct, frozen=True):
    nodeSelectorTerms: tuple[Term, ...] | None = None  # noqa: N815


class _Preference(msgspec.Struct, frozen=True):
    preference: Term | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: tuple[_Preference, ...] | None = None  # noqa: N815


class Affinity(msgspec.Struct, frozen=True):
    """The affinity of a pod."""

    nodeAffinity: _NodeAffinity | None = None  # noqa: N815


class NodeConstraints(msgspec.Struct, frozen=True):
    """The fields of a pod's spec that limit the nodes on which it may run by their labels."""

    affinity: Affinity | None = None
    nodeSelector: dict[str, str] | None = None  # noqa: N815


def _expressions(affinity: Affinity | None) -> Iterator[tuple[Expression, bool]]:
    """All expressions of the node affinity, each with whether it is preferred."""
    node_affinity = (affinity and affinity.nodeAffinity) or _NodeAffinity()
    selector = node_affinity.requiredDuringSchedulingIgnoredDuringExecution or _NodeSelector()
    preferences = node_affinity.preferredDuringSchedulingIgnoredDuringExecution or ()
    terms = [(term, False) for term in selector.nodeSelectorTerms or ()]
    terms += [(preferred.preference or Term(), True) for preferred in preferences]
    for term, is_preferred in terms:
        yield from ((expression, is_preferred) for expression in term.matchExpressions or ())


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class PodConditions(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None

    def unscheduled_message(self) -> str:
        """kube-scheduler's message about a pod for which it has no node; empty for other pods."""
        messages = (
            condition.message
            for condition in self.conditions or ()
            if (condition.type, condition.status) == ("PodScheduled", "False")
        )
        return next(messages, "")


class VerdictRequirement(NamedTuple):
    """What a pod requires, or prefers, of the label of one policy."""

    key: str
    needs_ok: bool
    """Whether nodes without the label do not meet it."""
    is_preferred: bool

    def accepts(self, value: str | None) -> bool:
        """Whether a node meets it, by the value of its label; None without the label."""
        return value == OK if self.needs_ok else value != VIOLATING


def verdict_requirements(spec: NodeConstraints) -> tuple[VerdictRequirement, ...]:
    """Each key once, up to `MAX_KEYS`: first those of the node selector, then of required, then of preferred affinity.

    The admission policies add the same to all terms of the affinity.
    """
    # a node without the label never meets a node selector
    requirements = [(key, True, False) for key in spec.nodeSelector or ()]
    for expression, is_preferred in _expressions(spec.affinity):
        # earlier versions of nodewise added `In [ok]` to the affinity
        is_ok_needed = expression.operator == "In" and expression.values == (OK,)
        requirements.append((expression.key, is_ok_needed, is_preferred))
    needs_ok: dict[tuple[str, bool], bool] = {}
    for key, is_ok_needed, is_preferred in requirements:
        known = (key, is_preferred)
        is_verdict = key.startswith(VERDICT_LABEL_PREFIX) and not key.endswith(PREFERENCE_SUFFIX)
        if is_verdict and (known in needs_ok or len(needs_ok) < MAX_KEYS):
            needs_ok[known] = needs_ok.get(known, False) or is_ok_needed
    return tuple(VerdictRequirement(key, ok, is_preferred) for (key, is_preferred), ok in needs_ok.items())


def required_verdicts(spec: NodeConstraints) -> list[VerdictRequirement]:
    """The requirements of a pod, without those that it only prefers."""
    return [requirement for requirement in verdict_requirements(spec) if not requirement.is_preferred]


def preferred_class_keys(spec: NodeConstraints) -> tuple[str, ...]:
    """The keys of the labels with classes of policies that a pod prefers, each once, up to `MAX_KEYS`."""
    keys = dict.fromkeys(
        expression.key
        for expression, is_preferred in _expressions(spec.affinity)
        if is_preferred and expression.key.startswith(VERDICT_LABEL_PREFIX)
    )
    return tuple(key for key in keys if key.endswith(PREFERENCE_SUFFIX))[:MAX_KEYS]
