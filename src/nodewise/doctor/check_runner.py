"""Selects checks and their facts, runs the checks, and makes the report."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from nodewise.base import clock
from nodewise.base.errors import counted, list_first, short
from nodewise.doctor.checks import certificates, extender_entries, native_mode, policies, workloads_and_nodes
from nodewise.doctor.facts import Facts, GpuNodeInfo, PolicyEvaluation, UnavailableFact
from nodewise.doctor.findings import (
    CATALOGUE,
    NOT_CHECKED,
    SEVERITIES,
    Check,
    Finding,
    NotChecked,
    Report,
    Severity,
    apply_parts,
    finding,
)

_MODULES: Final = (extender_entries, certificates, policies, native_mode, workloads_and_nodes)
CHECKS: Final = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, Check)
)
_MAX_LISTED: Final = 3
_MAX_FINDINGS: Final = 10  # of one id; further ones are only counted


def _checks_not_skipped(skip: Collection[str]) -> list[Check]:
    return [check for check in CHECKS if not set(check.ids) <= set(skip)]


def fields_of_needed_facts(skip: Collection[str] = ()) -> frozenset[str]:
    """The fields of `Facts` that have to be collected."""
    return frozenset().union(*(check.fields for check in _checks_not_skipped(skip)))


def examine(
    facts: Facts, skip: Collection[str] = ()
) -> Report:  # complexity: findings and reasons of one pass
    """The report without the findings to skip: by severity, then in the order of the catalogue."""
    checks = _checks_not_skipped(skip)
    results = dict.fromkeys(
        result for check in checks for result in check.run(facts) if result.id not in skip
    )
    findings = [result for result in results if isinstance(result, Finding)]
    missing = [result for result in results if isinstance(result, NotChecked)]
    findings += [] if NOT_CHECKED in skip else _findings_of_missing_facts(missing, facts.namespaces)
    by_id: dict[str, dict[str, None]] = {}
    for id_, unavailable in missing:
        by_id.setdefault(id_, {})[f"{unavailable.what}: {unavailable.reason}"] = None
    reasons = [(id_, short("; ".join(by_id[id_]))) for id_ in CATALOGUE if id_ in by_id]
    checked = [id_ for id_ in CATALOGUE if id_ not in {*skip, *by_id, NOT_CHECKED}]
    examined = tuple(_describe_examined(facts, fields_of_needed_facts(skip)))
    return Report(_limit_findings(sorted(findings, key=_finding_sort_key)), checked, reasons, examined)


def _finding_sort_key(item: Finding) -> tuple[int, int, str, str]:
    return (SEVERITIES.index(item.severity), list(CATALOGUE).index(item.id), item.object, item.found)


def _limit_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The first findings of each id, and the number of the others."""
    kept: list[Finding] = []
    for _, group in groupby(findings, key=lambda item: (item.severity, item.id)):
        same = list(group)
        kept += same[:_MAX_FINDINGS]
        if len(same) > _MAX_FINDINGS:
            more = f"{len(same) - _MAX_FINDINGS} more"
            kept.append(same[-1]._replace(object=more, found="of the same kind"))
    return kept


def _findings_of_missing_facts(missing: Iterable[NotChecked], namespaces: Sequence[str]) -> Iterator[Finding]:
    """One finding for each fact that is unavailable, with the checks that need it."""
    grant = apply_parts("doctor", namespace=next(iter(namespaces), "nodewise"))
    by_fact: dict[UnavailableFact, dict[str, None]] = {}
    for result in missing:
        by_fact.setdefault(result.unavailable, {})[result.id] = None
    for unavailable, ids in by_fact.items():
        names = list_first(list(ids), _MAX_LISTED) + (" checks" if len(ids) > _MAX_LISTED else "")
        actual = f"{unavailable.reason}; not checked: {names}"
        expected = f"the right to {unavailable.right}" if unavailable.right else "to be readable"
        remedy = unavailable.remedy
        if not remedy and not unavailable.right:  # the catalogue's remedy is to grant the right
            remedy = "correct what is named, or leave it out with --skip"
        elif not remedy and unavailable.is_minor:
            remedy = f"grant the right, or leave the check out with --skip {next(iter(ids))}"
        severity: Severity = "note" if unavailable.is_minor else "warning"
        command = grant if unavailable.right and not unavailable.is_minor else ""
        yield finding(
            NOT_CHECKED,
            unavailable.what,
            actual,
            expected,
            remedy=remedy,
            command=command,
            severity=severity,
        )


def _describe_examined(
    facts: Facts, fields: frozenset[str]
) -> Iterator[str]:  # complexity: one condition for each fact
    values = {name: getattr(facts, name) for name in fields}
    read = {name: value for name, value in values.items() if not isinstance(value, UnavailableFact)}
    if "schedulers" in read:
        where = [scheduler.where for scheduler in read["schedulers"] if scheduler.is_readable]
        names = f" ({', '.join(where[:_MAX_LISTED])})" if where else ""
        yield f"{counted(len(where), 'configuration')} of kube-scheduler{names}"
    if "extenders" in read:
        listed = (*read["extenders"], *read.get("controllers", ()))
        replicas = sum(workload.workload.replicas for workload in listed)
        yield f"{counted(replicas, 'replica')} of nodewise"
    if "node_count" in read:
        yield counted(read["node_count"], "node")
    yield from _describe_gpu_nodes(read.get("gpu_nodes", ()))
    if "policies" in read:
        yield from _describe_policies(read["policies"])
    if evaluated := [lease.evaluated for lease in read.get("leases", ()) if lease.evaluated]:
        age_s = max(round((facts.now - max(evaluated)).total_seconds()), 1)
        yield f"the last evaluation of policies ({clock.format_duration(age_s)} ago)"


def _describe_gpu_nodes(gpu_nodes: Iterable[GpuNodeInfo | UnavailableFact]) -> Iterator[str]:
    """How many nodes have which form of GPUs; a node may have both forms."""
    nodes = [node for node in gpu_nodes if isinstance(node, GpuNodeInfo)]
    if plugin := sum(bool(node.resource) for node in nodes):
        yield f"{counted(plugin, 'node')} with GPUs of a device plugin"
    drivers = Counter(driver for node in nodes for driver in node.drivers)
    for driver, count in sorted(drivers.items())[:_MAX_LISTED]:
        yield f"{counted(count, 'node')} with devices of the DRA driver {driver}"
    if len(drivers) > _MAX_LISTED:
        yield f"devices of {len(drivers) - _MAX_LISTED} more DRA drivers"
    if both := sum(bool(node.resource and node.drivers) for node in nodes):
        yield f"{counted(both, 'node')} with both"


def _describe_policies(policies: Sequence[PolicyEvaluation | UnavailableFact]) -> list[str]:
    counts = Counter(policy.kind for policy in policies if isinstance(policy, PolicyEvaluation))
    return [
        counted(count, kind, f"{kind.removesuffix('y')}ies") for kind, count in sorted(counts.items())
    ] or ["0 policies"]
