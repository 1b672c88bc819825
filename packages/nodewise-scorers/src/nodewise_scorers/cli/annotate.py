"""`nodewise annotate`: writes the usage of nodes and the requests of pods as annotations of nodes."""

import asyncio
import os
import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.base import cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option, SettingsByGroup
from nodewise.cli import terminal_output
from nodewise.cli.command_help import SectionedCommand
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
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
from nodewise_scorers.annotator import (
    MIN_PERIOD_S,
    AnnotationSet,
    AnnotatorConfig,
    ForecastOptions,
    Period,
    node_patches,
)
from nodewise_scorers.annotator import annotator as annotators
from nodewise_scorers.annotator.annotator import Annotator
from nodewise_scorers.annotator.node_patches import (
    POD,
    AnnotatedNode,
    PatchPlan,
    WriteResult,
    make_pod_reducer,
)
from nodewise_scorers.statistics import load_annotations as keys
from nodewise_scorers.statistics.node_usage_reader import WindowOptions

_NODE: Final[Any] = merge("Node", NodeAttributeFields, AnnotatedNode)
_TICK_S: Final = 1.0
_MAX_CONCURRENT: Final = 8  # concurrent requests for metrics; there are four metrics
KUBECONFIG: Final = "kubectl.conf"
"""The file in the working folder that the older annotators used outside of a cluster."""
_COLUMNS: Final = (
    ("FREE CPU", keys.MEAN_FREE_CPU, keys.STD_FREE_CPU),
    ("FREE MEMORY", keys.MEAN_FREE_MEMORY, keys.STD_FREE_MEMORY),
    ("NEXT CPU", keys.FORECAST_FREE_CPU, ""),
    ("NEXT MEMORY", keys.FORECAST_FREE_MEMORY, ""),
    ("REQUESTED CPU", "requested-cpu", ""),
    ("REQUESTED MEMORY", "requested-memory", ""),
    ("PODS", "requested-pods", ""),
)
"""The heading of a column, its annotation, and the annotation with the standard deviation, or empty."""


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


GROUPS: Final = (AnnotateOptions, WindowOptions, PrometheusOptions, AdminOptions)


class RunOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise annotate` that are not settings."""

    once: bool = False
    """Write once, and exit."""

    dry_run: bool = False
    """Print what would be written, write nothing, and exit."""

    output: Annotated[Literal["table", "json"], Option("-o --output")] = "table"
    """Output format of --once and --dry-run."""


class AnnotationResult(NamedTuple):
    """The result of one run."""

    plan: PatchPlan
    written: WriteResult | None
    """None for a dry run."""
    is_sampled: bool
    """Whether the usage of nodes comes from a single sample."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was measured and written, for at least one node."""
        plan = self.plan
        has_gaps = plan.failures or plan.unmeasured or not (plan.nodes or plan.not_ready)
        return not has_gaps and not (self.written is not None and self.written.failed)


class _AnnotateCommand(SectionedCommand):
    """Accepts the environment variables of the older annotators, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*translate_annotator_variables(os.environ, args), *args])


@settings_command(
    "annotate",
    RunOptions,
    ClusterOptions,
    *GROUPS,
    short_help="Write statistics of nodes as annotations.",
    kind=_AnnotateCommand,
)
def command(command_line: CommandLine) -> None:
    """Write statistics of nodes as annotations: the free resources, and the requests of pods.

    The annotator writes once per period, in a burst, or a single time with --once. It writes only values that changed
    by more than 2 %, and the time (nodewise.io/annotated-at). Nodes that are not ready keep their annotations.
    The variables of kube-safe-scheduler's annotators (PROM_IP, PROM_PORT, NODE_EXP_PORT, CLUSTER_CONF, ANNOTATE_FREQ,
    USE_FORECAST, USE_REQ) are accepted, too.

    \b
    Examples:
      nodewise annotate --once --dry-run
      nodewise annotate --prometheus-url http://prometheus.monitoring:9090
      nodewise annotate --what allocation --once -o json

    \b
    Exit codes:
      0  written, or ended by SIGTERM or SIGINT
      1  with --once: a node could not be written or measured, or there is no node
      2  the command line or a setting is invalid
    """
    settings: dict[type, Any] = {group: command_line.settings(group) for group in GROUPS}
    own: AnnotateOptions = settings[AnnotateOptions]
    run_options, kube = command_line.settings(RunOptions), command_line.settings(ClusterOptions).kube
    is_single = run_options.once or run_options.dry_run
    if is_single and own.log_format == "text":
        logs.configure("warning" if own.log_level == "info" else own.log_level, "messages")
    else:
        logs.configure(own.log_level, own.log_format)
    if is_single:
        result = cooperative_scheduling.run_event_loop(annotate_once(settings, kube, dry=run_options.dry_run))
        click.get_current_context().exit(_print_result(result, run_options.output))
    asyncio.run(annotate_until_signal(settings, kube))


def _print_result(result: AnnotationResult, output: str) -> int:  # complexity: messages in order
    """Print the result of one run. Returns the exit code."""
    plan, written, is_sampled = result
    for failure in plan.failures:
        terminal_output.print_message(failure)
    if not (plan.nodes or plan.not_ready or plan.unmeasured):
        terminal_output.print_message("no node: found none in the cluster, expected at least one")
    if is_sampled and any(node.desired.get(keys.MEAN_FREE_CPU) for node in plan.nodes):
        terminal_output.print_message(
            "one sample has a mean and no deviation: let `nodewise annotate` run, without --once, or give"
            " --prometheus-url"
        )
    if output == "json":
        click.echo(encode_annotation_plan(plan, written))
    elif written is None:
        print_annotation_plan(plan)
    else:
        click.echo(format_patch_summary(plan, written))
    if written is not None and written.error:
        terminal_output.print_message(written.error)
    return terminal_output.DONE if result.is_complete else terminal_output.FAILED


async def annotate_once(settings: SettingsByGroup, kube: KubeOptions, *, dry: bool) -> AnnotationResult:
    """Read all nodes once, and write the annotations that changed, unless it is a `dry` run."""
    async with AsyncExitStack() as stack:
        access = _open_access(settings, kube, stack)
        progress = stack.enter_context(Progress())
        stores = []
        for target in access.targets:
            progress.say(f"reading {target.resource.plural}")
            stores.append(await list_objects(access.api, target, access.registry, lambda _: None))
        annotator = _create_annotator(settings, stores, access, stack)
        progress.say("measuring")
        await annotator.take_sample()
        plan = await annotator.plan(*_nodes_and_pods(stores), keeps_complete=False)
        progress.say("writing")
        written = None if dry else await node_patches.write_patches(access.patching_api, plan.nodes)
        return AnnotationResult(plan, written, annotator.is_sampled)


async def annotate_until_signal(settings: SettingsByGroup, kube: KubeOptions) -> None:
    """Write the annotations that changed once per period, until a signal arrives."""
    async with AsyncExitStack() as stack:
        access = _open_access(settings, kube, stack)
        registry = access.registry
        reflectors = [
            Reflector(access.api, target, access.clock, registry, random.random) for target in access.targets
        ]
        stores = [reflector.store for reflector in reflectors]
        annotator = _create_annotator(settings, stores, access, stack)

        def unsynced() -> list[str]:
            synced = all(reflector.synced for reflector in reflectors)
            return [] if synced else ["nodes and pods of the API server"]

        async def annotate_periodically() -> None:
            for reflector in reflectors:
                await reflector.wait_until_synced()
            while True:
                try:
                    await annotator.take_sample()
                    if annotator.is_due():
                        await annotator.burst(access.patching_api, *_nodes_and_pods(stores))
                except Exception as error:  # noqa: BLE001 - without updates all statistics would become stale
                    logs.emit("task_failed", task="annotating", exc_info=error)
                await asyncio.sleep(_TICK_S)

        app = Application(admin_routes(unsynced, registry), registry, max_body_bytes=2**16)
        admin = admin_server(app, settings[AdminOptions], registry)
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        stack.push_async_callback(admin.stop)
        await admin.start()
        tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
        tasks.append(asyncio.create_task(annotate_periodically()))
        stack.push_async_callback(_cancel_tasks, tasks)
        logs.emit("started", address="", health=admin.url)
        await ended.wait()
        logs.emit("stopping")


class _Access(NamedTuple):
    """The API server's clients, what is read from it, and what all parts use."""

    config: AnnotatorConfig
    api: HttpApi
    patching_api: HttpApi
    clock: SystemClock
    registry: MetricsRegistry
    targets: Sequence[ReflectorTarget[Any]]
    """Nodes, and pods if an annotation depends on their requests."""


def _open_access(settings: SettingsByGroup, kube: KubeOptions, stack: AsyncExitStack) -> _Access:
    own = settings[AnnotateOptions]
    config = AnnotatorConfig(own.what, own.period_s, own)
    clock, registry = SystemClock(), MetricsRegistry()
    api = connect(kube, registry)
    stack.push_async_callback(api.close)
    patching_api = api.with_rate_limit(node_patches.QPS, node_patches.BURST)
    targets: list[ReflectorTarget[Any]] = [ReflectorTarget(NODES, _NODE)]
    if config.needs_pods:
        keep, selectors = make_pod_reducer(own.annotate_gpu_resource), pod_requests.HOLDING_SELECTORS
        targets.append(ReflectorTarget(PODS, POD, selectors=selectors, keep=keep))
    return _Access(config, api, patching_api, clock, registry, targets)


def _nodes_and_pods(stores: Sequence[Store[Any]]) -> tuple[Sequence[Any], Sequence[Any]]:
    nodes, *pods = (store.values() for store in stores)
    return nodes, pods[0] if pods else []


def _create_annotator(
    settings: SettingsByGroup, stores: Sequence[Store[Any]], access: _Access, stack: AsyncExitStack
) -> Annotator:
    config, clock, registry = access.config, access.clock, access.registry
    window = settings[WindowOptions]
    dependencies = SourceDependencies(
        access.api,
        NodeAttributesCache(stores[0]).read,
        settings[PrometheusOptions],
        window.max_age_s,
        annotators.QUERY_TIMEOUT_S,
        registry,
    )
    sources = create_metric_sources([_usage_source_name(settings)], (), dependencies) if config.usage else []
    for source in sources:
        if isinstance(source, PrometheusSource):
            stack.push_async_callback(source.close)
    limits = FetchLimits(annotators.QUERY_TIMEOUT_S, _MAX_CONCURRENT)
    selector = SourceSelector(sources, limits, clock, registry)
    usage_source = annotators.create_usage_source(sources, config, window, selector, clock)
    node_patches.check_max_age(window.max_age_s, config.period_s)
    return Annotator(config, window.max_age_s, usage_source, clock, registry)


def _usage_source_name(settings: SettingsByGroup) -> str:
    """The name of the source of usage, as `create_metric_sources` accepts it."""
    has_url = bool(settings[PrometheusOptions].prometheus_url)
    option = chosen = settings[AnnotateOptions].usage_from
    if chosen == "auto":
        chosen = "prometheus" if has_url else "resource"
    if chosen == "prometheus" and not has_url:
        raise BadSettings("settings", [Problem("--usage-from", "prometheus", "--prometheus-url with it")])
    if chosen in {"prometheus", "resource"} or chosen.startswith("file:"):
        return chosen
    expected = "auto, prometheus, resource or file:PATH"
    raise BadSettings("settings", [Problem("--usage-from", repr(option), expected)])


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def print_annotation_plan(plan: PatchPlan) -> None:
    """Print one line for each node: free and requested resources, and the number of annotations to write."""
    rows = []
    for node in plan.nodes:
        count = sum(key != keys.ANNOTATED_AT for key in node.patch)
        to_write = "the time" if node.patch else "nothing"
        if count:
            to_write = f"{count} annotations" if count > 1 else "1 annotation"
        rows.append([node.name, *_annotation_table_cells(node.desired), to_write])
    rows += [[name, *["-"] * len(_COLUMNS), "nothing: it is not ready"] for name in plan.not_ready]
    shown = terminal_output.TableData(["NODE", *(head for head, *_ in _COLUMNS), "TO WRITE"], sorted(rows))
    for head, *_ in _COLUMNS:
        shown = terminal_output.drop_empty_columns(head, *shown)
    terminal_output.print_table(*shown)


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
    return f"{number / 2**20:.0f} Mi" if key.endswith("memory") else f"{number:.0f}"


def encode_annotation_plan(plan: PatchPlan, written: WriteResult | None) -> bytes:
    """The plan as JSON, with the annotations themselves; `written` is None for a dry run."""
    body: dict[str, Any] = {
        "nodes": [
            {"node": node.name, "stands": node.current, "wanted": node.desired, "patch": node.patch}
            for node in plan.nodes
        ],
        "not_ready": plan.not_ready,
        "unmeasured": plan.unmeasured,
        "failures": plan.failures,
    }
    if written is not None:
        body["written"] = written._asdict()
    return msgspec.json.encode(body)


def format_patch_summary(plan: PatchPlan, written: WriteResult) -> str:
    """One line about a burst of plan."""
    counts = (
        (written.done, "annotated"),
        (len(plan.nodes) - written.done - written.failed - written.gone, "unchanged"),
        (written.failed, "failed"),
        (written.gone, "gone"),
        (len(plan.not_ready), "not ready"),
        (len(plan.unmeasured), "not measured"),
    )
    parts = [f"{count} {what}" for number, (count, what) in enumerate(counts) if count or not number]
    return f"nodes: {', '.join(parts)}"


class AnnotatorVariable(NamedTuple):
    """The translation of an environment variable of the older annotators to flags.

    Sources: kube-safe-scheduler `node-annotator/usage/k8s_analytics.py` and `node-annotator/allocation`.
    """

    flag: str
    """If this flag or its own variable is set, the older variable has no effect."""
    read: Callable[[str], Sequence[str] | None]
    """Returns the flags for a value; None if the value is invalid."""
    expected: str


def _parse_period(text: str) -> Sequence[str] | None:
    is_valid = re.fullmatch(r"\+?[0-9]{1,9}", text.strip()) and int(text) >= MIN_PERIOD_S
    return ("--period", f"{int(text)}s") if is_valid else None


def _make_switch_parser(flag: str) -> Callable[[str], Sequence[str] | None]:
    return lambda text: {"true": (flag,), "false": ()}.get(text.strip().lower())


def _parse_cluster(text: str) -> Sequence[str] | None:
    if text == "out-of-cluster":
        return ("--kubeconfig", KUBECONFIG) if Path(KUBECONFIG).is_file() else ()
    return () if text == "in-cluster" else None


def _parse_exporter_port(text: str) -> Sequence[str] | None:
    return ("--exporter-matchers", f'instance=~".*:{text}"') if re.fullmatch("[0-9]{1,5}", text) else None


VARIABLES: Final[Mapping[str, AnnotatorVariable]] = {
    "ANNOTATE_FREQ": AnnotatorVariable("--period", _parse_period, f"whole seconds, {MIN_PERIOD_S:g} or more"),
    "USE_FORECAST": AnnotatorVariable(
        "--annotate-forecast", _make_switch_parser("--annotate-forecast"), "true or false"
    ),
    "USE_REQ": AnnotatorVariable(
        "--annotate-use-requests", _make_switch_parser("--annotate-use-requests"), "true or false"
    ),
    "CLUSTER_CONF": AnnotatorVariable("--kubeconfig", _parse_cluster, "in-cluster or out-of-cluster"),
    "NODE_EXP_PORT": AnnotatorVariable("--exporter-matchers", _parse_exporter_port, "a port"),
}


def translate_annotator_variables(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """The flags for the variables that are set and that no flag or variable of nodewise overrides."""

    def is_set(flag: str) -> bool:
        own = "NODEWISE_" + flag.removeprefix("--").replace("-", "_").upper()
        return own in environment or any(argument.partition("=")[0] == flag for argument in arguments)

    flags: list[str] = []
    for name, variable in VARIABLES.items():
        text = environment.get(name, "")
        if not text or is_set(variable.flag):
            continue
        words = variable.read(text)
        if words is None:
            logs.emit_later("variable_ignored", variable=name, seen=text[:80], wanted=variable.expected)
        else:
            flags += words
    # address and port are two variables; if only one is set, the other has its default
    host, port = environment.get("PROM_IP", ""), environment.get("PROM_PORT", "")
    if (host or port) and not is_set("--prometheus-url"):
        host = f"[{host}]" if ":" in host else host or "127.0.0.1"
        flags += ("--prometheus-url", f"http://{host}:{port or '9090'}")
    return flags
