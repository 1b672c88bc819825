"""The metric names that label series of `/metrics`: a limited number, because tenants choose them."""

from collections.abc import Iterable
from typing import Final

from nodewise.metrics.metrics_source import MetricRequest

MAX_METRIC_NAMES: Final = 500
"""Names that policies of all namespaces request. Names that an agent requests itself are exported in addition."""


def select_exported_names(
    requests: Iterable[MetricRequest], exported: frozenset[str], most: int = MAX_METRIC_NAMES
) -> frozenset[str]:
    """The names to export: an equal share for each namespace, in which the names that are `exported` already come
    first. What a namespace does not use of its share is for the others.
    """
    of_agents: set[str] = set()
    by_namespace: dict[str, set[str]] = {}
    for request in requests:
        if not request.namespaces:
            of_agents.add(request.name)
        for namespace in request.namespaces:
            by_namespace.setdefault(namespace, set()).add(request.name)
    ranks: dict[str, int] = {}
    """By name: its place within the namespace where it is first."""
    for names in by_namespace.values():
        for rank, name in enumerate(sorted(names - of_agents, key=lambda name: (name not in exported, name))):
            ranks[name] = min(rank, ranks.get(name, rank))
    chosen = sorted(ranks, key=lambda name: (ranks[name], name not in exported, name))[:most]
    return frozenset(chosen) | of_agents
