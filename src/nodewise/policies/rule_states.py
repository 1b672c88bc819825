"""The verdicts of the rules of `avoid`, with the states of nodes under `for`, `release` and `keepFor`. No I/O.

Each replica computes its own states from its own values (`hysteresis`). The leader writes its states into the status of
the policy, and every replica, also the leader, rejects the nodes that the status says. So replicas do not disagree, and
a restart or a new leader continues with the same states. Fails closed: a node that breaks the rule is also rejected if
the status does not say so a minute after `for` has passed, because no leader writes it. Before the first status, and
without a cluster, the own states apply.
"""

import math
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, NodeIndex
from nodewise.metrics.series import ValueState
from nodewise.policies import hysteresis, policy_status_fields, rule_evaluation
from nodewise.policies.hysteresis import (
    BROKEN,
    PASSING,
    REJECTED,
    RELEASED,
    UNKNOWN,
    FlapHistory,
    Levels,
    NodeStates,
    RecordedStates,
    RulePart,
)
from nodewise.policies.placement_policy import AvoidRule, Comparison, Policy, PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, decode_status
from nodewise.policies.policy_status_fields import PlacementPolicyStatus
from nodewise.policies.rule_evaluation import RuleEvaluationCache

Mask = NDArray[np.bool_]

_OVERDUE_S: Final = 60.0
"""How long after `for` a replica waits for the leader. A new leader takes up to 8 s, and a write some seconds."""


class RuleVerdict(NamedTuple):
    """One rule of `avoid` over all nodes, by node number."""

    rejected: Mask
    """Which nodes it rejects by their values."""
    flaps: FlapHistory
    nodes: NodeIndex
    states: NodeStates | None = None
    """The own states, which the leader writes; None for a rule without states, and without any value yet."""
    unlisted: int = 0
    """Nodes that a status rejects without listing them, before the first values."""


class _Key(NamedTuple):
    """What identifies a rule. Equal rules of several policies are one, unless they have states."""

    parts: tuple[Comparison, ...]
    """Without `release`, so that a node stays rejected if it is edited, like the times."""
    policy: PolicyKey | None = None
    uid: str = ""
    occurrence: int = 0
    """Among rules of the policy with equal parts."""


class RuleStates:
    """The states of all rules. Each build calls `begin`, `evaluate` for each policy, and `finish`."""

    def __init__(self) -> None:
        self._known: dict[_Key, RuleVerdict] = {}
        """Of the last build."""
        self._new: dict[_Key, RuleVerdict] = {}
        """Of the build under way."""

    def begin(self) -> None:
        """Forget what an interrupted build has evaluated."""
        self._new = {}

    def finish(self) -> None:
        """Forget the rules that are gone."""
        self._known, self._new = self._new, {}

    def evaluate(
        self, policy: Policy, rules: RuleEvaluationCache, cluster_state: ClusterState, *, is_known: bool
    ) -> Generator[None, None, tuple[RuleVerdict, ...]]:
        """The verdicts of the rules of `avoid`, all of which `rules` has evaluated.

        Without `is_known` a metric has no values yet, and all states stay as they are.
        """
        recorded = {}
        if any(rule.has_states for rule in policy.avoid):
            policy_objects = cluster_state.objects[RESOURCES[policy.key.kind].plural]
            policy_object: PolicyObject = policy_objects[policy.namespace, policy.name]
            status = decode_status(policy_object, PlacementPolicyStatus)
            recorded = dict(_decode_states(status, cluster_state.nodes))
        verdicts = []
        for rule, key, record_key in _identify(policy):
            if key not in self._new:
                yield
                record = recorded.get(record_key)
                self._new[key] = self._evaluate_rule(
                    rule, key, record, rules, cluster_state, is_known=is_known
                )
            verdicts.append(self._new[key])
        return tuple(verdicts)

    def _evaluate_rule(
        self,
        rule: AvoidRule,
        key: _Key,
        record: RecordedStates | None,
        rules: RuleEvaluationCache,
        cluster_state: ClusterState,
        *,
        is_known: bool,
    ) -> RuleVerdict:
        before, nodes = self._known.get(key), cluster_state.nodes
        if rule.has_states:
            sample = hysteresis.levels([_rule_part(part, rules) for part in rule.parts]) if is_known else None
            verdict = _verdict_by_states(rule, before, record, sample, cluster_state)
        else:
            broken = [rules.evaluated[part].broken for part in rule.parts]
            rejected = broken[0] if len(broken) == 1 else np.logical_and.reduce(broken)
            verdict = RuleVerdict(rejected, before.flaps if before else FlapHistory(), nodes)
        if before is None or not is_known:
            return verdict
        last = align(before.rejected, np.False_, before.nodes, nodes)
        return verdict._replace(flaps=verdict.flaps.update(last, verdict.rejected, nodes, cluster_state.now))


def _identify(policy: Policy) -> Iterator[tuple[AvoidRule, _Key, tuple[str, int]]]:
    """The rules of `avoid`, each with its text and occurrence in the status."""
    counts: Counter[Any] = Counter()
    for rule in policy.avoid:
        if not rule.has_states:
            yield rule, _Key(rule.parts), ("", 0)
            continue
        parts = tuple(msgspec.structs.replace(part, release=None) for part in rule.parts)
        text = policy_status_fields.rule_expression(rule, policy.key.kind)
        yield rule, _Key(parts, policy.key, policy.uid, counts[parts]), (text, counts[text])
        counts.update([parts, text])


def _decode_states(
    status: PlacementPolicyStatus, nodes: NodeIndex
) -> Iterator[tuple[tuple[str, int], RecordedStates]]:
    counts: Counter[str] = Counter()
    for rule in status.rules:
        if rule.node_states is None:
            continue
        try:
            states = hysteresis.decode(rule.node_states, rule.unlisted_nodes, nodes)
        except ValueError:
            continue
        yield (rule.expression, counts[rule.expression]), states
        counts[rule.expression] += 1


def _rule_part(part: Comparison, rules: RuleEvaluationCache) -> RulePart:
    evaluation = rules.evaluated[part]
    inputs = evaluation.inputs
    known = evaluation.known
    broken = held = evaluation.broken & known
    if part.release is not None:
        fresh = inputs.states == ValueState.FRESH
        held = fresh & rule_evaluation.compare(part.operator, inputs.column.values, part.release)
        held = held if evaluation.agreeing is None else held | evaluation.agreeing
    is_held = rules.is_suspended(part) or inputs.column.is_incomplete
    missing_releases = np.array(part.when_missing != "reject" and not is_held)
    if missing_releases and not known.all():
        missing_releases = ~rules.gaps(part)
    return RulePart(known, broken, held, missing_releases)


def _verdict_by_states(
    rule: AvoidRule,
    before: RuleVerdict | None,
    record: RecordedStates | None,
    sample: Levels | None,
    cluster_state: ClusterState,
) -> RuleVerdict:
    """The verdict of a rule with states; `record` are those in the status."""
    nodes, now = cluster_state.nodes, cluster_state.now
    flaps = before.flaps if before else FlapHistory()
    states = _start_states(before, record, sample, nodes, now)
    if states is None or sample is None:
        shown = record or RecordedStates(hysteresis.initial_states(len(nodes) + 1), 0)
        own = states or (record.states if record else None)
        return RuleVerdict(
            hysteresis.rejects(shown.states), flaps, nodes, own, 0 if states else shown.unlisted
        )
    states = hysteresis.advance(states, sample, rule.times, now)
    own_rejected = hysteresis.rejects(states)
    if record is None:
        return RuleVerdict(own_rejected, flaps, nodes, states)
    rejected = hysteresis.rejects(record.states)
    if record.unlisted:
        rejected |= own_rejected & (record.states.phases == PASSING)
    is_kept_from_passing = (sample == BROKEN) | (sample == UNKNOWN)
    rejected |= (states.phases == REJECTED) & is_kept_from_passing & (now - states.since >= _OVERDUE_S)
    return RuleVerdict(rejected, flaps, nodes, states)


def _start_states(
    before: RuleVerdict | None,
    record: RecordedStates | None,
    sample: Levels | None,
    nodes: NodeIndex,
    now: float,
) -> NodeStates | None:
    """The states before a sample: those of the last build, or of the status after a start; None before any sample.

    Fails closed: if the status does not list all rejected nodes, all others that are not released count as rejected.
    """
    if before is not None and before.states is not None and not before.unlisted:
        phases = align(before.states.phases, PASSING, before.nodes, nodes)
        since = align(before.states.since, np.uint32(0), before.nodes, nodes)
        if record is not None and before.nodes is not nodes:
            # nodes of a shard that another replica evaluated before
            is_new = np.zeros(len(nodes) + 1, bool)
            is_new[:-1] = before.nodes.numbers(nodes.known) == len(before.nodes)
            phases = np.where(is_new, record.states.phases, phases)
            since = np.where(is_new, record.states.since, since)
        return NodeStates(phases, since)
    if sample is None:
        return None
    if record is None:
        return hysteresis.initial_states(len(nodes) + 1)
    if not record.unlisted:
        return record.states
    may_be_rejected = (record.states.phases == PASSING) & (sample != RELEASED)
    phases = np.where(may_be_rejected, REJECTED, record.states.phases)
    return NodeStates(phases, np.where(may_be_rejected, np.uint32(math.ceil(now)), record.states.since))


def align(array: NDArray[Any], default: Any, before: NodeIndex, nodes: NodeIndex) -> NDArray[Any]:
    """An array by the node numbers of another index: new nodes have the default, deleted nodes are dropped."""
    if before is nodes:
        return array
    aligned = np.full(len(nodes) + 1, default)
    aligned[:-1] = array[before.numbers(nodes.known)]
    return aligned
