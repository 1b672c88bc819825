"""`nodewise metrics`: lists the metrics of nodes, on how many nodes they have values, and which policies use them."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.agent import ObjectKey, Watched
from nodewise.agents.telemetry import KIND
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import NodewiseError, Refused
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs, terminal_output
from nodewise.cli.decide_inputs import MetricOptions, ObjectsAndMetrics
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, ReplicaOptions, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.engine import object_feed
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.http_client import HttpApi
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest, RefreshOptions
from nodewise.metrics.missing_values import UNKNOWN
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.series import Series
from nodewise.observe import logs
from nodewise.policies.options import TelemetryOptions

_MOST_SIMILAR: Final = 5
_MOST_NAMES: Final = 100  # names of metrics that nodewise does not request, in a table


class MetricsOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise metrics`."""

    name: Annotated[str, Argument(metavar="[NAME]", is_required=False)] = ""

    output: Annotated[Literal["table", "json"], Option("-o --output")] = "table"
    """Output format."""


class MetricRow(NamedTuple):
    """A metric. `-o json` prints it under these names."""

    metric: str
    """`MetricRequest.key`: with its aggregation and query."""
    source: str | None
    """None if no source has given values."""
    nodes: int | None
    """How many nodes have a value; None for a metric that is not requested, so that its values are unknown."""
    age_s: float | None
    """The age of the oldest value, or of the request if the source gives no times."""
    policies: list[str]
    """The policies that use it, among those that the user may list."""
    cause: str
    """Why no node has a value, or some have none."""


class MetricList(NamedTuple):
    """The metrics, and where they were read."""

    rows: list[MetricRow]
    inputs: str
    """Which replica's values they are; empty: read with the rights of the user."""
    similar: list[str]
    """Names that are similar to the requested one, if that is unknown."""


@settings_command(
    "metrics",
    MetricsOptions,
    ReplicaOptions,
    ClusterOptions,
    MetricOptions,
    RefreshOptions,
    PrometheusOptions,
    short_help="List the metrics of nodes, and the policies that use them.",
)
def command(command_line: CommandLine) -> None:
    """List the metrics of nodes: on how many nodes they have a value, how old it is, and which policies use them.

    Metrics that nodewise requests come with the values of a replica of the running nodewise. The other metrics of the
    metrics APIs are listed by name. NAME selects one metric; one that nodewise does not request is read once, with your
    rights, from the metrics APIs, or from Prometheus with --prometheus-url. Without a replica that you may reach, the
    metrics of the policies that you may list are read in this way, too. Nothing is written.

    \b
    Examples:
      nodewise metrics
      nodewise metrics node_load1 -o json
      nodewise metrics node_load1 --prometheus-url http://localhost:9090

    \b
    Exit codes:
      0  listed
      1  the cluster cannot be read
      2  the command line or a setting is invalid
      3  no source has the metric NAME, or no node has a value of it
    """
    logs.configure("error", "messages")
    own = command_line.settings(MetricsOptions)
    listed = cooperative_scheduling.run_event_loop(_list_metrics(command_line))
    if own.output == "json":
        rows = [row._asdict() for row in listed.rows]
        document = {"metrics": rows, "inputs": listed.inputs, "similar": listed.similar}
        click.echo(msgspec.json.encode(document))
    else:
        _print_table(listed, own.name)
    if own.name and not any(row.nodes for row in listed.rows):
        click.get_current_context().exit(terminal_output.NO)


async def _list_metrics(command_line: CommandLine) -> MetricList:
    replica_options = command_line.settings(ReplicaOptions)
    async with open_api(command_line.settings(ClusterOptions).kube) as api:
        running, at, inputs = MetricsSnapshot(), clock.SystemClock().now(), ""
        try:
            with Progress() as progress:
                progress.say("reading metrics of the running nodewise")
                configuration = await decide_inputs.read_running_configuration(api, replica_options)
        except NodewiseError as error:
            terminal_output.print_message(f"metrics are read with your own rights: {error}")
        else:
            command_line = decide_inputs.apply_to_command_line(configuration, command_line)
            if not decide_inputs.selects_other_sources(command_line):
                running, at, inputs = configuration.metrics, configuration.at, configuration.source_text()
        return await _read_metrics(command_line, api, running, at, inputs)


async def _read_metrics(
    command_line: CommandLine, api: HttpApi, running: MetricsSnapshot, at: float, inputs: str
) -> MetricList:
    name = command_line.settings(MetricsOptions).name
    settings = decide_inputs.metric_settings(command_line)
    users, by_key = await _policies_by_metric(api)
    try:
        nodes = await decide_inputs.read_nodes((), api)
    except Refused as error:  # metrics then count under all names
        terminal_output.print_message(f"nodes are not known: {error}")
        nodes = ObjectsAndMetrics((), {}, {}, {}, MetricsSnapshot())
    keys, requests = _select(name, {*running.series, *running.failures}, by_key)
    rest = [request for key, request in requests.items() if not running.was_fetched(key)]
    fetched = await decide_inputs.fetch_metrics(nodes, rest, settings, api)
    metrics = running.only(frozenset(keys)).with_older(fetched)
    now = clock.SystemClock().now()
    rows = [
        _metric_row(key, metrics, nodes, users.get(key, []), at if key in keys else now)
        for key in sorted({*keys, *requests})
    ]
    if name:
        similar: list[str] = []
        exists = [
            row.nodes or metrics.causes.get(row.metric, UNKNOWN).reason == "SeriesEnded" for row in rows
        ]
        if not any(exists):
            known = map(_plain_name, running.series)
            similar = await decide_inputs.similar_metrics(name, nodes, settings, api, _MOST_SIMILAR, known)
        return MetricList(rows, inputs, similar)
    catalog = {*await decide_inputs.metric_names(nodes, settings, api)}
    others = sorted(catalog - {_plain_name(row.metric) for row in rows})
    return MetricList([*rows, *(MetricRow(other, None, None, None, [], "") for other in others)], inputs, [])


def _select(
    name: str, keys: set[str], requests: Mapping[str, MetricRequest]
) -> tuple[set[str], Mapping[str, MetricRequest]]:
    """The keys of the replica and the requests of policies for one metric; for an empty name, all of them."""
    if not name:
        return keys, requests
    own_keys = {key for key in keys if name in {key, _plain_name(key)}}
    own_requests = {key: request for key, request in requests.items() if request.metric == name}
    if not own_keys and not own_requests:
        own_requests = {name: MetricRequest(name)}
    return own_keys, own_requests


def _plain_name(key: str) -> str:
    """The name of a metric in a key such as `max(temp) by query`."""
    name = key.partition(" ")[0]
    return name.rpartition("(")[2].rstrip(")")


async def _policies_by_metric(api: HttpApi) -> tuple[dict[str, list[str]], dict[str, MetricRequest]]:
    """The policies that the user may list, and their requests, by `MetricRequest.key`."""
    options = TelemetryOptions(trust_all_namespaces=True)

    async def list_objects(watched: Watched) -> Mapping[ObjectKey, Any]:
        """The objects of all namespaces, or of that of the context."""
        for namespace in ("", api.namespace):
            with contextlib.suppress(NotFound, Refused):
                return await object_feed.list_once(api, watched, namespace)
        return {}

    watched = KIND.watched(options)
    lists = await asyncio.gather(*map(list_objects, watched))
    objects = {kind.name: listed for kind, listed in zip(watched, lists, strict=True)}
    users: dict[str, list[str]] = {}
    requests: dict[str, MetricRequest] = {}
    for key, policy in KIND.state(options, RefreshOptions().sync_period_s).policies(objects).items():
        own = {
            request.key: request
            for request in (rule.metric_request() for rule in policy.usable_comparisons())
        }
        requests |= own
        for metric in own:
            users.setdefault(metric, []).append(key.text())
    return users, requests


def _metric_row(
    key: str, metrics: MetricsSnapshot, nodes: ObjectsAndMetrics, users: Iterable[str], at: float
) -> MetricRow:
    series = metrics.series.get(key)
    cause = str(metrics.causes.get(key) or metrics.failures.get(key, ""))
    if series is None:
        return MetricRow(key, None, 0, None, list(users), cause or "no source has responded yet")
    names = [name for name in series.samples if not nodes.nodes or ("", name) in nodes.nodes]
    times = [sample.at for sample in map(series.samples.__getitem__, names) if sample.at is not None]
    age_s = round(max(at - min(times, default=series.fetched_at), 0.0), 1)
    cause = cause or _invalid_values(series) or ("" if names else "no value is of a node")
    return MetricRow(key, series.source, len(names), age_s, list(users), cause)


def _invalid_values(series: Series) -> str:
    """Which nodes have no valid value; empty if all have one."""
    if not series.invalid:
        return ""
    node, why = min(series.invalid.items())
    if (count := len(series.invalid)) == 1:
        return f"1 node has no valid value: {node}: {why}"
    return f"{count:,} nodes have no valid value, such as {node}: {why}"


def _print_table(listed: MetricList, name: str) -> None:
    """All metrics with values or causes, and some of the other names."""
    requested = [row for row in listed.rows if row.nodes is not None]
    others = [row for row in listed.rows if row.nodes is None]
    rows = [_cells(row) for row in [*requested, *others[:_MOST_NAMES]]]
    head = ("METRIC", "SOURCE", "NODES", "OLDEST", "USED BY", "WHY VALUES ARE MISSING")
    if rows:
        terminal_output.print_table(*terminal_output.drop_empty_columns(head[-1], head, rows))
    else:
        terminal_output.print_line("no policy uses a metric, and the metrics APIs have none of nodes")
    if len(rows) < len(listed.rows):
        terminal_output.print_line(f"{len(listed.rows) - len(rows):,} more names: -o json lists all")
    if listed.similar:
        terminal_output.print_line(f"similar to {name}: {', '.join(listed.similar)}")
    if listed.inputs:
        terminal_output.print_line(f"with the metric values of {listed.inputs}")


def _cells(row: MetricRow) -> list[str]:
    return [
        row.metric,
        row.source or "-",
        "-" if row.nodes is None else f"{row.nodes:,}",
        "-" if row.age_s is None else clock.format_duration(row.age_s),
        ", ".join(row.policies) or "-",
        row.cause or "-",
    ]
