"""The Prometheus queries for the load of nodes, of agents and the annotator, and their settings."""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from nodewise.base.option import Option
from nodewise.agent import MetricRequest
from nodewise.metrics.prometheus.source import promql_duration


class WindowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the statistics of nodes, for agents and for the annotator."""

    statistics_window_s: Annotated[float, msgspec.Meta(gt=0)] = 900.0
    """Window of mean and deviation, for CPU and memory. A shorter one follows the load more closely, a longer one
    covers more of its variation."""

    statistics_max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Age at which statistics count as missing; 0: an hour. The age of annotations is that of
    nodewise.io/annotated-at; without it, it is unknown and they count as fresh."""

    cpu_mean_query: Annotated[str, Option(metavar="QUERY")] = ""
    """Prometheus query for the mean of the cores in use on each node; {window} is replaced by the window. Empty: 1 -
    rate of node exporter's idle seconds, summed up over the CPUs."""

    cpu_deviation_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the standard deviation of the cores in use. On clusters of thousands of CPUs use a recording
    rule."""

    memory_mean_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the mean of the bytes of memory in use. Empty: MemTotal - MemAvailable of node exporter."""

    memory_deviation_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the standard deviation of these bytes."""

    exporter_matchers: Annotated[str, Option(metavar="MATCHERS")] = ""
    """Label matchers for node exporter's series in these queries, if there are several per node, such as
    job="node-exporter"."""

    @property
    def max_age_s(self) -> float:
        """The greatest age that counts."""
        return self.statistics_max_age_s or 3600.0


class StatisticsOptions(WindowOptions, frozen=True, kw_only=True):
    """Setting for the source of node statistics."""

    statistics: Literal["annotations", "metrics"] = "annotations"
    """Source of the mean and deviation of node usage. `annotations`: those of nodes, such as `nodewise annotate`
    writes. `metrics`: the source of --metrics, once per refresh period."""


class UsageRequests(NamedTuple):
    """The four metrics of nodes' load: cores and bytes."""

    cpu_mean: MetricRequest
    cpu_deviation: MetricRequest
    memory_mean: MetricRequest
    memory_deviation: MetricRequest


CPU_MEAN: Final = "cpu_used_mean"
CPU_DEVIATION: Final = "cpu_used_deviation"
MEMORY_MEAN: Final = "memory_used_mean"
MEMORY_DEVIATION: Final = "memory_used_deviation"

_VOLATILE_LABELS: Final = "pod, kubernetes_pod_name, controller_revision_hash, pod_template_generation"
"""Labels that change with a rollout of the exporter: the node would have two series, each for a part of the window.
Their rates add up to the rate of the node."""
_MAX_RATE_S: Final = 120.0
"""Two minutes hold four scrapes at the usual intervals; a rate over longer would smooth the bursts away."""


def cpu_usage_query(rate_s: float, matchers: str = "") -> str:
    """Cores in use on each node, at one time: an average over `rate_s`."""
    chosen = ", ".join(filter(None, ('mode="idle"', matchers)))
    idle = f"rate(node_cpu_seconds_total{{{chosen}}}[{promql_duration(rate_s)}])"
    return f"sum without (cpu, mode) (1 - sum without ({_VOLATILE_LABELS}) ({idle}))"


def memory_usage_query(matchers: str = "") -> str:
    """Bytes in use on each node, at one time."""
    of = f"{{{matchers}}}" if matchers else ""
    return f"max without ({_VOLATILE_LABELS}) (node_memory_MemTotal_bytes{of} - node_memory_MemAvailable_bytes{of})"


def metric_requests(options: WindowOptions) -> UsageRequests:
    """The metric requests of the options, with the window inserted into the queries."""
    window_s = options.statistics_window_s
    window = promql_duration(window_s)
    rate_s = min(window_s / 5, _MAX_RATE_S)
    cpu = cpu_usage_query(rate_s, options.exporter_matchers)
    memory = memory_usage_query(options.exporter_matchers)
    over = f"[{window}:{promql_duration(rate_s / 4)}]"
    definitions = (
        (CPU_MEAN, options.cpu_mean_query, f"avg_over_time(({cpu}){over})"),
        (CPU_DEVIATION, options.cpu_deviation_query, f"stddev_over_time(({cpu}){over})"),
        (MEMORY_MEAN, options.memory_mean_query, f"avg_over_time(({memory}){over})"),
        (MEMORY_DEVIATION, options.memory_deviation_query, f"stddev_over_time(({memory}){over})"),
    )
    return UsageRequests(
        *(
            MetricRequest(name, query.replace("{window}", window) if query else default, options.max_age_s)
            for name, query, default in definitions
        )
    )
