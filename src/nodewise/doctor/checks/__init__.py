"""All checks. They compute findings from facts and do no I/O."""

from typing import Final

from nodewise.doctor.check_declaration import Check
from nodewise.doctor.checks import (
    certificates,
    extender_entries,
    extender_reachability,
    extender_workloads,
    nodes,
    policy_namespaces,
    telemetry_policies,
)

CHECKS: Final[tuple[Check, ...]] = (
    *extender_reachability.CHECKS,
    *extender_entries.CHECKS,
    *certificates.CHECKS,
    *telemetry_policies.CHECKS,
    *policy_namespaces.CHECKS,
    *nodes.CHECKS,
    *extender_workloads.CHECKS,
)
