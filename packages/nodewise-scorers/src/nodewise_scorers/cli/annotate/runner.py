"""Runs the annotator once, or until SIGTERM or SIGINT, and renders the result of one run.

The output of `nodewise annotate`: the statistics of each node, and the annotations to write.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from math import isnan
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option, SettingsByGroup
from nodewise.cli import tables
from nodewise.cli.terminal_output import Progress
from nodewise.kube import pod_requests
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.reflector import Reflector, ReflectorTarget, list_objects
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.kube.store import Store
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_source import SourceDependencies, create_metric_sources
from nodewise.metrics.node_attributes import NodeAttributeFields, NodeAttributesCache
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSource
from nodewise.metrics.source_selection import FetchLimits, SourceSelector
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions
from nodewise.server.server import admin_routes, admin_server
from nodewise_scorers.annotator import annotator as annotators
from nodewise_scorers.annotator import node_patches
from nodewise_scorers.annotator import options as annotator_options
from nodewise_scorers.annotator.annotator import AnnotationPlan, Annotator
from nodewise_scorers.annotator.node_patches import NodePlan, WriteResult
from nodewise_scorers.annotator.node_requests import POD, AnnotatedNode, make_pod_reducer
from nodewise_scorers.annotator.options import (
    MIN_PERIOD_S,
    AnnotationSet,
    AnnotatorConfig,
    ForecastOptions,
    Period,
)
from nodewise_scorers.statistics import load_annotations as keys
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

_NODE: Final[Any] = merge("Node", NodeAttributeFields, AnnotatedNode)
_TICK_S: Final = 1.0
_MAX_CONCURRENT: Final = 8
"""Concurrent requests for metrics; there are four metrics."""


class AnnotateOptions(ForecastOptions, frozen=True, kw_only=True):
    """Annotations, their period, and the source of usage."""

    what: AnnotationSet = "all"
    """`usage`: free resources according to the usage of nodes. `allocation`: requests of pods, and what they leave.
    `all`: both. Run only one annotator in a cluster, because all annotations share one timestamp."""

    period_s: Period = MIN_PERIOD_S
    """Period of writes; at least a minute, because after each burst of patches kube-scheduler retries waiting pods."""

    usage_from: Annotated[str, Option(metavar="SOURCE")] = "auto"
    """Source of the usage of nodes. `prometheus`: node exporter's metrics from --prometheus-url. `resource`:
    metrics.k8s.io, whose samples are kept over the window. `auto`: Prometheus if its URL is set, else metrics.k8s.io.
    `file:PATH`: NodeMetricsLists in YAML or JSON, for tests."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log lines."""

    log_format: Literal["text", "json"] = "text"
    """Format of log lines: text for people, json for collectors."""


class AnnotationResult(NamedTuple):
    """The result of one run."""

    plan: AnnotationPlan
    written: WriteResult | None
    """None for a dry run."""
    is_sampled: bool
    """Whether the usage of nodes comes from a single sample."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured and written, for at least one node."""
        patches = self.plan.patches
        has_gaps = self.plan.failures or patches.unmeasured or not (patches.nodes or patches.not_ready)
        return not has_gaps and not (self.written is not None and self.written.failed)


class _ClusterAccess(NamedTuple):
    """The API server's client, the clock, and the metrics registry."""

    api: HttpApi
    clock: SystemClock
    registry: MetricsRegistry


class _Components(NamedTuple):
    """The annotator with its inputs."""

    annotator: Annotator
    nodes: Store[Any]
    pods: Store[Any] | None
    """None if no annotation depends on the requests of pods."""
    closers: Sequence[Callable[[], Awaitable[None]]]
    """Close the connections to sources."""

    def pods_holding_resources(self) -> list[Any]:
        """The pods that hold the resources that they request."""
        return self.pods.values() if self.pods is not None else []


async def annotate_once(settings: SettingsByGroup, kube: KubeOptions, *, dry: bool) -> AnnotationResult:
    """Read all nodes once, and write the annotations that changed, unless it is a `dry` run."""
    async with AsyncExitStack() as stack:
        access = _open_api_client(kube, stack)
        progress = stack.enter_context(Progress())
        stores = []
        for target in _annotation_targets(_create_annotator_config(settings)):
            progress.say(f"reading {target.resource.plural}")
            stores.append(await list_objects(access.api, target, access.registry, lambda _: None))
        components = _create_components(settings, stores, access)
        for close in components.closers:
            stack.push_async_callback(close)
        progress.say("measuring")
        await components.annotator.take_sample()
        plan = await components.annotator.plan(
            components.nodes.values(), components.pods_holding_resources(), keeps_complete=False
        )
        progress.say("writing")
        written = (
            None
            if dry
            else await node_patches.write_patches(_create_patch_api_client(access.api), plan.patches.nodes)
        )
        return AnnotationResult(plan, written, components.annotator.is_sampled)


async def annotate_until_signal(settings: SettingsByGroup, kube: KubeOptions) -> None:
    """Write the annotations that changed once per period, until a signal arrives."""
    async with AsyncExitStack() as stack:
        access = _open_api_client(kube, stack)
        reflectors = [
            Reflector(access.api, target, access.clock, access.registry, random.random)
            for target in _annotation_targets(_create_annotator_config(settings))
        ]
        components = _create_components(settings, [reflector.store for reflector in reflectors], access)
        for close in components.closers:
            stack.push_async_callback(close)
        app = Application(
            admin_routes(lambda: _unsynced_resources(reflectors), access.registry),
            access.registry,
            max_body_bytes=2**16,
        )
        admin = admin_server(app, settings[AdminOptions], access.registry)
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        stack.push_async_callback(admin.stop)
        await admin.start()
        tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
        tasks.append(asyncio.create_task(_annotate_periodically(components, reflectors, access.api)))
        stack.push_async_callback(_cancel_tasks, tasks)
        logs.emit("started", address="", health=admin.url)
        await ended.wait()
        logs.emit("stopping")


def _open_api_client(kube: KubeOptions, stack: AsyncExitStack) -> _ClusterAccess:
    clock, registry = SystemClock(), MetricsRegistry()
    api = connect(kube, registry)
    stack.push_async_callback(api.close)
    return _ClusterAccess(api, clock, registry)


def _create_patch_api_client(api: HttpApi) -> HttpApi:
    return api.with_rate_limit(node_patches.QPS, node_patches.BURST)


def _create_annotator_config(settings: SettingsByGroup) -> AnnotatorConfig:
    own: AnnotateOptions = settings[AnnotateOptions]
    return annotator_options.build_annotator_config(own, own.what, own.period_s)


def _annotation_targets(config: AnnotatorConfig) -> list[ReflectorTarget[Any]]:
    keep = make_pod_reducer(config.gpu)
    held = ReflectorTarget(PODS, POD, selectors=pod_requests.HOLDING_SELECTORS, keep=keep)
    pods = [held] if config.needs_pods else []
    return [ReflectorTarget(NODES, _NODE), *pods]


def _create_components(
    settings: SettingsByGroup, stores: Sequence[Store[Any]], access: _ClusterAccess
) -> _Components:
    api, clock, registry = access
    own: AnnotateOptions = settings[AnnotateOptions]
    window: WindowOptions = settings[WindowOptions]
    prometheus: PrometheusOptions = settings[PrometheusOptions]
    config = _create_annotator_config(settings)
    nodes, *rest = stores
    dependencies = SourceDependencies(
        api,
        NodeAttributesCache(nodes).read,
        prometheus,
        window.max_age_s,
        annotators.QUERY_TIMEOUT_S,
        registry,
    )
    sources = (
        create_metric_sources([_usage_source_name(own, prometheus)], (), dependencies) if config.usage else []
    )
    selector = SourceSelector(
        sources, FetchLimits(annotators.QUERY_TIMEOUT_S, _MAX_CONCURRENT), clock, registry
    )
    usage_source = annotators.create_usage_source(sources, config, window, selector, clock)
    rules = node_patches.patch_rules(window.max_age_s, config.period_s)
    annotator = Annotator(config, rules, usage_source, clock, registry)
    closers = [source.close for source in sources if isinstance(source, PrometheusSource)]
    return _Components(annotator, nodes, rest[0] if rest else None, closers)


def _usage_source_name(own: AnnotateOptions, prometheus: PrometheusOptions) -> str:
    """The name of the source of usage, as `create_metric_sources` accepts it."""
    has_url = bool(prometheus.prometheus_url)
    chosen = own.usage_from
    if chosen == "auto":
        chosen = "prometheus" if has_url else "resource"
    if chosen == "prometheus" and not has_url:
        raise BadSettings("settings", [Problem("--usage-from", "prometheus", "--prometheus-url with it")])
    if chosen in {"prometheus", "resource"} or chosen.startswith("file:"):
        return chosen
    expected = "auto, prometheus, resource or file:PATH"
    raise BadSettings("settings", [Problem("--usage-from", repr(own.usage_from), expected)])


def _unsynced_resources(reflectors: Sequence[Reflector[Any]]) -> list[str]:
    return [] if all(reflector.synced for reflector in reflectors) else ["nodes and pods of the API server"]


async def _annotate_periodically(
    components: _Components, reflectors: Sequence[Reflector[Any]], api: HttpApi
) -> None:
    """Log a defect and try again in the next period: without updates all statistics become stale."""
    for reflector in reflectors:
        await reflector.wait_until_synced()
    client = _create_patch_api_client(api)
    while True:
        try:
            await components.annotator.take_sample()
            if components.annotator.is_due():
                await components.annotator.burst(
                    client, components.nodes.values(), components.pods_holding_resources()
                )
        except Exception as error:  # noqa: BLE001 - see above
            logs.emit("task_failed", task="annotating", exc_info=error)
        await asyncio.sleep(_TICK_S)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_MIB: Final = 2**20
_COLUMNS: Final = (
    ("FREE CPU", keys.MEAN_FREE_CPU, keys.STD_FREE_CPU),
    ("FREE MEMORY", keys.MEAN_FREE_MEMORY, keys.STD_FREE_MEMORY),
    ("NEXT CPU", keys.FORECAST_FREE_CPU, ""),
    ("NEXT MEMORY", keys.FORECAST_FREE_MEMORY, ""),
    ("REQUESTED CPU", keys.REQUESTED_CPU, ""),
    ("REQUESTED MEMORY", keys.REQUESTED_MEMORY, ""),
    ("PODS", keys.REQUESTED_PODS, ""),
)
"""The heading of a column, its annotation, and the annotation with the standard deviation, or empty."""


def print_annotation_plan(plan: AnnotationPlan) -> None:
    """Print one line for each node: free and requested resources, and the number of annotations to write."""
    patches = plan.patches
    rows = [
        [node.name, *_annotation_table_cells(node.desired), _format_patch(node)] for node in patches.nodes
    ]
    rows += [[name, *["-"] * len(_COLUMNS), "nothing: it is not ready"] for name in patches.not_ready]
    shown = tables.TableData(["NODE", *(head for head, *_ in _COLUMNS), "TO WRITE"], sorted(rows))
    for head, *_ in _COLUMNS:
        shown = tables.drop_empty_columns(head, *shown)
    tables.print_table(*shown)


def encode_annotation_plan(plan: AnnotationPlan, written: WriteResult | None) -> bytes:
    """The same as JSON, with the annotations themselves; `written` is None for a dry run."""
    patches = plan.patches
    body: dict[str, Any] = {
        "nodes": [
            {"node": node.name, "stands": node.current, "wanted": node.desired, "patch": node.patch}
            for node in patches.nodes
        ],
        "not_ready": patches.not_ready,
        "unmeasured": patches.unmeasured,
        "failures": plan.failures,
    }
    if written is not None:
        body["written"] = written._asdict()
    return msgspec.json.encode(body)


def format_patch_summary(plan: AnnotationPlan, written: WriteResult) -> str:
    """One line about a burst of patches."""
    patches = plan.patches
    counts = (
        (written.done, "annotated"),
        (len(patches.nodes) - written.done - written.failed - written.gone, "unchanged"),
        (written.failed, "failed"),
        (written.gone, "gone"),
        (len(patches.not_ready), "not ready"),
        (len(patches.unmeasured), "not measured"),
    )
    parts = [f"{count} {what}" for number, (count, what) in enumerate(counts) if count or not number]
    return f"nodes: {', '.join(parts)}"


def list_failure_notes(plan: AnnotationPlan, *, one_sample: bool) -> Iterator[str]:
    """Failures, and a hint if the values come from a single sample."""
    yield from plan.failures
    if not (plan.patches.nodes or plan.patches.not_ready or plan.patches.unmeasured):
        yield "no node: found none in the cluster, expected at least one"
    if one_sample and any(node.desired.get(keys.MEAN_FREE_CPU) for node in plan.patches.nodes):
        yield (
            "one sample has a mean and no deviation: let `nodewise annotate` run, without --once, or give"
            " --prometheus-url"
        )


def _annotation_table_cells(annotations: Mapping[str, str | None]) -> Iterator[str]:
    for _, key, deviation in _COLUMNS:
        value = _format_statistic(key, annotations.get(key))
        spread = _format_statistic(deviation, annotations.get(deviation)) if deviation else "-"
        yield f"{value} ±{spread}" if spread != "-" else value


def _format_statistic(key: str, text: str | None) -> str:
    """`1.25` cores, `3200 Mi`, a count."""
    number = keys.number(text)
    if isnan(number):
        return "-"
    if key.endswith("cpu"):
        return f"{number / 1000:.3g}"
    return f"{number / _MIB:.0f} Mi" if key.endswith("memory") else f"{number:.0f}"


def _format_patch(plan: NodePlan) -> str:
    count = sum(key != ANNOTATED_AT for key in plan.patch)
    if count:
        return f"{count} annotations" if count > 1 else "1 annotation"
    return "the time" if plan.patch else "nothing"
