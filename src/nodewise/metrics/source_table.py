"""The table of metric sources: what `--metrics` accepts, what a source requires, and the texts of help and remedies.

To add a source, write a module with a factory and add a row to `SOURCES`. Options, help, errors, causes of missing
values and `nodewise doctor` read the table.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

AUTO: Final = "auto"
CUSTOM: Final = "custom"
RESOURCE: Final = "resource"
PROMETHEUS: Final = "prometheus"
FILE: Final = "file"
COMPUTED: Final = "computed"
"""The source of metrics that nodewise computes. `--metrics` does not name it."""
RESOURCE_METRICS: Final = ("cpu_usage", "memory_usage", "cpu_usage_share", "memory_usage_share")
"""Usage in cores and bytes, and as a share (0 to 1) of the allocatable resources, from metrics-server."""
USAGE_MAX_AGE_S: Final = 180.0
"""The agent load ignores usage that is older: scrapes of up to a minute may fail twice."""

CLUSTER: Final = "a cluster"
"""The requirement of sources that the API server serves, which a user can read with the rights of a kubeconfig."""
INCOMPLETE_REMEDY: Final = (
    "check the stores of Thanos, the storage nodes of VictoriaMetrics, or the ingesters of Mimir or Cortex;"
    " metric_warning and metric_failed in nodewise's log have the texts of the server"
)
_GRANT: Final = "nodewise configure manifests rbac | kubectl apply --server-side --force-conflicts -f -"
_API_SERVER_REMEDY: Final = "check that the API server runs, and nodewise's connection to it"
_RECORD_REMEDY: Final = "record the metric by node with nodewise policy recording-rules"
_FILE_REMEDIES: Final = {
    "MetricUnknown": "correct the name, or add the metric to the file",
    "ResponseUnreadable": "correct the file; metric_failed in nodewise's log names the line",
    "NoSeriesOfNodes": "use the names of nodes in the file",
    "SeveralValuesPerNode": "set aggregate: max in the rule, or give each node one value",
}


class SourceKind(NamedTuple):
    title: str
    """How messages name it."""
    help: str
    """What it reads, for the help of `--metrics`."""
    factory: str
    """`module:function`, which returns the sources for `SourceDependencies` and a list of paths; none if a requirement
    is missing. A text, because only the selected sources are imported."""
    remedies: Mapping[str, str] = MappingProxyType({})
    """By reason of a missing value (`missing_values.CauseReason`)."""
    path: str = ""
    """The placeholder of the path after the name, as in `file:PATH`; empty: `auto` selects the source by its name."""
    requires: str = ""
    """What it requires: a flag, or `CLUSTER`."""


SOURCES: Final[Mapping[str, SourceKind]] = {
    CUSTOM: SourceKind(
        "the custom metrics API",
        "the custom metrics API.",
        "nodewise.metrics.custom_metrics_api:create_sources",
        {
            "SourceUnreachable": _API_SERVER_REMEDY,
            "SourceRefusesAccess": (
                f"grant nodewise the right to get nodes of custom.metrics.k8s.io: {_GRANT}"
            ),
            "SourceFails": (
                "check prometheus-adapter: kubectl get apiservice v1beta1.custom.metrics.k8s.io, and its log"
            ),
            "SourceTimesOut": "check the load of prometheus-adapter and of its Prometheus, or raise --metrics-timeout",
            "SourceNotInstalled": (
                "install prometheus-adapter, or query Prometheus directly: --metrics prometheus --prometheus-url URL"
            ),
            "SeveralValuesPerNode": "set aggregate: max in the rule, or have the adapter give each node one value",
            "MetricUnknown": (
                "correct the name, or add a rule for it to prometheus-adapter; kubectl get --raw "
                "/apis/custom.metrics.k8s.io/v1beta1 lists what it has. It forgets a metric whose exporters are down"
            ),
            "NoSeries": "check in Prometheus that the adapter's rule for the metric gives a series for each node",
            "NoSeriesOfNodes": "relabel the series so that the adapter's label for nodes has the names of nodes",
        },
        requires=CLUSTER,
    ),
    RESOURCE: SourceKind(
        "metrics-server",
        "metrics.k8s.io, as `cpu_usage`, `memory_usage` (cores, bytes), `cpu_usage_share` and `memory_usage_share` (of "
        "the node's allocatable).",
        "nodewise.metrics.resource_metrics_api:create_sources",
        {
            "SourceUnreachable": _API_SERVER_REMEDY,
            "SourceRefusesAccess": (f"grant nodewise the right to list nodes of metrics.k8s.io: {_GRANT}"),
            "SourceFails": "check metrics-server: kubectl get apiservice v1beta1.metrics.k8s.io, and its log",
            "SourceTimesOut": "check the load of metrics-server, or raise --metrics-timeout",
            "SourceNotInstalled": "install metrics-server",
            "NoSeries": "check metrics-server's log, and kubectl top nodes",
        },
        requires=CLUSTER,
    ),
    PROMETHEUS: SourceKind(
        "Prometheus",
        "--prometheus-url.",
        "nodewise.metrics.prometheus.source:create_sources",
        {
            "SourceUnreachable": "start Prometheus, or correct --prometheus-url",
            "SourceRefusesAccess": (
                "give credentials that may query: --prometheus-token-file, --prometheus-user, --prometheus-cert, or "
                "--prometheus-header for a tenant or a gateway"
            ),
            "SourceFails": (
                "check that --prometheus-url leads to Prometheus itself, with any path before /api/v1, and that "
                "Prometheus is ready"
            ),
            "SourceTimesOut": f"{_RECORD_REMEDY}, use a cheaper query, or raise --prometheus-timeout",
            "SeveralValuesPerNode": "set aggregate: max in the rule, or use a query",
            "IncompleteAnswer": INCOMPLETE_REMEDY,
            "MetricUnknown": "correct the name, or check its exporter and the targets of Prometheus",
            "NoSeriesOfNodes": "set --prometheus-node-label to a label that names nodes, or relabel the series",
            "ResponseUnreadable": f"check that --prometheus-url leads to Prometheus; if it is large, {_RECORD_REMEDY}",
        },
        requires="--prometheus-url",
    ),
    FILE: SourceKind(
        "the file of --metrics",
        "MetricValueLists and NodeMetricsLists in YAML or JSON, or CSV lines node,metric,value[,timestamp].",
        "nodewise.metrics.metric_files:create_sources",
        _FILE_REMEDIES,
        path="PATH",
    ),
    "otlp": SourceKind(
        "the OTLP file of --metrics",
        "lines of OTLP/JSON metrics from the file exporter of the OpenTelemetry Collector, with `k8s.node.name` or "
        "`host.name` as the node.",
        "nodewise.metrics.otlp_files:create_sources",
        _FILE_REMEDIES
        | {"NoSeriesOfNodes": "set k8s.node.name of the collector's resources to the names of nodes"},
        path="FILE",
    ),
}
"""By name, in the order of `auto`."""

AUTOMATIC: Final = tuple(name for name, kind in SOURCES.items() if not kind.path)
"""The sources that `auto` selects, as far as they are available."""
SYNTAX: Final = (AUTO, *(f"{name}:{kind.path}" if kind.path else name for name, kind in SOURCES.items()))
"""The values of `--metrics`."""


def option_help() -> str:
    """The help of `--metrics`."""
    rows = [(f"{name}:{kind.path}" if kind.path else name, kind.help) for name, kind in SOURCES.items()]
    automatic = (AUTO, "all of these in this order, as far as they are available, now or later.")
    rows.insert(len(AUTOMATIC), automatic)
    texts = " ".join(f"`{value}`: {text}" for value, text in rows)
    return f"Source of node metrics; repeat it for several, the first one with a metric is used. {texts}"


def kinds(values: Iterable[str]) -> set[str]:
    """The kinds that values of `--metrics` name, those of `auto` included; other names are ignored."""
    names = {name.partition(":")[0] for name in values}
    return (names | set(AUTOMATIC) if AUTO in names else names) & SOURCES.keys()
