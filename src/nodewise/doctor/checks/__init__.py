"""All checks. They compute findings from facts and do no I/O."""

from typing import Final

from nodewise.doctor.checks import (
    certificates,
    deschedulers,
    extender_entries,
    extender_reachability,
    kubernetes_version,
    metric_coverage,
    native_mode,
    nodes,
    nodewise_workloads,
    policy_namespaces,
    telemetry_policies,
)
from nodewise.doctor.findings import Check

CHECKS: Final[tuple[Check, ...]] = (
    *extender_reachability.CHECKS,
    *extender_entries.CHECKS,
    *certificates.CHECKS,
    *telemetry_policies.CHECKS,
    *metric_coverage.CHECKS,
    *deschedulers.CHECKS,
    *native_mode.CHECKS,
    *policy_namespaces.CHECKS,
    *nodes.CHECKS,
    *nodewise_workloads.CHECKS,
    *kubernetes_version.CHECKS,
)
