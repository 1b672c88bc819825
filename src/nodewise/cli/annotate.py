"""`nodewise annotate`: what nodes use and what pods ask of them, written where agents read it."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import click

from nodewise.annotator import measuring, writing
from nodewise.annotator import options as annotator_options
from nodewise.annotator.fields import HOLDING, POD, AnnotatedNode
from nodewise.annotator.loop import Annotator, Looked
from nodewise.annotator.options import (
    LEAST_PERIOD_S,
    AnnotatorOptions,
    ForecastOptions,
    Period,
    Task,
    What,
)
from nodewise.annotator.patches import Rules
from nodewise.annotator.writing import Written
from nodewise.cli import annotated, cluster, exits, feeds, older_annotators, settings
from nodewise.cli.feeds import Ground
from nodewise.cli.options import ExtenderOptions
from nodewise.cli.progress import Progress
from nodewise.clock import SystemClock
from nodewise.errors import BadSettings, Problem
from nodewise.kube import listing
from nodewise.kube.client import HttpApi
from nodewise.kube.connect import connect
from nodewise.kube.fields import merge
from nodewise.kube.options import KubeOptions
from nodewise.kube.reflector import Reflector, Target
from nodewise.kube.resources import NODES, PODS
from nodewise.kube.store import Store
from nodewise.metrics.asking import Asker, Limits
from nodewise.metrics.nodes import NodeBook, NodeFields
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusMetrics
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.observe.meters import Meters
from nodewise.serve.admin import admin_routes, admin_server
from nodewise.serve.application import Application
from nodewise.serve.options import AdminOptions, ServeOptions
from nodewise.statistics.queries import WindowOptions

_NODE: Final[Any] = merge("Node", NodeFields, AnnotatedNode)
_TICK_S: Final = 1.0
_CALLS: Final = 8
"""Metrics asked for at once; there are four."""


class AnnotateOptions(ForecastOptions, frozen=True, kw_only=True):
    """What is written, and how often."""

    what: What = "all"
    """`usage`: what is really free, by what nodes use. `allocation`: what pods ask for, and what that leaves. `all`:
    both; let one annotator write a cluster's nodes, as one time stands for all that is written."""

    period_s: Period = LEAST_PERIOD_S
    """How often nodes are looked at; at least a minute, as each burst of patches has all pods that wait tried again."""

    metrics: str = "auto"
    """Who says what nodes use. `prometheus`: --prometheus-url, by node exporter's metrics. `resource`: metrics.k8s.io,
    of which samples are kept over the window. `auto`: Prometheus where its URL is given, else metrics.k8s.io.
    `file:PATH`: NodeMetricsLists in YAML or JSON, for trying things out."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of log lines that are written."""

    log_format: Literal["text", "json"] = "text"
    """Form of log lines: text for people, json for collectors."""


GROUPS: Final = (AnnotateOptions, WindowOptions, PrometheusOptions, AdminOptions)
_OTHERS: Final = (ExtenderOptions, ServeOptions, KubeOptions, RefreshOptions, AnnotatorOptions)
"""The extender's file of settings serves here too."""


class Wired(NamedTuple):
    """What a run is made of."""

    api: HttpApi
    annotator: Annotator
    nodes: Store[Any]
    pods: Store[Any] | None
    """None where nobody needs to know what pods ask for."""
    closing: Sequence[Callable[[], Awaitable[None]]]

    def held(self) -> list[Any]:
        """The pods that hold what they ask for."""
        return self.pods.values() if self.pods is not None else []

    async def close(self) -> None:
        for close in self.closing:
            await close()


class _AnnotateCommand(click.Command):
    """Understands the variables of the older annotators as well."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*older_annotators.flags(os.environ, args), *args])


def run(**given: Any) -> None:
    """Write statistics of nodes as annotations: what is really free, and what pods asked for.

    Over and over, once a period, in one burst; --once for a single time. Only what moved by more than 2 % is written,
    and the time when that was (nodewise.io/annotated-at). Nodes that are not ready keep what they have.
    The variables of kube-safe-scheduler's annotators (PROM_IP, PROM_PORT, NODE_EXP_PORT, CLUSTER_CONF, ANNOTATE_FREQ,
    USE_FORECAST, USE_REQ) are understood too.
    Exit code 1 of --once: something could not be measured or written.

    \b
    Example:  nodewise annotate --once --dry-run
              nodewise annotate --prometheus-url http://prometheus.monitoring:9090
              nodewise annotate --what allocation --once -o json
    """
    built: dict[type, Any] = {group: settings.build(group, given) for group in GROUPS}
    own: AnnotateOptions = built[AnnotateOptions]
    alone = given["once"] or given["dry_run"]
    logs.configure("warning" if alone and own.log_level == "info" else own.log_level, own.log_format)
    if alone:
        click.get_current_context().exit(asyncio.run(_once(built, given)))
    asyncio.run(_serve(built, given))


async def _once(built: Mapping[type, Any], given: dict[str, Any]) -> int:
    clock, meters = SystemClock(), Meters()
    api = connect(cluster.chosen(given), meters)
    own: AnnotateOptions = built[AnnotateOptions]
    task = annotator_options.made(own, own.what, own.period_s)
    with Progress() as progress:
        stores = []
        for target in _targets(task):
            progress.say(f"reading {target.resource.plural}")
            stores.append(await listing.read(api, target, meters, lambda _: None))
        wired = _wired(built, api, stores, clock, meters)
        try:
            progress.say("measuring")
            await wired.annotator.sample()
            looked = await wired.annotator.look(wired.nodes.values(), wired.held(), holds=False)
            progress.say("writing")
            lane = api.lane(writing.QPS, writing.BURST)
            written = None if given["dry_run"] else await writing.write(lane, looked.plans.nodes)
        finally:
            await wired.close()
    return _told(looked, written, given["output"], is_sampled=wired.annotator.is_sampled)


def _told(looked: Looked, written: Written | None, output: str, *, is_sampled: bool) -> int:
    """Print what came of one time; the exit code."""
    for note in annotated.notes(looked, one_sample=is_sampled):
        annotated.tell(note)
    if output == "json":
        click.echo(annotated.report(looked, written))
    elif written is None:
        annotated.table(looked)
    else:
        click.echo(annotated.summary(looked, written))
    if written is not None and written.error:
        annotated.tell(written.error)
    failed = looked.failures or looked.plans.unmeasured or (written is not None and written.failed)
    return exits.FAILED if failed else exits.DONE


def _targets(task: Task) -> list[Target[Any]]:
    pods = [Target(PODS, POD, selectors=HOLDING)] if task.needs_pods else []
    return [Target(NODES, _NODE), *pods]


def _wired(
    built: Mapping[type, Any], api: HttpApi, stores: Sequence[Store[Any]], clock: SystemClock, meters: Meters
) -> Wired:
    own: AnnotateOptions = built[AnnotateOptions]
    window: WindowOptions = built[WindowOptions]
    prometheus: PrometheusOptions = built[PrometheusOptions]
    task = annotator_options.made(own, own.what, own.period_s)
    nodes, *rest = stores
    ground = Ground(api, NodeBook(nodes).read, prometheus, window.max_age_s, measuring.PATIENCE_S, meters)
    sources = feeds.sources([_source(own, prometheus)], (), ground) if task.usage else []
    asker = Asker(sources, Limits(measuring.PATIENCE_S, _CALLS), clock, meters)
    measure = measuring.measure(sources, task, window, asker, clock)
    annotator = Annotator(task, Rules(window.max_age_s), measure, clock, meters)
    closing = [source.close for source in sources if isinstance(source, PrometheusMetrics)]
    return Wired(api, annotator, nodes, rest[0] if rest else None, [*closing, api.close])


def _source(own: AnnotateOptions, prometheus: PrometheusOptions) -> str:
    """As `feeds.sources` takes it."""
    if own.metrics == "auto":
        return "prometheus" if prometheus.prometheus_url else "resource"
    if own.metrics in {"prometheus", "resource"} or own.metrics.startswith("file:"):
        return own.metrics
    wanted = "auto, prometheus, resource or file:PATH"
    raise BadSettings("settings", [Problem("--metrics", repr(own.metrics), wanted)])


async def _serve(built: Mapping[type, Any], given: dict[str, Any]) -> None:
    """Until a signal comes."""
    clock, meters = SystemClock(), Meters()
    api = connect(cluster.chosen(given), meters)
    own: AnnotateOptions = built[AnnotateOptions]
    targets = _targets(annotator_options.made(own, own.what, own.period_s))
    reflectors = [Reflector(api, target, clock, meters, random.random) for target in targets]
    wired = _wired(built, api, [one.store for one in reflectors], clock, meters)
    app = Application(admin_routes(lambda: _missing(reflectors), meters), meters, max_body_bytes=2**16)
    admin = admin_server(app, built[AdminOptions], meters)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tasks = [asyncio.create_task(one.run()) for one in reflectors]
    tasks.append(asyncio.create_task(_forever(wired, reflectors)))
    try:
        await admin.start()
        logs.emit("started", address="", health=admin.url)
        await ended.wait()
        logs.emit("stopping")
    finally:
        await admin.stop()
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wired.close()


def _missing(reflectors: Sequence[Reflector[Any]]) -> list[str]:
    return [] if all(one.synced for one in reflectors) else ["nodes and pods of the API server"]


async def _forever(wired: Wired, reflectors: Sequence[Reflector[Any]]) -> None:
    """A defect is logged, and the next period tried again: others' statistics grow old without it."""
    for one in reflectors:
        await one.until_synced()
    lane = wired.api.lane(writing.QPS, writing.BURST)
    while True:
        try:
            await wired.annotator.sample()
            if wired.annotator.is_due():
                await wired.annotator.burst(lane, wired.nodes.values(), wired.held())
        except Exception as error:  # noqa: BLE001 - see above
            logs.emit("task_failed", task="annotating", exc_info=error)
        await asyncio.sleep(_TICK_S)


command = _AnnotateCommand(
    "annotate",
    callback=run,
    help=run.__doc__,
    short_help="Write statistics of nodes as annotations.",
    params=[
        click.Option(["--once"], is_flag=True, help="Do it a single time, and end."),
        click.Option(
            ["--dry-run"], is_flag=True, help="Print what would be written, write nothing, and end."
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="Of --once and --dry-run.",
        ),
        *cluster.options(),
        *settings.options(*GROUPS, known=_OTHERS),
    ],
)
