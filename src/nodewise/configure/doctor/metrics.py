"""Whether the metrics that policies name are there, under names of nodes."""

from collections.abc import Iterator
from typing import Final

from nodewise.configure.doctor.facts import Facts, Measured, Unread
from nodewise.configure.doctor.findings import Answer, Finding, Unlooked, found, unlooked
from nodewise.configure.doctor.reaching import numbers
from nodewise.visible import short

_IDS: Final = ("metric-missing", "metric-names-mismatch")
_FEW: Final = 3
_LOST: Final = Unread("metrics", "the metrics API does not answer", is_minor=True)


def check(facts: Facts) -> Iterator[Answer]:
    if isinstance(facts.policies, Unread):
        yield from unlooked(facts.policies, *_IDS, "metrics-api-unavailable")
        return
    lost = list(_apis(facts))
    yield from lost
    users: dict[str, list[str]] = {}
    for policy in facts.policies:
        for metric in policy.metrics:
            users.setdefault(metric, []).append(policy.where)
    reported: set[str] = set()
    for metric, policies in sorted(users.items()):
        for answer in _metric(facts, metric, policies):
            reported |= set(policies) if isinstance(answer, Finding) and answer.severity == "error" else set()
            is_known = lost and isinstance(answer, Unlooked)  # the API that it comes from was found wanting
            yield Unlooked(answer.id, _LOST) if is_known else answer
    for policy in facts.policies:
        # A query's values are not requested here: its policy's status is all that is known.
        if policy.unfetched and policy.where not in reported:
            yield found("metric-missing", policy.where, short(policy.unfetched), "MetricsFetched: True")


def _apis(facts: Facts) -> Iterator[Answer]:
    if isinstance(facts.apis, Unread):
        yield from unlooked(facts.apis, "metrics-api-unavailable")
        return
    for one in facts.apis:
        if not one.exists:
            seen = "is not there, and policies name its metrics"
            yield found("metrics-api-unavailable", f"APIService/{one.name}", seen, "one that is Available")
        elif not one.available:
            seen = f"is not Available: {short(one.message)}"
            yield found("metrics-api-unavailable", f"APIService/{one.name}", seen, "Available: True")


def _metric(facts: Facts, metric: str, policies: list[str]) -> Iterator[Answer]:
    """What replicas count is what they decide by; else what the source says."""
    users = ", ".join(policies[:_FEW]) + (" …" if len(policies) > _FEW else "")
    counted = [one for one in numbers(facts) if metric in one.metric_nodes]
    if counted:
        nodes = max(one.metric_nodes[metric] for one in counted)
        stray = max(one.unmatched.get(metric, 0) for one in counted)
        names = f"{stray} series" if stray else ""
        why = _unfetched(facts, policies) if not nodes else ""
        yield from _told(metric, users, nodes, names, why or f"by {counted[0].pod}")
        return
    measured = facts.measured.get(metric)
    if isinstance(measured, Unread):
        yield from unlooked(measured, *_IDS)
    elif isinstance(measured, Measured):
        names = ", ".join(measured.others[:_FEW])
        yield from _told(metric, users, measured.nodes, names, measured.error)
    elif never := _never(facts, metric):
        yield from _told(metric, never, 0, "", "it was never fetched, says the policy's status")


def _unfetched(facts: Facts, policies: list[str]) -> str:
    """What the status of one of these policies says about metrics without a value."""
    listed = () if isinstance(facts.policies, Unread) else facts.policies
    return next((policy.unfetched for policy in listed if policy.where in policies and policy.unfetched), "")


def _never(facts: Facts, metric: str) -> str:
    """Policies whose status says that a metric never came."""
    listed = () if isinstance(facts.policies, Unread) else facts.policies
    return ", ".join(one.where for one in listed if metric in one.missing)


def _told(metric: str, users: str, nodes: int, others: str, why: str) -> Iterator[Finding]:
    reason = f" ({short(why)})" if why else ""
    if others and not nodes:
        seen = f"metric {metric} has values under names that are no nodes: {others}{reason}"
        yield found("metric-names-mismatch", users, seen, "names of nodes")
    elif not nodes:
        seen = f"no node has a value of {metric}{reason}"
        remedy = (
            "set aggregate in the rule, or have the source give each node one value"
            if "aggregate" in why
            else f"export {metric}, or name a metric that is there: kubectl get --raw"
            f" /apis/custom.metrics.k8s.io/v1beta1/nodes/*/{metric}"
        )
        yield found("metric-missing", users, seen, "a value of each node", remedy=remedy)
    elif others:
        seen = f"metric {metric} has values of {nodes} nodes, and under names that are none: {others}{reason}"
        yield found("metric-names-mismatch", users, seen, "names of nodes only", severity="note")
