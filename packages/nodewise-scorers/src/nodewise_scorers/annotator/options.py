"""Settings of the annotator."""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from nodewise.base.option import Option
from nodewise_scorers.statistics.load_annotations import GPU

MIN_PERIOD_S: Final = 60.0
"""Each burst of patches makes kube-scheduler retry every unschedulable pod."""
AnnotationSet = Literal["all", "usage", "allocation"]
Period = Annotated[float, msgspec.Meta(ge=MIN_PERIOD_S)]


class AnnotatorConfig(NamedTuple):
    """Which annotations are written, and from which data."""

    usage: bool
    allocation: bool
    period_s: float = MIN_PERIOD_S
    forecast: bool = False
    forecast_window_s: float = 86400.0
    use_requests: bool = False
    gpu: str = GPU
    """The name of the resource that counts as `gpu`."""
    cpu_samples_query: str = ""
    memory_samples_query: str = ""

    @property
    def needs_pods(self) -> bool:
        """Whether it needs the requests of pods."""
        return self.allocation or (self.usage and self.use_requests)


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


def leader_annotator_config(options: AnnotatorOptions) -> AnnotatorConfig | None:
    """The configuration of the annotator in the extender's leader; None if it is off."""
    if options.annotate == "off":
        return None
    return build_annotator_config(options, options.annotate, options.annotate_period_s)


def build_annotator_config(options: ForecastOptions, what: AnnotationSet, period_s: float) -> AnnotatorConfig:
    """A configuration of the settings that command and extender share, and of the others."""
    return AnnotatorConfig(
        usage=what != "allocation",
        allocation=what != "usage",
        period_s=period_s,
        forecast=options.annotate_forecast,
        forecast_window_s=options.annotate_forecast_window_s,
        use_requests=options.annotate_use_requests,
        gpu=options.annotate_gpu_resource,
        cpu_samples_query=options.annotate_cpu_samples_query,
        memory_samples_query=options.annotate_memory_samples_query,
    )
