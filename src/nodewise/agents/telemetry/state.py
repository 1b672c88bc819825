"""Policies and samples in, the telemetry slot of the snapshot out; the same code online and offline."""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from nodewise.agent import ClusterState, Inputs, MetricRequest, ObjectKey, StateBuilder
from nodewise.agents.telemetry import node_labels, rank_scores, reasons, rule_evaluation, rule_suspension
from nodewise.agents.telemetry import policy as policies
from nodewise.agents.telemetry.namespace_trust import NAMESPACES, Trust
from nodewise.agents.telemetry.node_labels import LabelColumn
from nodewise.agents.telemetry.options import TelemetryOptions
from nodewise.agents.telemetry.policy import Policy, PolicyObject, Rule
from nodewise.metrics import column as columns
from nodewise.metrics.column import Column
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.series import Series, State

POLICIES = "taspolicies"
"""The key of the policies in `World.objects`."""


class PolicyState(NamedTuple):
    """One policy, decided over all nodes."""

    policy: Policy
    judged: rule_evaluation.Judged | None
    """None where the policy filters nothing."""
    filtering: tuple[rule_evaluation.Measured, ...]
    ranks: rank_scores.Ranks | None
    """Dense ranks by node number; None where the policy prefers nothing."""
    preferring: rule_evaluation.Measured | None
    labels: tuple[LabelColumn, ...] = ()
    """The node labels that the policy wants."""
    waits_for: Mapping[str, str] = {}
    """Metrics of its rules that count as never fetched, each with the cause; empty where only the log has it."""
    suspended: tuple[Rule, ...] = ()
    """Its rules that lost most of their nodes at once; their last verdicts hold."""


TelemetryState = Mapping[ObjectKey, PolicyState]
"""By namespace and name of the policy."""


class _LaidOut(NamedTuple):
    """A metric by node number, kept until its values or the nodes change."""

    series: Series
    nodes: NodeIndex
    column: Column
    cause: str
    """Why no node has a value; empty if one has."""


class TelemetryStateBuilder(StateBuilder[TelemetryState]):
    """Remembers what was read and laid out, so that only what changed is computed again."""

    inputs = Inputs(frozenset({POLICIES, NAMESPACES}))

    def __init__(self, options: TelemetryOptions, max_age_s: float) -> None:
        self._reject_missing = options.when_missing == "reject"
        self._max_age_s = max_age_s
        self._trust = Trust(options, max_age_s)
        self._read: dict[ObjectKey, tuple[PolicyObject, bool, Policy]] = {}
        """By key: the object, whether its namespace is trusted, and the policy that follows from both."""
        self._columns: dict[str, _LaidOut] = {}
        self._memories: dict[Rule, rule_suspension.Memory] = {}

    def policies(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[ObjectKey, Policy]:
        """All policies with what of them counts, problems included."""
        policies_by_key: dict[ObjectKey, tuple[PolicyObject, bool, Policy]] = {}
        namespaces = self._trust.namespaces(objects)
        for key, policy_object in objects.get(POLICIES, {}).items():
            is_trusted = self._trust.is_trusted(key[0], namespaces)
            known = self._read.get(key)
            if known is None or known[0] is not policy_object or known[1] != is_trusted:
                policy = policies.read(policy_object)
                known = (policy_object, is_trusted, policy if is_trusted else self._trust.restricted(policy))
            policies_by_key[key] = known
        self._read = policies_by_key
        return {key: policy for key, (_, _, policy) in policies_by_key.items()}

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:
        """The metrics that usable rules name."""
        return frozenset(
            rule.metric_request(self._max_age_s)
            for policy in self.policies(objects).values()
            for strategy in policy.strategies.values()
            for rule in strategy.rules
            if not rule.unusable
        )

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[str, tuple[str, ...]]:
        """What is wrong with policies, by `namespace/name`."""
        return {
            "/".join(key): (*map(str, policy.problems), *filter(None, [policy.not_trusted]))
            for key, policy in self.policies(objects).items()
            if policy.problems or policy.not_trusted
        }

    def build(self, cluster_state: ClusterState) -> Generator[None, None, TelemetryState]:
        """Judge and rank all nodes by every policy."""
        agent_state: dict[ObjectKey, PolicyState] = {}
        memo: dict[Rule, rule_evaluation.Measured] = {}
        policies_ = self.policies(cluster_state.objects)
        metric_requests = (rule.metric_request() for policy in policies_.values() for rule in _rules(policy))
        for metric_request in {
            metric_request.key: metric_request for metric_request in metric_requests
        }.values():
            yield from self._lay_out(metric_request, cluster_state)
            yield
        for key, policy in policies_.items():
            agent_state[key] = yield from self._decide(policy, cluster_state, memo)
            yield
        self._memories = {rule: memory for rule, memory in self._memories.items() if rule in memo}
        self._columns = {
            metric: kept for metric, kept in self._columns.items() if metric in cluster_state.metrics.series
        }
        return agent_state

    def _decide(
        self, policy: Policy, cluster_state: ClusterState, memo: dict[Rule, rule_evaluation.Measured]
    ) -> Generator[None, None, PolicyState]:
        filtering = yield from self._all_measured(policy.rules("dontschedule"), cluster_state, memo)
        # Only the first rule of scheduleonmetric counts, as in the older system.
        first = [rule for rule in policy.rules("scheduleonmetric")[:1] if not rule.unusable]
        preferring = next(iter((yield from self._all_measured(first, cluster_state, memo))), None)
        ranked = (
            rank_scores.dense(preferring.rule.operator, preferring.column, preferring.states)
            if preferring
            else None
        )
        yield
        wanted = yield from self._labels(policy, cluster_state, memo)
        judged = self._judge(policy, tuple(filtering), cluster_state)
        yield
        return PolicyState(
            policy,
            judged,
            tuple(filtering),
            ranked,
            preferring,
            tuple(wanted),
            self._waits_for(policy, cluster_state),
            tuple(rule for rule in _rules(policy) if rule in memo and self._memories[rule].suspended),
        )

    def _labels(
        self, policy: Policy, cluster_state: ClusterState, memo: dict[Rule, rule_evaluation.Measured]
    ) -> Generator[None, None, list[LabelColumn]]:
        """What the policy's `deschedule` and `labeling` want; a rule that cannot be evaluated has no say."""
        measured: dict[str, list[rule_evaluation.Measured]] = {}
        for name in ("deschedule", "labeling"):
            listed = policy.rules(name)
            usable = [rule for rule in listed if not rule.unusable]
            # of rules that must all be broken, one that nobody can evaluate is not
            void = len(usable) < len(listed) and policy.strategies[name].all_of
            measured[name] = yield from self._all_measured(() if void else usable, cluster_state, memo)
        descheduling = node_labels.deschedule(policy, measured["deschedule"])
        wanted = [] if descheduling is None else [descheduling]
        for column in node_labels.labeling(policy, measured["labeling"]):
            yield
            wanted.append(column)
        return wanted

    def _judge(
        self, policy: Policy, filtering: tuple[rule_evaluation.Measured, ...], cluster_state: ClusterState
    ) -> rule_evaluation.Judged | None:
        """The verdicts of `dontschedule`; a rule that cannot be answered rejects every node."""
        if not filtering:
            return None
        name = f"{policy.namespace}/{policy.name}"
        size = len(cluster_state.nodes) + 1
        for item in filtering:
            if item.rule.unusable:
                reason = reasons.RuleUnusable(name, item.rule.unusable, item.rule.remedy)
                return rule_evaluation.reject_all(size, reason)
            cause = self._unfetched(item.rule, cluster_state)
            if cause is not None:
                return rule_evaluation.reject_all(
                    size, reasons.NeverFetched(name, item.rule.metric_request().name, cause)
                )
        judge = rule_evaluation.all_of if policy.strategies["dontschedule"].all_of else rule_evaluation.any_of
        return judge(name, filtering)

    def _all_measured(
        self, listed: Iterable[Rule], cluster_state: ClusterState, memo: dict[Rule, rule_evaluation.Measured]
    ) -> Generator[None, None, list[rule_evaluation.Measured]]:
        measured_rules: list[rule_evaluation.Measured] = []
        for rule in listed:
            measured = yield from self._measured(rule, cluster_state, memo)
            measured_rules.append(measured)
        return measured_rules

    def _measured(
        self, rule: Rule, cluster_state: ClusterState, memo: dict[Rule, rule_evaluation.Measured]
    ) -> Generator[None, None, rule_evaluation.Measured]:
        """The rule over all nodes; equal rules of several policies are computed once."""
        evaluated = memo.get(rule)
        if evaluated is None:
            column = self._column(rule.metric_request().key, cluster_state)
            measured = rule_evaluation.measure(
                rule, column, cluster_state.now, self._max_age_s, reject_missing=self._reject_missing
            )
            yield
            evaluated = memo[rule] = self._held(measured, cluster_state)
            yield
        return evaluated

    def _held(
        self, measured: rule_evaluation.Measured, cluster_state: ClusterState
    ) -> rule_evaluation.Measured:
        """With the verdicts of before, where the rule lost most of its nodes at once."""
        rule = measured.rule
        max_age_s = self._max_age_s if rule.max_age_s is None else rule.max_age_s
        before = self._memories.get(rule)
        memory = rule_suspension.remember(before, measured, cluster_state.nodes, cluster_state.now, max_age_s)
        self._memories[rule] = memory
        return rule_suspension.held(measured, memory)

    def _waits_for(self, policy: Policy, cluster_state: ClusterState) -> dict[str, str]:
        causes = {rule.metric_request().key: self._unfetched(rule, cluster_state) for rule in _rules(policy)}
        return {key: cause for key, cause in sorted(causes.items()) if cause is not None}

    def _unfetched(self, rule: Rule, cluster_state: ClusterState) -> str | None:
        """Why the rule's metric counts as never fetched; None if it does not.

        A metric that gives no node a fresh value counts as never fetched, unless the rule had values and is suspended.
        A rule that loses the last of its fresh values is suspended, so values that are all stale were never fresh.
        """
        key = rule.metric_request().key
        laid_out = self._columns.get(key)
        if laid_out is None:
            return cluster_state.metrics.causes.get(key, "")
        memory = self._memories.get(rule)
        if memory is not None and memory.suspended:
            return None
        if not laid_out.cause and memory is not None and len(cluster_state.nodes) and not memory.has_fresh:
            return "every value is older than max_age"
        return laid_out.cause or None

    def _lay_out(
        self, metric_request: MetricRequest, cluster_state: ClusterState
    ) -> Generator[None, None, None]:
        """Have the metric's column, the one of before where neither its values nor the nodes are others."""
        metric = metric_request.key
        series = cluster_state.metrics.series.get(metric)
        known = self._columns.get(metric)
        if series is None:
            self._columns.pop(metric, None)
        elif known is None or known.series is not series or known.nodes is not cluster_state.nodes:
            column = yield from columns.lay_out(series, cluster_state.nodes)
            is_healthy = metric_request.empty_is_healthy and not (series.samples or series.invalid)
            cause = "" if is_healthy else missing_cause(series, cluster_state.nodes, column)
            self._columns[metric] = _LaidOut(series, cluster_state.nodes, column, cause)

    def _column(self, metric: str, cluster_state: ClusterState) -> Column:
        return self._columns[metric].column if metric in self._columns else columns.empty(cluster_state.nodes)


def _rules(policy: Policy) -> list[Rule]:
    """All usable rules, each once."""
    every = (rule for strategy in policy.strategies.values() for rule in strategy.rules)
    return list(dict.fromkeys(rule for rule in every if not rule.unusable))


def missing_cause(series: Series, nodes: NodeIndex, column: Column) -> str:
    """Why no node has a value; empty if one has, or if there is no node."""
    if not len(nodes) or (column.initial_states == State.FRESH).any():
        return ""
    bad = next((why for node, why in series.invalid.items() if node in nodes), "")
    return bad or "no value is of a node"
