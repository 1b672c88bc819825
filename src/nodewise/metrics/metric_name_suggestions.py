"""Suggests the name of a metric that a source has, in place of one that it does not have.

Anyone can create policies with any names, so the cost is limited: within `NAMES_S`, the names of a source are
requested once, and as many misspelt names are compared with them as a namespace, and all namespaces, may have.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Final

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import NodewiseError, closest_names
from nodewise.metrics import missing_values
from nodewise.metrics.fair_concurrency_limit import AGENTS
from nodewise.metrics.metrics_source import MetricCatalog, MetricRequest, MetricsSource, SeriesCatalog
from nodewise.metrics.missing_values import Cause

NAMES_S: Final = 60.0
"""The time for which the names of a source are kept."""
MAX_NAMES: Final = 20_000
"""Names of a source that are considered."""
MAX_COMPARED: Final = 100
"""Names that are compared thoroughly with a misspelt one."""
MAX_SUGGESTED: Final = 3
"""Names that are considered as a suggestion."""
MAX_LENGTH: Final = 80
"""Characters of the misspelt name that are compared."""
MAX_OF_NAMESPACE: Final = 5
MAX_OF_ALL: Final = 20
"""Misspelt names that are compared within `NAMES_S`. Each takes 0.1 s with 20,000 names, in small parts."""
_STRIDE: Final = 50
"""Number of names in one part of the work, which takes about 0.1 ms."""


class _Names:
    """The names of one source."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.requested_s = float("-inf")
        self.names: Sequence[str] = ()


class MetricNameSuggestions:
    """The suggestions for all metrics that sources do not have."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._names: dict[str, _Names] = {}
        """By name of the source."""
        self._causes: dict[str, Cause] = {}
        """By `MetricRequest.key`, with a suggestion if there is one."""
        self._compared: Counter[str] = Counter()
        """By namespace, the number of misspelt names that were compared since `_since_s`."""
        self._since_s = float("-inf")

    async def suggest(self, cause: Cause, request: MetricRequest, source: MetricsSource) -> Cause:
        """The cause, with the most similar name that the source has."""
        if cause.reason != "MetricUnknown" or not isinstance(source, MetricCatalog):
            return cause
        if request.key not in self._causes:
            names = await self._names_of(source)
            if not names or not self._has_budget(request.namespaces or frozenset([AGENTS])):
                return cause  # a later call may have a suggestion
            similar = await cooperative_scheduling.run(select_similar_names(request.metric, names))
            existing = await self._existing_metrics(source, closest_metrics(request.metric, similar))
            if existing is None:
                return cause
            self._causes[request.key] = missing_values.suggest(cause, existing[0]) if existing else cause
        return self._causes[request.key]

    def forget(self, keys: frozenset[str]) -> None:
        """Drop metrics that have values or are no longer requested, by `MetricRequest.key`."""
        for key in keys & self._causes.keys():
            del self._causes[key]

    def _has_budget(self, namespaces: frozenset[str]) -> bool:
        """Whether one of these namespaces may compare one more name, which is counted."""
        if self._clock.monotonic() - self._since_s >= NAMES_S:
            self._since_s = self._clock.monotonic()
            self._compared.clear()
        name = min(namespaces, key=lambda name: (self._compared[name], name))
        if self._compared[name] >= MAX_OF_NAMESPACE or self._compared.total() >= MAX_OF_ALL:
            return False
        self._compared[name] += 1
        return True

    async def _existing_metrics(self, source: MetricsSource, names: Sequence[str]) -> Sequence[str] | None:
        """Those of these names that have series; None if the source does not respond."""
        if not names or not isinstance(source, SeriesCatalog):
            return names
        try:
            async with asyncio.timeout(self._timeout_s):
                return await source.existing_metrics(names)
        except (NodewiseError, TimeoutError):
            return None

    async def _names_of(self, source: MetricsSource) -> Sequence[str]:
        """The names that a source has; none if it does not respond."""
        assert isinstance(source, MetricCatalog)
        known = self._names.setdefault(source.name, _Names())
        async with known.lock:
            if self._clock.monotonic() - known.requested_s >= NAMES_S:
                known.requested_s = self._clock.monotonic()
                try:
                    async with asyncio.timeout(self._timeout_s):
                        known.names = (await source.metric_names())[:MAX_NAMES]
                except (NodewiseError, TimeoutError):
                    known.names = ()
        return known.names


def closest_metrics(metric: str, names: Sequence[str]) -> list[str]:
    """Up to `MAX_SUGGESTED` of these names, the most similar first. A name may lack the prefix of the node exporter."""
    others = [name for name in names if name != metric]
    prefixed = [name for name in (f"node_{metric}",) if name in others]
    return list(dict.fromkeys([*prefixed, *closest_names(metric, others, MAX_SUGGESTED)]))[:MAX_SUGGESTED]


def select_similar_names(metric: str, names: Sequence[str]) -> Generator[None, None, list[str]]:
    """The names to compare: those that share most pairs of letters and have about the same length. Yields between
    parts.
    """
    pairs = {metric[at : at + 2] for at in range(min(len(metric), MAX_LENGTH) - 1)}
    ranked: list[tuple[int, str]] = []
    for number, name in enumerate(names, 1):
        shared = sum(pair in name for pair in pairs)
        if shared:
            ranked.append((abs(len(name) - len(metric)) - 2 * shared, name))
        if not number % _STRIDE:
            yield
    return [name for _, name in heapq.nsmallest(MAX_COMPARED, ranked)]
