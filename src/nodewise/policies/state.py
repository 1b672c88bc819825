"""Computes the telemetry agent's state from policies and metrics; the same code runs with and without a cluster."""

from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from nodewise.agent import ClusterState, Inputs, MetricRequest, NodeIndex, ObjectKey, StateBuilder
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.missing_values import NEVER_FETCHED, OUTDATED, Cause, NodesWithoutValues
from nodewise.metrics.series import Column, Series, States, Values, build_column, empty_column, is_near
from nodewise.policies import (
    native_mode_admission,
    node_labels,
    placement_policy_parser,
    policy_rejection_reasons,
    policy_selection,
    rule_evaluation,
    taspolicy_parser,
)
from nodewise.policies.node_labels import LabelColumn
from nodewise.policies.options import MaxAges, TelemetryOptions
from nodewise.policies.placement_policy import Comparison, Policy, PolicyKey, PolicyKind
from nodewise.policies.policy_budgets import NamespaceBudgets
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceTrust
from nodewise.policies.policy_objects import RESOURCES, PolicyObject, step_back_in_effect
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.rule_evaluation import AvoidVerdict, RuleEvaluation, RuleEvaluationCache
from nodewise.policies.rule_states import RuleStates, RuleVerdict


class _RankedValues(NamedTuple):
    """The ranks of all nodes by their values."""

    values: Values
    states: States
    ranks: rule_evaluation.Ranks


class _MetricColumn(NamedTuple):
    """A metric by node number."""

    series: Series
    nodes: NodeIndex
    column: Column
    cause: Cause | None
    """Why no node has a value; None if a node has one."""
    cause_on_some_nodes: Cause
    """Why nodes without a value have none, if other nodes have values."""
    without_values: NodesWithoutValues
    without_values_text: str
    """Which nodes have no value while others have one; empty for none."""


_SYNC_PERIOD_S: Final = RefreshOptions().sync_period_s
_FAILING_PERIODS: Final = 3
"""Refresh periods without a response after which a metric counts as failing. One request may fail."""
POLICIES = "taspolicies"
"""The key of the TASPolicies in `ClusterState.objects`."""
POLICY_KINDS: Final[Mapping[str, PolicyKind]] = {
    resource.plural: kind for kind, resource in RESOURCES.items()
}
"""The kinds of policies by their keys in `ClusterState.objects`."""


class EvaluatedPreference(NamedTuple):
    """A preference, evaluated over all nodes."""

    evaluation: RuleEvaluation
    ranks: rule_evaluation.Ranks
    """Dense ranks by node number."""
    weight: int


class SparseSamples(NamedTuple):
    """A metric whose samples are too far apart for the maximum age of its values."""

    metric: str
    distance_s: float
    max_age_s: float


class PolicyState(NamedTuple):
    """One policy, evaluated over all nodes."""

    policy: Policy
    verdict: AvoidVerdict | None
    """The verdict of `avoid`; None if the policy filters nothing."""
    filter_rules: tuple[RuleEvaluation, ...]
    """The usable comparisons of `avoid`."""
    preferences: tuple[EvaluatedPreference, ...] = ()
    labels: tuple[LabelColumn, ...] = ()
    """The node labels that the policy wants."""
    unfetched: Mapping[str, Cause] = {}
    """Metrics of its rules that count as never fetched, by key, with the cause."""
    suspended: tuple[Comparison, ...] = ()
    """Its comparisons that lost the values of most nodes at once; their last verdicts remain in effect."""
    lost: Mapping[str, Cause] = {}
    """Metrics of `suspended` comparisons, by key, with the cause."""
    awaits_metrics: bool = False
    """Whether a metric of `avoid` has neither values nor a failure yet, as after a start."""
    label_rules: tuple[RuleEvaluation, ...] = ()
    """The usable comparisons of `node_labels`."""
    rule_verdicts: tuple[RuleVerdict, ...] = ()
    """The rules of `avoid`; empty if one of them cannot be evaluated."""
    without_values: tuple[str, ...] = ()
    """Which nodes pass rules of `avoid` because they have no value, by metric, where other nodes have one."""
    incomplete: tuple[str, ...] = ()
    """Metrics of its rules whose last response lacks a part of the series, as messages name them."""
    sparse_samples: tuple[SparseSamples, ...] = ()
    """The metrics of its rules whose values count for less than the distance of samples, or hardly longer."""
    failing: Mapping[str, Cause] = {}
    """Metrics of its rules that have values, but could not be fetched for some periods, by key, with the cause."""

    @property
    def awaits_first_response(self) -> bool:
        """Whether a metric of its rules has been requested, and no response has arrived yet."""
        return any(cause.reason == NEVER_FETCHED.reason for cause in self.unfetched.values())


class TelemetryState(NamedTuple):
    """All policies, and which of them select a pod."""

    policies: Mapping[PolicyKey, PolicyState]
    selection: SelectionIndex
    native_mode: bool = True
    """Whether native mode is on, by the settings or because its admission policies are installed."""
    has_native_admission: bool = False
    """Whether its admission policies are installed; False where they are not watched, as in the extender."""
    own_values: Mapping[str, bool] = {}
    """By key of a metric with a response, whether one of these nodes has a fresh value; only with shards."""
    period_s: float = _SYNC_PERIOD_S
    """The refresh period."""
    device_metrics: MetricsSnapshot = MetricsSnapshot()
    """The metrics of device rules."""
    max_ages: MaxAges = MaxAges(60.0, follows_samples=True)
    """How old the values of rules may be."""


class TelemetryStateBuilder(StateBuilder[TelemetryState]):
    """Caches parsed policies and metric columns, so that only changes are computed again."""

    inputs = Inputs(
        frozenset({*POLICY_KINDS, NAMESPACES, *(watched.name for watched in native_mode_admission.WATCHED)})
    )

    def __init__(
        self, options: TelemetryOptions, max_age_s: float, sync_period_s: float = _SYNC_PERIOD_S
    ) -> None:
        self._period_s = sync_period_s
        self._max_age_s = max_age_s
        self._trust = NamespaceTrust(options, max_age_s)
        self._budgets = NamespaceBudgets(options)
        self._configured_native_mode = options.native_mode
        self._native_mode = False
        """Whether native mode is on, by the objects of the last call of `policies`."""
        self._has_native_admission = False
        self._own_namespace = options.own_namespace
        self._parsed: dict[PolicyKey, tuple[PolicyObject, bool, Policy]] = {}
        """By key: the object, whether its namespace is trusted, and the parsed policy, before budgets."""
        self._enforced: dict[PolicyKey, Policy] = {}
        self._selecting: tuple[Any, ...] = ()
        """What `_selection` was computed from."""
        self._selection = SelectionIndex((), {})
        self._columns: dict[str, _MetricColumn] = {}
        self._ranked: dict[Comparison, _RankedValues] = {}
        """By the rule of a preference, of the last build."""
        """The metrics that have values, by `MetricRequest.key`."""
        self._max_ages = MaxAges(max_age_s, follows_samples=not options.max_age_s)
        self._rules = RuleEvaluationCache(self._max_ages, reject_missing=options.when_missing == "reject")
        self._rule_states = RuleStates()
        self.values_elsewhere: Callable[[str], bool | None] | None = None
        """With shards: whether nodes of other replicas have fresh values of a metric, by its key; None if that is not
        known yet."""

    def policies(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[PolicyKey, Policy]:
        """All policies with their problems, restricted in namespaces without trust and by the budgets of namespaces."""
        policies_by_key: dict[PolicyKey, tuple[PolicyObject, bool, Policy]] = {}
        namespaces = self._trust.trusted_namespaces(objects)
        policy_objects = (
            (PolicyKey(kind, *name), policy_object)
            for plural, kind in POLICY_KINDS.items()
            for name, policy_object in objects.get(plural, {}).items()
        )
        for key, policy_object in policy_objects:
            is_trusted = key.kind == "ClusterPlacementPolicy" or self._trust.is_trusted(
                key.namespace, namespaces
            )
            known = self._parsed.get(key)
            if known is None or known[1] != is_trusted or not _has_same_spec(known[0], policy_object):
                if key.kind == "TASPolicy":
                    policy = taspolicy_parser.parse_policy(policy_object)
                else:
                    policy = placement_policy_parser.parse_policy(policy_object, key.kind)
                if not is_trusted:
                    policy = self._trust.restrict_untrusted_policy(policy)
                known = (policy_object, is_trusted, policy)
            policies_by_key[key] = known
        had_native_mode = self._native_mode
        self._update_native_mode(objects)
        if (policies_by_key, self._native_mode) != (self._parsed, had_native_mode):
            self._enforced = self._budgets.enforce(
                {key: policy for key, (_, _, policy) in policies_by_key.items()},
                native_mode=self._native_mode,
            )
        self._parsed = policies_by_key
        return self._enforced

    def _update_native_mode(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> None:
        """Follow the admission policies of native mode, unless a setting decides."""
        self._has_native_admission = native_mode_admission.is_installed(objects)
        configured = self._configured_native_mode
        self._native_mode = self._has_native_admission if configured is None else configured

    def metric_requests(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[MetricRequest]:
        """The metrics that usable rules name."""
        return frozenset(
            rule.metric_request(self._max_age_s)._replace(namespaces=policy.namespaces)
            for policy in self.policies(objects).values()
            for rule in (*policy.usable_comparisons(), *policy.device_comparisons())
        )

    def problems(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> dict[str, tuple[str, ...]]:
        """The problems of policies, by `namespace/name` of a TASPolicy, or with the kind before it."""
        return {
            key.path if key.kind == "TASPolicy" else key.text(): texts
            for key, policy in self.policies(objects).items()
            if (
                texts := (*map(str, policy.problems), *filter(None, [policy.not_trusted, policy.over_budget]))
            )
        }

    def build(self, cluster_state: ClusterState) -> Generator[None, None, TelemetryState]:
        """Evaluate every policy over all nodes."""
        states: dict[PolicyKey, PolicyState] = {}
        self._rules.begin()
        self._rule_states.begin()
        policies = self.policies(cluster_state.objects)
        metric_requests = (
            rule.metric_request() for policy in policies.values() for rule in policy.usable_comparisons()
        )
        # equal requests of several rules are laid out once
        requests_by_key = {metric_request.key: metric_request for metric_request in metric_requests}
        for metric_request in requests_by_key.values():
            yield from self._update_column(metric_request, cluster_state)
            yield
        series = cluster_state.metrics.series
        self._columns = {metric: column for metric, column in self._columns.items() if metric in series}
        for key, policy in policies.items():
            states[key] = yield from self._evaluate_policy(policy, cluster_state)
            yield
        self._ranked = {
            rule: ranked for rule, ranked in self._ranked.items() if rule in self._rules.evaluated
        }
        self._rules.finish()
        self._rule_states.finish()
        selection = self._update_selection(cluster_state.objects)
        own_values = self._own_values(cluster_state) if self.values_elsewhere is not None else {}
        device_rules = chain.from_iterable(map(Policy.device_comparisons, policies.values()))
        device_keys = {request.key for request in map(Comparison.metric_request, device_rules)}
        device_metrics = cluster_state.metrics.only(frozenset(device_keys))
        return TelemetryState(
            states,
            selection,
            self._native_mode,
            self._has_native_admission,
            own_values,
            self._period_s,
            device_metrics,
            self._max_ages,
        )

    def _own_values(self, cluster_state: ClusterState) -> dict[str, bool]:
        """By key of a metric with a response, whether one of these nodes has a fresh value."""
        causes = {
            rule.metric_request().key: self._cause_on_own_nodes(rule, cluster_state)
            for policy in self._enforced.values()
            for rule in policy.usable_comparisons()
        }
        has_nodes = len(cluster_state.nodes) > 0
        return {
            key: cause is None and has_nodes for key, cause in causes.items() if cause is not NEVER_FETCHED
        }

    def _update_column(
        self, metric_request: MetricRequest, cluster_state: ClusterState
    ) -> Generator[None, None, None]:
        """Lay the metric out by node number, unless neither its values nor the nodes changed."""
        metric, nodes = metric_request.key, cluster_state.nodes
        series, known = cluster_state.metrics.series.get(metric), self._columns.get(metric)
        if series is None or (known and known.series is series and known.nodes is nodes):
            return
        column = yield from build_column(series, nodes)
        is_empty = not (series.samples or series.invalid or series.incomplete)
        is_healthy = metric_request.empty_is_healthy and is_empty
        cause = None if is_healthy else missing_values.cause_of_series(series, nodes, column)
        cause_on_some_nodes = missing_values.cause_on_some_nodes(series, nodes)
        yield
        without = missing_values.nodes_without_values(
            series, nodes, column, empty_is_healthy=metric_request.empty_is_healthy
        )
        if known is not None and known.without_values == without:
            text = known.without_values_text
        else:
            text = yield from missing_values.describe(metric_request.name, without)
        self._columns[metric] = _MetricColumn(
            series, nodes, column, cause, cause_on_some_nodes, without, text
        )

    def _update_selection(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> SelectionIndex:
        """The selection by the policies of the last call of `policies`; the same object unless it changes."""
        namespaces = objects.get(NAMESPACES, {})
        selecting = tuple(
            (
                policy.key,
                policy.selection,
                policy.not_enforced,
                policy.mode,
                policy.canary,
                policy.stepped_back,
            )
            for policy in policy_selection.selectable_policies(self._enforced.values())
        )
        named = frozenset(key for key in self._enforced if key.kind == "TASPolicy")
        if self._selecting != (selecting, named, namespaces):
            self._selecting = (selecting, named, namespaces)
            self._selection = SelectionIndex(
                self._enforced.values(), namespaces, self._own_namespace, self._selection
            )
        return self._selection

    def _evaluate_policy(
        self, policy: Policy, cluster_state: ClusterState
    ) -> Generator[None, None, PolicyState]:
        filter_rules = yield from self._evaluate_rules(policy.avoided(), cluster_state)
        preferences = yield from self._evaluate_preferences(policy, cluster_state)
        label_rules, wanted = yield from self._evaluate_node_labels(policy, cluster_state)
        verdict, rule_verdicts = yield from self._verdict(policy, cluster_state)
        yield
        suspended = tuple(
            rule
            for rule in dict.fromkeys(policy.usable_comparisons())
            if rule in self._rules.evaluated and self._rules.is_suspended(rule)
        )
        return PolicyState(
            policy,
            verdict,
            tuple(filter_rules),
            preferences,
            wanted,
            self._unfetched_metrics(policy, cluster_state),
            suspended,
            self._causes_on_some_nodes(suspended, cluster_state),
            self._awaits_metrics(policy.avoided(), cluster_state),
            label_rules,
            rule_verdicts,
            self._nodes_without_values(policy, cluster_state),
            self._incomplete_metrics(policy, cluster_state),
            self._sparse_samples(policy),
            self._failing_metrics(policy, cluster_state),
        )

    def _evaluate_node_labels(
        self, policy: Policy, cluster_state: ClusterState
    ) -> Generator[None, None, tuple[tuple[RuleEvaluation, ...], tuple[LabelColumn, ...]]]:
        """The evaluated rules of `nodeLabels`, and the labels they set: of a policy that only observes, none."""
        evaluations = yield from self._evaluate_rules(
            (part for rule in policy.node_labels for part in rule.parts), cluster_state
        )
        if policy.only_observes:
            return tuple(evaluations), ()
        setting = [
            rule
            for rule in policy.node_labels
            if any(rule.labels) and not any(part.unusable for part in rule.parts)
        ]
        # After a start, rules whose metrics arrive first would set labels that the others exclude.
        hold = self._awaits_metrics((part for rule in setting for part in rule.parts), cluster_state)
        columns = []
        for column in node_labels.label_columns(policy, self._rules.evaluated):
            yield
            columns.append(column.held() if hold else column)
        return tuple(evaluations), tuple(columns)

    def _awaits_metrics(self, rules: Iterable[Comparison], cluster_state: ClusterState) -> bool:
        """Whether a metric of these has neither values nor a failure yet."""
        return not all(
            rule.unusable
            or (
                cluster_state.metrics.was_fetched(rule.metric_request().key)
                and self._missing_cause(rule, cluster_state) is not NEVER_FETCHED
            )
            for rule in rules
        )

    def _evaluate_preferences(
        self, policy: Policy, cluster_state: ClusterState
    ) -> Generator[None, None, tuple[EvaluatedPreference, ...]]:
        """The preferences that can be evaluated. Of a TASPolicy only the first one counts, as in the older system."""
        preferences = []
        for preference in policy.prefer[:1] if policy.key.kind == "TASPolicy" else policy.prefer:
            for evaluation in (yield from self._evaluate_rules([preference.source], cluster_state)):
                inputs, operator = evaluation.inputs, evaluation.rule.operator
                ranked = self._ranked.get(evaluation.rule)
                # a state is built at each response about a metric, and only that metric has other ranks
                if (
                    ranked is None
                    or ranked.values is not inputs.column.values
                    or ranked.states is not inputs.states
                ):
                    ranks = rule_evaluation.rank_nodes_by_value(operator, inputs.column, inputs.states)
                    ranked = self._ranked[evaluation.rule] = _RankedValues(
                        inputs.column.values, inputs.states, ranks
                    )
                    yield
                ranks = ranked.ranks
                preferences.append(EvaluatedPreference(evaluation, ranks, preference.weight))
        return tuple(preferences)

    def _verdict(
        self, policy: Policy, cluster_state: ClusterState
    ) -> Generator[None, None, tuple[AvoidVerdict | None, tuple[RuleVerdict, ...]]]:
        """The verdict of `avoid`, and those of its rules. Fails closed: a rule that cannot be evaluated rejects every
        node.
        """
        if not policy.avoid:
            return None, ()
        size = len(cluster_state.nodes) + 1
        for rule in policy.avoided():
            if rule.unusable:
                reason = policy_rejection_reasons.RuleUnusable(policy.key, rule.unusable, rule.remedy)
                return rule_evaluation.reject_all(size, reason), ()
        unfetched = next(
            (
                policy_rejection_reasons.NeverFetched(policy.key, rule.metric_request().name, cause)
                for rule in policy.avoided()
                if (cause := self._unfetched_cause(rule, cluster_state)) is not None
            ),
            None,
        )
        verdicts = yield from self._rule_states.evaluate(
            policy, self._rules, cluster_state, is_known=unfetched is None
        )
        if unfetched is not None:
            return rule_evaluation.reject_all(size, unfetched), verdicts
        rejections = [verdict.rejected for verdict in verdicts]
        rejecting = [rule for rule in policy.avoided() if self._rules.evaluated[rule].lacking.any()]
        causes = self._causes_on_some_nodes(rejecting, cluster_state)
        combined = rule_evaluation.combine_rules(
            policy.key, policy.avoid, rejections, self._rules.evaluated, causes
        )
        return combined, verdicts

    def _evaluate_rules(
        self, rules: Iterable[Comparison], cluster_state: ClusterState
    ) -> Generator[None, None, list[RuleEvaluation]]:
        """The evaluations of the rules that can be evaluated."""
        evaluations: list[RuleEvaluation] = []
        for rule in rules:
            if rule.unusable:
                continue
            known = self._columns.get(rule.metric_request().key)
            column = known.column if known else empty_column(cluster_state.nodes)
            evaluations.append((yield from self._rules.evaluate(rule, column, cluster_state)))
        return evaluations

    def _unfetched_metrics(self, policy: Policy, cluster_state: ClusterState) -> dict[str, Cause]:
        """The metrics of the policy that count as never fetched, by key, with the cause."""
        causes = {
            rule.metric_request().key: self._unfetched_cause(rule, cluster_state)
            for rule in policy.usable_comparisons()
        }
        metrics = cluster_state.metrics
        for rule in policy.device_comparisons():
            key = rule.metric_request().key
            causes[key] = None if key in metrics.series else metrics.causes.get(key, NEVER_FETCHED)
        return {key: cause for key, cause in sorted(causes.items()) if cause is not None}

    def _unfetched_cause(self, rule: Comparison, cluster_state: ClusterState) -> Cause | None:
        """Why the rule's metric counts as never fetched; None if it does not.

        A metric that gives no node a fresh value counts as never fetched, unless the rule had values and is suspended.
        """
        return None if self._rules.is_suspended(rule) else self._missing_cause(rule, cluster_state)

    def _missing_cause(self, rule: Comparison, cluster_state: ClusterState) -> Cause | None:
        """Why no node has a fresh value of the rule's metric; None if a node has one, also of another replica."""
        cause = self._cause_on_own_nodes(rule, cluster_state)
        if cause is None or self.values_elsewhere is None:
            return cause
        has_values = self.values_elsewhere(rule.metric_request().key)
        return NEVER_FETCHED if has_values is None else None if has_values else cause

    def _cause_on_own_nodes(self, rule: Comparison, cluster_state: ClusterState) -> Cause | None:
        """Why none of these nodes has a fresh value of the rule's metric; None if one has."""
        key = rule.metric_request().key
        failure = cluster_state.metrics.causes.get(key)
        column = self._columns.get(key)
        if column is None:
            return failure or NEVER_FETCHED
        history = self._rules.history(rule)
        if column.cause or not len(cluster_state.nodes) or history is None or history.any_fresh_value:
            return column.cause
        # the values are those of the last response, and became stale since
        return failure or OUTDATED

    def _nodes_without_values(self, policy: Policy, cluster_state: ClusterState) -> tuple[str, ...]:
        """Which nodes pass rules of `avoid` because they have no value, one text for each metric."""
        texts: dict[str, None] = {}
        for rule in policy.avoided():
            evaluation = self._rules.evaluated.get(rule)
            if evaluation is None or evaluation.rejects_missing or self._rules.is_suspended(rule):
                continue
            column = self._columns.get(rule.metric_request().key)
            if column is not None and column.series.incomplete:
                continue
            text = column.without_values_text if column is not None else ""
            if not text and self._has_values_only_elsewhere(rule, cluster_state):
                names = cluster_state.nodes.names[:-1][: missing_values.MAX_NAMED].tolist()
                nodes = missing_values.name_nodes(names, len(cluster_state.nodes))
                text = f"no series of {rule.metric_request().name} on {nodes}"
            texts[text] = None
        return tuple(filter(None, texts))

    def _has_values_only_elsewhere(self, rule: Comparison, cluster_state: ClusterState) -> bool:
        """Whether only nodes of other replicas have fresh values of the rule's metric, and there are own nodes."""
        return (
            self.values_elsewhere is not None
            and len(cluster_state.nodes) > 0
            and not rule.empty_means
            and self._cause_on_own_nodes(rule, cluster_state) is not None
            and self._missing_cause(rule, cluster_state) is None
        )

    def _incomplete_metrics(self, policy: Policy, cluster_state: ClusterState) -> tuple[str, ...]:
        """The metrics whose last response lacks a part of the series."""
        names: dict[str, None] = {}
        for rule in policy.usable_comparisons():
            key = rule.metric_request().key
            failure, column = cluster_state.metrics.causes.get(key), self._columns.get(key)
            is_incomplete = column is not None and bool(column.series.incomplete)
            if is_incomplete if failure is None else failure.reason == "IncompleteAnswer":
                names[rule.metric_request().name] = None
        return tuple(names)

    def _failing_metrics(self, policy: Policy, cluster_state: ClusterState) -> dict[str, Cause]:
        """The metrics whose last values apply because newer ones could not be fetched, by key, with the cause."""
        metrics = cluster_state.metrics
        rules = (*policy.usable_comparisons(), *policy.device_comparisons())
        keys = {rule.metric_request().key for rule in rules}
        return {
            key: metrics.causes[key]
            for key in sorted(keys & metrics.causes.keys() & metrics.series.keys())
            if cluster_state.now - metrics.series[key].fetched_at > _FAILING_PERIODS * self._period_s
            and metrics.causes[key].reason != "IncompleteAnswer"
        }

    def _sparse_samples(self, policy: Policy) -> tuple[SparseSamples, ...]:
        """The metrics of evaluated rules with samples near or beyond the maximum age, each with its shortest one."""
        by_metric: dict[str, SparseSamples] = {}
        for rule in policy.usable_comparisons():
            evaluation = self._rules.evaluated.get(rule)
            distance_s = evaluation.inputs.column.sample_distance_s if evaluation is not None else None
            if distance_s is None or not is_near(self._rules.max_age_s(rule), distance_s):
                continue
            sparse = SparseSamples(rule.metric_request().name, distance_s, self._rules.max_age_s(rule))
            by_metric[sparse.metric] = min(by_metric.get(sparse.metric, sparse), sparse)
        return tuple(by_metric.values())

    def _causes_on_some_nodes(
        self, rules: Iterable[Comparison], cluster_state: ClusterState
    ) -> dict[str, Cause]:
        """Why nodes lack values of the metrics of these rules, by key."""
        causes = {}
        for rule in rules:
            key = rule.metric_request().key
            column = self._columns.get(key)
            cause = self._missing_cause(rule, cluster_state) or cluster_state.metrics.causes.get(key)
            causes[key] = cause or (column.cause_on_some_nodes if column else NEVER_FETCHED)
        return causes


def _has_same_spec(before: PolicyObject, policy_object: PolicyObject) -> bool:
    """Whether the parsed policy is the same. A write of the status, except for a step-back, changes the object only."""
    return before is policy_object or (
        before.spec == policy_object.spec
        and before.metadata == policy_object.metadata
        and before.oversized_bytes == policy_object.oversized_bytes
        and step_back_in_effect(before) == step_back_in_effect(policy_object)
    )
