"""`nodewise policy new`: prints a placement policy with a threshold that fits the current values of a metric."""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise import agents, clock, quantity, safe_yaml_loader
from nodewise.cli import decide_inputs, options_from_settings, terminal_output
from nodewise.cli.decide import MetricOptions
from nodewise.cli.decide_inputs import MetricSettings, ObjectsAndMetrics
from nodewise.cli.extender_options import GROUPS
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.errors import BadInput, BadSettings, NodewiseError, Problem, closest_names, shown
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import Api
from nodewise.metrics import value_distribution
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.metrics.series import Series
from nodewise.metrics.value_distribution import Direction, ValueDistribution
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.option import Argument, Option
from nodewise.terminal_escaping import visible

_MOST_NODES: Final = 5
"""Nodes that are named in a comment."""
_MOST_SUGGESTIONS: Final = 5
_MAX_NAME: Final = 63
_AGGREGATIONS: Final = "max, min, sum or avg"


class NewPolicyOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy new`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False)] = ()

    metric: Annotated[str, Option(metavar="NAME")] = ""
    """Metric of nodes to compare."""

    aggregate: Literal["max", "min", "sum", "avg"] | None = None
    """How several values of one node become one."""

    above: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid nodes whose value is above this threshold."""

    below: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid nodes whose value is below this threshold."""

    selector: Annotated[str, Option("-l --selector", metavar="LABELS")] = ""
    """Labels of the pods that the policy affects, such as app=web,tier=batch; default: all pods."""

    name: Annotated[str, Option(metavar="NAME")] = ""
    """Name of the policy; default: from the metric."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAME")] = ""
    """Namespace of the policy; default: the one that kubectl uses."""

    cluster_wide: bool = False
    """Print a ClusterPlacementPolicy, which affects the pods of all namespaces."""


class _Threshold(NamedTuple):
    direction: Direction
    text: str
    """A quantity as it was typed or proposed."""


def run(command_line: CommandLine) -> None:
    """Print a commented PlacementPolicy that avoids nodes by a metric.

    The metric is read once, for all nodes, from the sources that --metrics or the settings file of the extender name.
    With FILE (files or folders with metrics and Nodes, as for nodewise decide) no cluster is read. The distribution of
    the values is part of the comments, with the nodes that the threshold rejects now. On a terminal, nodewise asks for
    what no flag says, and proposes a threshold that at most a tenth of the nodes exceeds.

    \b
    Examples:
      nodewise policy new
      nodewise policy new --metric health_metric --above 0 -l app=web >policy.yaml
      nodewise policy new --metric cpu_usage_share --above 0.8 --cluster-wide

    \b
    Exit codes:
      0  the policy was printed
      1  the metric or the cluster cannot be read
      2  the command line or a setting is invalid
    """
    logs.configure("error")  # a metric that no source has is an error of the command
    own = command_line.settings(NewPolicyOptions)
    labels = _parse_selector(own.selector)
    if own.above and own.below:
        raise BadSettings(
            "settings", [Problem("--below", shown(own.below), "only one of --above and --below")]
        )
    metric = own.metric or _ask_or_fail("Metric", "--metric", "the name of a metric of nodes")
    request = MetricRequest(metric, aggregate=own.aggregate or "")
    series, nodes = asyncio.run(_read_metric(request, own.paths, command_line))
    distribution = _distribution(request, series, nodes)
    if is_interactive():
        for line in _distribution_lines(distribution, series):
            click.echo(visible(line), err=True)
    threshold = _threshold(own, distribution)
    lines = [visible(line) for line in _policy_lines(own, request, labels, threshold, distribution, series)]
    _check("\n".join(lines), own)
    for line in lines:
        terminal_output.print_line(line)


def is_interactive() -> bool:
    """Whether a person can answer questions, which are asked on stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_or_fail(question: str, flag: str, expected: str, default: str | None = None) -> str:
    if not is_interactive():
        example = f", for example {default}" if default else ""
        raise BadSettings("settings", [Problem(flag, "none", f"{expected}{example}")])
    answer: str = click.prompt(question, default=default, err=True)
    return answer.strip()


def _parse_selector(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise BadSettings(
                "settings", [Problem("--selector", shown(part), "labels such as app=web,tier=batch")]
            )
        labels[key.strip()] = value.strip().removeprefix("=").strip()
    return labels


async def _read_metric(
    request: MetricRequest, paths: Sequence[str], command_line: CommandLine
) -> tuple[Series, Sequence[str]]:
    """The metric and the names of all nodes; without Nodes in files, of those that have a value."""
    api = None if paths else connect(command_line.settings(ClusterOptions).kube, MetricsRegistry())
    settings = MetricSettings(
        command_line.settings(MetricOptions).metrics,
        command_line.settings(RefreshOptions),
        command_line.settings(PrometheusOptions),
    )
    try:
        inputs = await decide_inputs.read_nodes(paths, api)
        snapshot = await decide_inputs.fetch_metrics(inputs, [request], settings, api)
        series = snapshot.series.get(request.key)
        if series is None:
            why = snapshot.failures.get(request.key, "no source has it")
            raise await _unknown_metric_error(request, why, inputs, settings, api)
        return series, inputs.node_names or sorted({*series.samples, *series.invalid})
    finally:
        if api is not None:
            await api.close()


async def _unknown_metric_error(
    request: MetricRequest, why: str, inputs: ObjectsAndMetrics, settings: MetricSettings, api: Api | None
) -> NodewiseError:
    names = await decide_inputs.metric_names(request.metric, inputs, settings, api)
    similar = closest_names(request.metric, names, _MOST_SUGGESTIONS)
    actual = f"{shown(request.metric)}: {why}"
    expected = f"a metric of nodes, such as {' or '.join(similar)}" if similar else "a metric of nodes"
    return BadInput("policy new", [Problem("--metric", actual, expected)])


def _distribution(request: MetricRequest, series: Series, nodes: Sequence[str]) -> ValueDistribution:
    values = {node: series.samples[node].value for node in nodes if node in series.samples}
    if not values:
        example = next(iter(series.invalid.items()), None)
        actual = f"{len(nodes)} nodes, none with a value"
        if example is not None:
            actual += f"; {example[0]}: {example[1]}"
        field = "--metric" if request.aggregate else "--aggregate"
        expected = (
            "a metric of nodes" if request.aggregate else f"{_AGGREGATIONS}, if nodes have several values"
        )
        raise BadInput("policy new", [Problem(field, actual, expected)])
    return value_distribution.distribution_of(values, [node for node in nodes if node not in values])


def _threshold(own: NewPolicyOptions, distribution: ValueDistribution) -> _Threshold:
    """The threshold of the flags, or the answer to a question that proposes one."""
    direction: Direction = "below" if own.below else "above"
    text = own.below or own.above
    if not text:
        if is_interactive():
            sides: click.Choice[Direction] = click.Choice(["above", "below"])
            direction = click.prompt("Avoid nodes whose value is", type=sides, default="above", err=True)
        proposed = quantity.nano_to_text(distribution.propose_threshold(direction))
        example = f"--above {proposed}" if not is_interactive() else proposed
        text = _ask_or_fail("Threshold", "--above", "a threshold (or --below)", example)
    try:
        quantity.parse(text)
    except ValueError as error:
        raise BadSettings("settings", [Problem(f"--{direction}", shown(text), quantity.EXPECTED)]) from error
    return _Threshold(direction, text)


def _policy_lines(
    own: NewPolicyOptions,
    request: MetricRequest,
    labels: Mapping[str, str],
    threshold: _Threshold,
    distribution: ValueDistribution,
    series: Series,
) -> Iterator[str]:
    """The YAML, with comments that say what each field means."""
    yield f"# Printed by `nodewise policy new` on {clock.format_rfc3339(clock.SystemClock().now())[:10]}."
    yield from (f"# {line}" for line in _distribution_lines(distribution, series))
    yield "apiVersion: nodewise.io/v1alpha1"
    yield f"kind: {'Cluster' if own.cluster_wide else ''}PlacementPolicy"
    yield "metadata:"
    yield f"  name: {_scalar(own.name or _default_name(request.metric))}"
    if own.namespace and not own.cluster_wide:
        yield f"  namespace: {_scalar(own.namespace)}"
    yield "spec:"
    if own.cluster_wide:
        yield "  # The namespaces whose pods the policy affects; {} selects all."
        yield "  namespaceSelector: {}"
    inside = "the selected namespaces" if own.cluster_wide else "the namespace"
    yield f"  # The pods that the policy affects; {{}} selects all pods of {inside}."
    yield f"  podSelector:{'' if labels else ' {}'}"
    if labels:
        yield "    matchLabels:"
        yield from (f"      {_scalar(key)}: {_scalar(value)}" for key, value in labels.items())
    yield "  # A node that meets any of these rules takes no such pods."
    yield "  avoid:"
    yield f"  # {_rejected_nodes(distribution, threshold)}"
    yield f"  - metric: {_scalar(request.metric)}"
    if request.aggregate:
        yield f"    aggregate: {request.aggregate}  # of several values of one node"
    yield f"    {threshold.direction}: {_written_value(threshold.text)}"
    yield "    # Whether a node without a value takes pods: Allow or Reject."
    yield "    whenMissing: Allow"


def _distribution_lines(distribution: ValueDistribution, series: Series) -> Iterator[str]:
    count, without = len(distribution.ordered), len(distribution.without_value)
    yield (
        f"{series.metric}: {count} {'node' if count == 1 else 'nodes'} with a value from source {series.source},"
        f" {without} without"
    )
    figures = {
        "minimum": distribution.ordered[0],
        "median": distribution.percentile(50),
        "90th percentile": distribution.percentile(90),
        "maximum": distribution.ordered[-1],
    }
    yield ", ".join(f"{name} {quantity.nano_to_text(value)}" for name, value in figures.items())


def _rejected_nodes(distribution: ValueDistribution, threshold: _Threshold) -> str:
    nodes = distribution.beyond(threshold.direction, quantity.parse(threshold.text))
    count = f"{len(nodes)} of {len(distribution.ordered) + len(distribution.without_value)} nodes now"
    if not nodes:
        return count
    names = ", ".join(nodes[:_MOST_NODES])
    return f"{count}: {names}{', …' if len(nodes) > _MOST_NODES else ''}"


def _default_name(metric: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")
    return f"avoid-{plain}"[:_MAX_NAME].rstrip("-")


def _written_value(text: str) -> str:
    """A quantity in YAML: a number if it is whole, else a string, because the field accepts no fractions as numbers."""
    return text if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else f'"{text.strip()}"'


def _scalar(text: str) -> str:
    """A string in YAML, quoted where it would be something else."""
    is_plain = (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text)
        and safe_yaml_loader.load(text.encode(), "value") == text
    )
    return text if is_plain else msgspec.json.encode(text).decode()


def _check(text: str, own: NewPolicyOptions) -> None:
    """Refuse a name or labels that the API server would refuse."""
    from nodewise.agents.telemetry import policy_lint  # start-up time: only policies need it

    document: Any = safe_yaml_loader.load(text.encode(), "policy")
    kind: Literal["PlacementPolicy", "ClusterPlacementPolicy"] = (
        "ClusterPlacementPolicy" if own.cluster_wide else "PlacementPolicy"
    )
    problems = policy_lint.lint(msgspec.json.encode(document), kind)
    if problems:
        raise BadSettings("policy new", problems)


command = options_from_settings.create_click_command(
    "new",
    run,
    options_from_settings.click_parameters(
        NewPolicyOptions,
        ClusterOptions,
        MetricOptions,
        RefreshOptions,
        PrometheusOptions,
        known=GROUPS,
        known_kinds=[agents.load(name) for name in agents.names()],
    ),
    short_help="Print a policy with a threshold that fits a metric.",
)
