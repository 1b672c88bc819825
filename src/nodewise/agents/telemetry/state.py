"""Policies and samples in, the telemetry slot of the View out; the same code online and offline."""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from nodewise.agent import ObjectKey, Want, World
from nodewise.agents.telemetry import policy as policies
from nodewise.agents.telemetry import ranks, reasons, rules
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.policy import Policy, PolicyObject, Rule
from nodewise.metrics import column as columns
from nodewise.metrics.column import Column
from nodewise.metrics.index import NodeIndex
from nodewise.metrics.series import Series

POLICIES = "taspolicies"
"""The key of the policies in `World.objects`."""


class PolicySlot(NamedTuple):
    """One policy, decided over all nodes."""

    policy: Policy
    judged: rules.Judged | None
    """None where the policy filters nothing."""
    filtering: tuple[rules.Measured, ...]
    ranks: ranks.Ranks | None
    """Dense ranks by node number; None where the policy prefers nothing."""
    preferring: rules.Measured | None


Slot = Mapping[ObjectKey, PolicySlot]
"""By namespace and name of the policy."""


class TelemetryState:
    """Remembers what was read and laid out, so that only what changed is computed again."""

    def __init__(self, options: TelemetryOptions, max_age_s: float) -> None:
        self._reject_missing = options.when_missing == "reject"
        self._max_age_s = max_age_s
        self._read: dict[ObjectKey, tuple[PolicyObject, Policy]] = {}
        self._columns: dict[str, tuple[Series, NodeIndex, Column]] = {}

    def policies(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[ObjectKey, Policy]:
        """All policies as they are read, problems included."""
        found: dict[ObjectKey, tuple[PolicyObject, Policy]] = {}
        for key, given in objects.get(POLICIES, {}).items():
            known = self._read.get(key)
            found[key] = known if known and known[0] is given else (given, policies.read(given))
        self._read = found
        return {key: policy for key, (_, policy) in found.items()}

    def wants(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[Want]:
        """The metrics that usable rules name."""
        return frozenset(
            Want(rule.metric, rule.query)
            for policy in self.policies(objects).values()
            for strategy in policy.strategies.values()
            for rule in strategy.rules
            if not rule.unusable
        )

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[str, tuple[str, ...]]:
        """What is wrong with policies, by `namespace/name`."""
        return {
            "/".join(key): tuple(map(str, policy.problems))
            for key, policy in self.policies(objects).items()
            if policy.problems
        }

    def slot(self, world: World) -> Generator[None, None, Slot]:
        """Judge and rank all nodes by every policy."""
        slot: dict[ObjectKey, PolicySlot] = {}
        memo: dict[Rule, rules.Measured] = {}
        for key, policy in self.policies(world.objects).items():
            slot[key] = self._decide(policy, world, memo)
            yield
        self._columns = {
            metric: kept for metric, kept in self._columns.items() if metric in world.metrics.series
        }
        return slot

    def _decide(self, policy: Policy, world: World, memo: dict[Rule, rules.Measured]) -> PolicySlot:
        filtering = tuple(self._measured(rule, world, memo) for rule in policy.rules("dontschedule"))
        # Only the first rule of scheduleonmetric counts, as in the older system.
        first = next(iter(policy.rules("scheduleonmetric")), None)
        preferring = self._measured(first, world, memo) if first and not first.unusable else None
        ranked = (
            ranks.dense(preferring.rule.operator, preferring.column, preferring.states)
            if preferring
            else None
        )
        return PolicySlot(policy, self._judge(policy, filtering, world), filtering, ranked, preferring)

    def _judge(
        self, policy: Policy, filtering: tuple[rules.Measured, ...], world: World
    ) -> rules.Judged | None:
        """The verdicts of `dontschedule`; a rule that cannot be answered rejects every node."""
        if not filtering:
            return None
        name = f"{policy.namespace}/{policy.name}"
        size = len(world.nodes) + 1
        for item in filtering:
            if item.rule.unusable:
                return rules.reject_all(size, reasons.RuleUnusable(name, item.rule.unusable))
            if item.rule.metric not in world.metrics.series:
                return rules.reject_all(size, reasons.NeverFetched(name, item.rule.metric))
        judge = rules.all_of if policy.strategies["dontschedule"].all_of else rules.any_of
        return judge(name, filtering)

    def _measured(self, rule: Rule, world: World, memo: dict[Rule, rules.Measured]) -> rules.Measured:
        """The rule over all nodes; equal rules of several policies are computed once."""
        found = memo.get(rule)
        if found is None:
            column = self._column(rule.metric, world)
            found = memo[rule] = rules.measure(
                rule, column, world.now, self._max_age_s, reject_missing=self._reject_missing
            )
        return found

    def _column(self, metric: str, world: World) -> Column:
        series = world.metrics.series.get(metric)
        if series is None:
            return columns.empty(world.nodes)
        known = self._columns.get(metric)
        if known and known[0] is series and known[1] is world.nodes:
            return known[2]
        laid_out = columns.lay_out(series, world.nodes)
        self._columns[metric] = (series, world.nodes, laid_out)
        return laid_out
