"""Who measures what nodes use, by the sources that there are."""

from collections.abc import Sequence
from typing import Final

from nodewise.annotator.averages import Averages
from nodewise.annotator.measured import Measure
from nodewise.annotator.options import Task
from nodewise.annotator.sampling import Samples
from nodewise.clock import Clock
from nodewise.metrics.asking import Asker
from nodewise.metrics.prometheus.source import PrometheusMetrics
from nodewise.metrics.source import Source
from nodewise.statistics.queries import WindowOptions

PATIENCE_S: Final = 15.0
"""For one metric; Prometheus' own time-out is shorter, and says more."""


def measure(
    sources: Sequence[Source], task: Task, options: WindowOptions, asker: Asker, clock: Clock
) -> Measure | None:
    """Who measures: Prometheus where it is one of the sources, else we; None where nobody needs to know."""
    if not task.usage:
        return None
    servers = [source for source in sources if isinstance(source, PrometheusMetrics)]
    return Averages(asker, options, task, servers, clock) if servers else Samples(asker, options, task, clock)
