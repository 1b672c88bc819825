"""The node annotator writes the usage of nodes and the requests of their pods as annotations of nodes.

| module | content |
|---|---|
| `__init__.py` | settings |
| `node_usage.py` | the usage of nodes from Prometheus or samples, and its annotations |
| `node_patches.py` | the pod requests of each node, the annotations that have changed, and the burst of patches |
| `annotator.py` | measures, plans and writes once per period, also in the extender's leader |
| `leader_task.py` | the annotator as a task of the extender's leader |

Replaces kube-safe-scheduler's two annotators.
"""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from nodewise.base.option import Option

GPU: Final = "gpu"
MIN_PERIOD_S: Final = 60.0
"""Each burst of patches makes kube-scheduler retry every unschedulable pod."""
AnnotationSet = Literal["all", "usage", "allocation"]
Period = Annotated[float, msgspec.Meta(ge=MIN_PERIOD_S)]


class ForecastOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the annotator, as a command and within the extender."""

    annotate_forecast: bool = False
    """Also write the expected free amounts: the average over the next hundredth of --annotate-forecast-window, by an
    autoregression on that window."""

    annotate_forecast_window_s: Annotated[float, msgspec.Meta(gt=0)] = 86400.0
    """Time span that a forecast is based on. Prometheus is queried for 300 samples of each node."""

    annotate_use_requests: bool = False
    """Limit used memory to the requests of a node's pods, sample by sample, as the older annotator's USE_REQ did.
    Needs Prometheus and the right to list pods."""

    annotate_gpu_resource: Annotated[str, Option(metavar="RESOURCE")] = GPU
    """Name of the resource that counts GPUs in requests and allocatable, such as nvidia.com/gpu; the annotations call
    it `gpu`. Set --pigeon-gpu-resource to the same value."""

    annotate_cpu_samples_query: Annotated[str, Option(metavar="QUERY")] = ""
    """Prometheus query for the cores in use at one time, for samples of forecasts. Empty: 1 - rate of node exporter's
    idle seconds, summed up over the CPUs. On clusters of many CPUs use a recording rule."""

    annotate_memory_samples_query: Annotated[str, Option(metavar="QUERY")] = ""
    """The same for the bytes of memory in use. Empty: MemTotal - MemAvailable of node exporter."""


class AnnotatorOptions(ForecastOptions, frozen=True, kw_only=True):
    """The annotator within the extender's leader."""

    annotate: Literal["off", "all", "usage", "allocation"] = "off"
    """Write statistics of nodes as annotations, from the leader: `usage` is the measured free amounts, `allocation`
    the requests of pods. Agents do not need them: see --statistics."""

    annotate_period_s: Period = MIN_PERIOD_S
    """Period, at least one minute, because each burst of patches makes kube-scheduler retry all pending pods."""


class AnnotatorConfig(NamedTuple):
    """Which annotations are written, and from which data."""

    what: AnnotationSet
    period_s: float = MIN_PERIOD_S
    options: ForecastOptions = ForecastOptions()

    @property
    def usage(self) -> bool:
        return self.what != "allocation"

    @property
    def allocation(self) -> bool:
        return self.what != "usage"

    @property
    def needs_pods(self) -> bool:
        """Whether it needs the requests of pods."""
        return self.allocation or self.options.annotate_use_requests


def leader_annotator_config(options: AnnotatorOptions) -> AnnotatorConfig | None:
    """The configuration of the annotator in the extender's leader; None if it is off."""
    if options.annotate == "off":
        return None
    return AnnotatorConfig(options.annotate, options.annotate_period_s, options)
