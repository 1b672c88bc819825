"""All checks. They compute findings from facts and do no I/O."""

from typing import Final

from nodewise.doctor.check import Check
from nodewise.doctor.checks import certificates, extender_entries, nodes, policies, reachability, replicas

CHECKS: Final[tuple[Check, ...]] = (
    *reachability.CHECKS,
    *extender_entries.CHECKS,
    *certificates.CHECKS,
    *policies.CHECKS,
    *nodes.CHECKS,
    *replicas.CHECKS,
)
