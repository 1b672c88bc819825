"""Checks of the metrics that policies name: whether nodes have values of them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nodewise.base.errors import short
from nodewise.doctor.checks.telemetry_policies import format_names
from nodewise.doctor.facts import (
    MetricCoverage,
    MetricsApiStatus,
    Policies,
    PolicyEvaluation,
    ReplicaMetrics,
    UnavailableFact,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, check, finding
from nodewise.policies import policy_status_fields

_MAX_LISTED: Final = 3


@check("metrics-api-unavailable")
def check_metrics_apis(metrics_apis: tuple[MetricsApiStatus, ...]) -> Iterator[Finding]:
    for api in metrics_apis:
        where = f"APIService/{api.name}"
        if not api.exists:
            actual = "does not exist, and policies name its metrics"
            yield finding("metrics-api-unavailable", where, actual, "one that is Available")
        elif not api.available:
            actual = f"is not Available: {short(api.message)}"
            yield finding("metrics-api-unavailable", where, actual, "Available: True")


_METRICS_API_UNAVAILABLE: Final = UnavailableFact(
    "metrics", "the metrics API does not respond", is_minor=True
)


@check("metric-missing", "metric-names-mismatch")
def check_metrics_have_values(
    policies: Policies,
    metrics: Mapping[str, MetricCoverage | UnavailableFact] | None = None,
    metrics_apis: tuple[MetricsApiStatus, ...] | None = None,
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
) -> Iterator[Result]:
    """Metrics without values. The replicas' own counts decide; without them, the values that doctor reads."""
    without_finding = dict.fromkeys(policies)
    for metric, users in _policies_by_metric(policies):
        coverage = _metric_coverage(metric, users, metrics or {}, replica_metrics)
        if isinstance(coverage, UnavailableFact):
            missing = coverage if _are_metrics_apis_available(metrics_apis) else _METRICS_API_UNAVAILABLE
            yield from (NotChecked(id_, missing) for id_ in check_metrics_have_values.ids)
        elif coverage is not None:
            yield from _check_metric_coverage(metric, users, coverage)
            for policy in () if coverage.nodes else users:
                without_finding.pop(policy, None)
    yield from _check_policy_status(without_finding)


def _check_policy_status(policies: Iterable[PolicyEvaluation]) -> Iterator[Finding]:
    """Doctor cannot request the metrics of queries, so only the status says whether they are available."""
    for policy in policies:
        missing = policy_status_fields.parse_missing_metrics(policy.unavailable_metrics)
        expected = "a value of each node"
        for entry in missing:
            actual = f"no node has a value of {', '.join(entry.metrics)}: {entry.text}"
            yield finding("metric-missing", policy.where, actual, expected, remedy=entry.remedy)
        if policy.unavailable_metrics and not missing:
            yield finding("metric-missing", policy.where, short(policy.unavailable_metrics), expected)


def _are_metrics_apis_available(metrics_apis: tuple[MetricsApiStatus, ...] | None) -> bool:
    """Whether the metrics APIs are available; if not, metrics-api-unavailable reports it."""
    return metrics_apis is not None and all(api.available for api in metrics_apis)


def _policies_by_metric(policies: Policies) -> list[tuple[str, list[PolicyEvaluation]]]:
    """All metrics with the policies that name them."""
    users: dict[str, list[PolicyEvaluation]] = {}
    for policy in policies:
        for metric in policy.metrics:
            users.setdefault(metric, []).append(policy)
    return sorted(users.items())


def _metric_coverage(
    metric: str,
    policies: list[PolicyEvaluation],
    metrics: Mapping[str, MetricCoverage | UnavailableFact],
    replica_metrics: tuple[ReplicaMetrics, ...],
) -> MetricCoverage | UnavailableFact | None:
    """The coverage of a metric by the replicas' counts, its source or a policy's status; None if it is unknown."""
    known = [replica for replica in replica_metrics if metric in replica.metric_nodes]
    if known:
        return _metric_coverage_of_replicas(metric, policies, known)
    if metric in metrics:
        return metrics[metric]
    if any(metric in policy.missing_metrics for policy in policies):
        text, remedy = _cause_in_status(metric, policies)
        return MetricCoverage(0, (), text or "it was never fetched, according to the policy's status", remedy)
    return None


def _metric_coverage_of_replicas(
    metric: str, policies: list[PolicyEvaluation], replica_metrics: list[ReplicaMetrics]
) -> MetricCoverage:
    nodes = max(replica.metric_nodes[metric] for replica in replica_metrics)
    unmatched = max(replica.unmatched.get(metric, 0) for replica in replica_metrics)
    text, remedy = ("", "") if nodes else _cause_in_status(metric, policies)
    where = (f"{unmatched} series",) if unmatched else ()
    return MetricCoverage(nodes, where, text or f"from {replica_metrics[0].pod}", remedy)


def _cause_in_status(metric: str, policies: Iterable[PolicyEvaluation]) -> tuple[str, str]:
    """Why the metric has no value, and the remedy, by the status of a policy that names it; empty if unknown."""
    for policy in policies:
        for entry in policy_status_fields.parse_missing_metrics(policy.unavailable_metrics):
            if metric in entry.metrics:
                return entry.text, entry.remedy
    return "", ""


def _check_metric_coverage(
    metric: str, policies: list[PolicyEvaluation], coverage: MetricCoverage
) -> Iterator[Finding]:
    users = format_names([policy.where for policy in policies])
    reason = f" ({short(coverage.error)})" if coverage.error else ""
    others = ", ".join(coverage.other_names[:_MAX_LISTED])
    if others and not coverage.nodes:
        actual = f"metric {metric} has values under names that are no nodes: {others}{reason}"
        yield finding("metric-names-mismatch", users, actual, "names of nodes", remedy=coverage.remedy)
    elif not coverage.nodes:
        actual = f"no node has a value of {metric}{reason}"
        yield finding("metric-missing", users, actual, "a value of each node", remedy=coverage.remedy)
    elif others:
        actual = (
            f"metric {metric} has values of {coverage.nodes} nodes, and under other names: {others}{reason}"
        )
        expected = "names of nodes only"
        yield finding("metric-names-mismatch", users, actual, expected, severity="note")
