"""Policies as the telemetry agent evaluates them, what replicas wrote into their status, and missing definitions."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import UNREADABLE, short
from nodewise.doctor.collectors.metric_coverage import collect_metric_series
from nodewise.doctor.collectors.nodes import collect_nodes
from nodewise.doctor.collectors.nodewise_workloads import collect_nodewise_workloads
from nodewise.doctor.collectors.policy_objects import (
    PolicyObjects,
    collect_policy_objects,
    rules_naming_metrics,
)
from nodewise.doctor.collectors.session import Session
from nodewise.doctor.facts import NodewiseWorkload, PolicyEvaluation, UnavailableFact
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Series
from nodewise.policies import policy_status_fields, verdict_labels
from nodewise.policies.options import TelemetryOptions, max_age_s
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_status_fields import PolicyCondition
from nodewise.policies.state import POLICY_KINDS, PolicyState, TelemetryStateBuilder

_SYNC_PERIOD_S: Final = 5.0


async def collect_kinds_not_served(session: Session) -> tuple[str | UnavailableFact, ...]:
    """The definitions that are missing, `placementpolicies.nodewise.io`, of kinds that the telemetry agent reads."""
    listed = await session.require(collect_nodewise_workloads)
    if not any("telemetry" in extender.agents for extender in listed):
        return ()
    kinds = RESOURCES.values()
    answers = await asyncio.gather(*map(session.reader.is_served, kinds))
    return tuple(
        answer if isinstance(answer, UnavailableFact) else f"{kind.plural}.{kind.group}"
        for kind, answer in zip(kinds, answers, strict=True)
        if isinstance(answer, UnavailableFact) or not answer
    )


async def collect_policies(session: Session) -> tuple[PolicyEvaluation | UnavailableFact, ...]:
    """All policies, evaluated with the metrics that doctor can read, and what replicas wrote into their status."""
    read = await session.require(collect_policy_objects)
    listed = await session.get(collect_nodewise_workloads)
    series = await session.get(collect_metric_series)
    nodes = await session.get(collect_nodes)
    states = evaluate_policies(
        read,
        {} if isinstance(series, UnavailableFact) else series,
        [] if isinstance(nodes, UnavailableFact) else nodes.measured.allocatable,
        [] if isinstance(listed, UnavailableFact) else listed,
    )
    now = SystemClock().now()
    evaluations = (
        _create_evaluation(
            read.objects[name][key.namespace, key.name], state, now, isinstance(nodes, UnavailableFact)
        )
        for name, kind in POLICY_KINDS.items()
        for key, state in states.items()
        if key.kind == kind
    )
    return (*evaluations, *read.unavailable)


def evaluate_policies(
    read: PolicyObjects,
    series: Mapping[str, Series | Cause | UnavailableFact],
    nodes: Iterable[str],
    listed: Sequence[NodewiseWorkload],
) -> Mapping[PolicyKey, PolicyState]:
    """The telemetry agent's own evaluation. Every namespace counts as trusted: replicas write into a policy's status
    what of it needs a trusted namespace.
    """
    rules = (rule for policy in read.policies.values() for rule in rules_naming_metrics(policy))
    by_request: dict[str, Series] = {}
    for metric_request in (rule.metric_request() for rule in rules):
        values = series.get(metric_request.name)
        if isinstance(values, Series) and (values.samples or values.invalid):
            by_request[metric_request.key] = values
    options, sync_period_s = _telemetry_agent_options(listed)
    state = TelemetryStateBuilder(options, max_age_s(options, sync_period_s))
    now = SystemClock().now()
    cluster = ClusterState(NodeIndex(nodes), read.objects, MetricsSnapshot(by_request), now)
    return cooperative_scheduling.run_without_pauses(state.build(cluster)).policies


def _telemetry_agent_options(listed: Sequence[NodewiseWorkload]) -> tuple[TelemetryOptions, float]:
    """The telemetry agent's options and the refresh period of the first workload that runs it."""
    settings = next((extender.settings for extender in listed if "telemetry" in extender.agents), {})
    options = TelemetryOptions(
        max_age_s=_parse_duration_or_default(settings.get("max_age", ""), 0.0),
        when_missing="reject" if settings.get("when_missing") == "reject" else "pass",
        trust_all_namespaces=True,
    )
    return options, _parse_duration_or_default(settings.get("sync_period", ""), _SYNC_PERIOD_S)


def _parse_duration_or_default(text: str, default: float) -> float:
    try:
        return clock.parse_option_duration(text) if text else default
    except ValueError:
        return default


class _PolicyStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What doctor reads of the status of any kind of policy."""

    conditions: list[PolicyCondition] = []
    violating_nodes: int = 0
    rejected_nodes: int | None = None
    """The same, of kinds other than TASPolicy."""
    missing_metrics: list[str] = []

    def message_if(self, kind: str, status: str) -> str:
        """The message of a condition with this status; empty without it."""
        messages = (
            condition.message or kind
            for condition in self.conditions
            if (condition.type, condition.status) == (kind, status)
        )
        return next(messages, "")

    def refusal(self, reason: str) -> str:
        """Why a part has no effect: a TASPolicy has a condition of this type, other kinds a reason of Ready."""
        messages = (
            condition.message or reason
            for condition in self.conditions
            if (condition.type, condition.status, condition.reason) == ("Ready", "False", reason)
        )
        return self.message_if(reason, "True") or next(messages, "")


def _parse_status(status: msgspec.Raw) -> _PolicyStatus:
    try:
        return msgspec.json.decode(status, type=_PolicyStatus | None) or _PolicyStatus()
    except UNREADABLE:
        return _PolicyStatus()


def _create_evaluation(
    item: PolicyObject, state: PolicyState, now: float, is_unknown: bool
) -> PolicyEvaluation:
    """A policy with its status."""
    policy, status = state.policy, _parse_status(item.status)
    rejected, source = _count_rejected_nodes(state, status, is_unknown)
    return PolicyEvaluation(
        policy.namespace,
        policy.name,
        policy.sections,
        tuple(dict.fromkeys(rule.metric_request().name for rule in rules_naming_metrics(policy))),
        tuple(short(str(problem)) for problem in policy.problems),
        tuple(short(name, 100) for name in status.missing_metrics),
        short(
            status.message_if("MetricsFetched", "False") or status.message_if("MetricsAvailable", "False"),
            policy_status_fields.MAX_LENGTH,
        ),
        rejected,
        source,
        short(status.refusal("NotTrusted"), 500),
        short(status.refusal("BudgetExceeded"), 500),
        policy.key.kind,
        short(policy.not_enforced or status.message_if("NotEnforced", "True"), 500),
        _age_s(policy.created, now),
        short(status.message_if("AllNodesRejected", "True"), 500),
        verdict_labels.label_key(policy.uid) if policy.uid else "",
        policy.only_prefers,
        tuple(
            (condition.type, short(condition.message, 500))
            for condition in status.conditions
            if condition.status == "True"
        ),
    )


def _count_rejected_nodes(
    state: PolicyState, status: _PolicyStatus, is_unknown: bool
) -> tuple[int | None, str]:
    """How many nodes it rejects, and the source: its status if doctor does not have all values. None if unknown."""
    filtering = [rule for rule in state.policy.avoided() if not rule.unusable]
    if filtering and (is_unknown or any(rule.metric_request().key in state.unfetched for rule in filtering)):
        counted = status.violating_nodes or status.rejected_nodes or 0
        return (counted if status.conditions else None), "by its status"
    rejected = 0 if state.verdict is None else int(np.count_nonzero(state.verdict.codes[:-1]))
    return rejected, "by its metrics"


def _age_s(created: str, now: float) -> float:
    """The age of an object; 0 if its creation time cannot be read."""
    try:
        return now - clock.parse_rfc3339(created)
    except ValueError:
        return 0.0
