"""Settings of `nodewise extender`: its own, and all groups that its settings file may hold."""

from typing import Annotated, Final, Literal

import msgspec

from nodewise.annotator.options import AnnotatorOptions
from nodewise.extender.score_weights import ChainOptions
from nodewise.kube.options import KubeOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.option import Option
from nodewise.serve.options import AdminOptions, ServeOptions
from nodewise.statistics.load_queries import WindowOptions


class ExtenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the extender serves, and from what."""

    agents: Annotated[str, Option(metavar="NAMES")] = "telemetry"
    """Agents to ask, separated by commas, in this order. `nodewise agents list` shows them."""

    metrics: Annotated[tuple[str, ...], Option(metavar="SOURCE")] = ("auto",)
    """Where node metrics come from; repeat it for several, the first that has a metric wins. `custom`: the custom
    metrics API. `resource`: metrics.k8s.io, as `cpu_usage`, `memory_usage` (cores, bytes), `cpu_usage_share` and
    `memory_usage_share` (of the node's allocatable). `prometheus`: --prometheus-url. `auto`: all three in this order,
    as far as they are there, now or later. `file:PATH`: MetricValueLists and NodeMetricsLists in YAML or JSON, or CSV
    lines node,metric,value[,timestamp]."""

    objects_from: Annotated[tuple[str, ...], Option(metavar="PATH")] = ()
    """Read nodes, policies and metrics from these files or folders instead of a cluster, and read them again when
    they change. For trying things out: nothing is written anywhere."""

    no_cluster: bool = False
    """Serve without an API server: each request brings its nodes whole (nodeCacheCapable: false), and agents see
    nothing else. For a scheduler and nodewise in one pod, and for trying an agent with curl. Agents that read other
    objects than nodes cannot be served like this."""

    state: Annotated[str, Option(metavar="FILE")] = ""
    """File for what agents learn and must not forget, such as the demand statistics of pigeon. Empty: a ConfigMap
    beside nodewise, nodewise-memory; without a cluster, nothing outlives the process."""

    shutdown_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long SIGTERM is not the end: /readyz says no, so that the Service sends new connections elsewhere, all
    that come are still served, and each answer closes its connection. Longer than a cluster takes to take an
    endpoint out of a Service, shorter than the pod's terminationGracePeriodSeconds. SIGINT, or a second signal,
    ends at once."""

    agent_deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Deprecated: has no effect. Third-party agents run without a deadline."""

    bind_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    """A bind call is answered within this time, be it by an error. Shorter than the httpTimeout of the extender's entry
    in the scheduler's configuration, which is 5 s where none is given: kube-scheduler must not place a pod again that
    is still being bound."""

    decisions_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 2**20
    """Memory for the decisions that /decisions shows; the oldest make room."""

    record: Annotated[str, Option(metavar="FILE")] = ""
    """Keep every request, every change of the world and every answer in this file, for `nodewise simulate replay`.
    The file holds whole requests, so every tenant's pods with their environment and annotations, and node names,
    policies and metric values: it can be read by its owner only, keep it so. No Secret is in it. A file that is
    there already is kept as FILE.old."""

    record_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 2**30
    """Size at which a recording ends; the extender serves on."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of log lines that are written."""

    log_format: Literal["text", "json"] = "text"
    """Form of log lines: text for people, json for collectors."""


GROUPS: Final = (
    ExtenderOptions,
    ChainOptions,
    ServeOptions,
    AdminOptions,
    KubeOptions,
    RefreshOptions,
    PrometheusOptions,
    AnnotatorOptions,
    WindowOptions,
)
"""All groups of the extender. Other commands accept its settings file, and take the settings that they have."""
