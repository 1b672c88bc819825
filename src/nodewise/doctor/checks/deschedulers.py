"""Checks of deschedulers: whether they evict the pods that they should, and no others."""

from collections.abc import Iterator
from typing import Final

from nodewise.doctor.facts import Descheduler, Policies, UnavailableFact
from nodewise.doctor.findings import Finding, NotChecked, Result, check, finding

_AFFINITY_PLUGIN: Final = "RemovePodsViolatingNodeAffinity"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_DESCHEDULER: Final = f"a descheduler with {_AFFINITY_PLUGIN} for {_REQUIRED}, here or in a namespace of -n"


@check("descheduler-missing")
def check_descheduler(
    policies: Policies, deschedulers: tuple[Descheduler, ...], namespaces: tuple[str, ...]
) -> Iterator[Result]:
    """The strategy deschedule needs a descheduler that evicts pods from the labelled nodes."""
    id_ = "descheduler-missing"
    policy = next((candidate for candidate in policies if "deschedule" in candidate.strategies), None)
    if policy is None:
        return
    if not deschedulers:
        places = " or ".join(namespaces) or "this cluster"
        actual = f"has the strategy deschedule, and no descheduler runs in {places}"
        yield finding(id_, policy.where, actual, _DESCHEDULER)
    unavailable = next(
        (
            descheduler.plugins
            for descheduler in deschedulers
            if isinstance(descheduler.plugins, UnavailableFact)
        ),
        None,
    )
    if any(map(_descheduler_evicts, deschedulers)):
        return
    if unavailable is not None:
        yield NotChecked(id_, unavailable)
        return
    for where, plugins, _ in deschedulers:
        names = ", ".join(map(str, plugins)) or "no plugin"
        actual = f"has {names}, and {policy.where} has the strategy deschedule"
        yield finding(id_, where, actual, _DESCHEDULER)


@check("native-mode-evictions")
def check_native_mode_evictions(
    deschedulers: tuple[Descheduler, ...], nodes_with_verdicts: int
) -> Iterator[Finding]:
    """Deschedulers that evict the running pods of native mode."""
    for descheduler in deschedulers:
        if nodes_with_verdicts and _descheduler_evicts(descheduler):
            count = "1 node has" if nodes_with_verdicts == 1 else f"{nodes_with_verdicts:,} nodes have"
            actual = f"enables {_AFFINITY_PLUGIN}, and {count} labels of native mode"
            yield finding("native-mode-evictions", descheduler.where, actual, f"no {_AFFINITY_PLUGIN}")


def _descheduler_evicts(descheduler: Descheduler) -> bool:
    """Whether it evicts pods from the nodes that a policy labels."""
    has_plugin = (
        not isinstance(descheduler.plugins, UnavailableFact) and _AFFINITY_PLUGIN in descheduler.plugins
    )
    return has_plugin and (not descheduler.affinity_types or _REQUIRED in descheduler.affinity_types)
