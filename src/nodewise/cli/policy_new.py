"""`nodewise policy new`: prints a placement policy with a threshold that fits the current values of a metric."""

import asyncio
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.base import clock, quantity, safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, Problem, shown, visible
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs, terminal_output
from nodewise.cli.completion import NamespaceName
from nodewise.cli.decide_inputs import MetricOptions
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.object_files import DEFAULT_NAMESPACE
from nodewise.metrics import aggregation
from nodewise.metrics.aggregation import Direction, ValueDistribution
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.metrics.series import Series
from nodewise.observe import logs
from nodewise.policies.hysteresis import HoldTimes

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_STRINGS: Final = frozenset({"y", "yes", "n", "no", "true", "false", "on", "off", "null", "nan", "inf"})
"""Plain scalars, in lower case, that parsers of YAML 1.1 or 1.2 do not read as strings."""
_WIDTH: Final = 100
"""Of the text of a comment."""


def format_policy(document: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """One YAML document, with its comments at the top and without `---`."""
    written = (
        line
        for comment in comments
        for line in textwrap.wrap(visible(comment), _WIDTH, break_on_hyphens=False)
    )
    return "\n".join([*(f"# {line}" for line in written), *_lines(document)]) + "\n"


def _lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """The lines of an object or a list. A list is not indented further than its key, as kubectl prints it."""
    if isinstance(value, Mapping):
        for key, field in value.items():
            if _is_nested(field):
                yield f"{scalar(key)}:"
                indent = "" if isinstance(field, list) else "  "
                yield from (f"{indent}{line}" for line in _lines(field))
            else:
                yield f"{scalar(key)}: {scalar(field)}"
    else:
        for entry in value:
            first, *rest = _lines(entry) if _is_nested(entry) else [scalar(entry)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def scalar(value: Any) -> str:
    """A number or an empty object as it is; a text in quotes unless every parser reads it as a string."""
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_STRINGS:
        return value
    return f'"{"".join(map(_escape, value))}"'


def _escape(character: str) -> str:
    """A character in a double-quoted scalar (YAML 1.2.2, section 5.7)."""
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 2**16 else f"\\U{ord(character):08x}"


POLICY_FILE: Final = "policy.yaml"
SUITE_FILE: Final = "tests/suite.yaml"
_POD: Final = "example"
_MINUTE_S: Final = 60.0
"""Between two values and two evaluations, the default of a suite."""
_LAST_VALUES: Final = 4
"""Values after the last change, so that tests that are added have some."""
_PLAIN_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class NewPolicy(NamedTuple):
    """What the suite of a new policy depends on."""

    request: MetricRequest
    direction: Direction
    threshold: int
    """Nano-units."""
    release: int | None
    """Nano-units."""
    times: HoldTimes
    namespace: str
    """Of the example pod."""
    labels: Mapping[str, str]
    """Of the example pod."""
    is_preferred: bool
    """Whether pods are placed on avoided nodes if there are no others."""


def format_suite(policy: NewPolicy) -> str:
    """The suite as YAML. Its values are close to the threshold, so that it detects every change of the rule."""
    metric = policy.request.metric
    # a name that PromQL cannot read without quotes is a label
    name = f"{metric}{{" if _PLAIN_METRIC.fullmatch(metric) else f'{{__name__="{metric}", '
    values, expectations = _values_and_expectations(policy)
    test = {
        "name": f"nodes with {_comparison(policy)} {'come last' if policy.is_preferred else 'take no pods'}",
        "nodes": [*values, "without-a-value"],
        "pods": [
            {
                "name": _POD,
                "namespace": policy.namespace,
                **({"labels": dict(policy.labels)} if policy.labels else {}),
            }
        ],
        "input_series": [
            {"series": f'{name}node="{node}"}}', "values": text} for node, text in values.items()
        ],
        "expect": expectations,
    }
    return format_policy({"policy_files": [f"../{POLICY_FILE}"], "tests": [test]}, _COMMENTS)


def _comparison(policy: NewPolicy) -> str:
    return f"{policy.request.name} {policy.direction} {quantity.nano_to_text(policy.threshold)}"


def _values_and_expectations(policy: NewPolicy) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The values of each node, one per minute, and what is expected before and after each effect of the rule."""
    threshold, (for_s, keep_for_s) = policy.threshold, policy.times
    distance = abs(threshold) // 20 or quantity.NANO // 2
    beyond = threshold + (distance if policy.direction == "above" else -distance)
    expectations = [_expectation(policy, 0, is_avoided=False)] if for_s else []
    expectations.append(_expectation(policy, for_s or _MINUTE_S, is_avoided=True))
    minutes = int((for_s or _MINUTE_S) // _MINUTE_S) + 1
    phases = [(beyond, minutes)]
    if policy.release is not None:
        phases += [((threshold + policy.release) // 2, 1), (policy.release, _LAST_VALUES)]
        expectations.append(_expectation(policy, minutes * _MINUTE_S, is_avoided=True))
        expectations.append(_expectation(policy, (minutes + 1) * _MINUTE_S, is_avoided=False))
    elif keep_for_s:
        end_s = minutes * _MINUTE_S + keep_for_s
        phases.append((threshold, math.ceil(keep_for_s / _MINUTE_S) + 1))
        expectations.append(_expectation(policy, minutes * _MINUTE_S, is_avoided=True))
        expectations.append(_expectation(policy, end_s, is_avoided=False))
    else:
        phases = [(beyond, minutes + _LAST_VALUES)]
    count = sum(count for _, count in phases)
    values = {
        "at-the-threshold": _notation(threshold, count),
        "beyond-it": " ".join(_notation(value, count) for value, count in phases),
    }
    return values, expectations


def _notation(value: int, count: int) -> str:
    """So many equal values."""
    return f"{quantity.nano_to_text(value)}x{count - 1}" if count > 1 else quantity.nano_to_text(value)


def _expectation(policy: NewPolicy, at_s: float, *, is_avoided: bool) -> dict[str, Any]:
    """What is expected at a time, in the order of the fields of a suite."""
    at = {"eval_time": clock.format_duration(at_s) if at_s else "0s", "pod": f"{policy.namespace}/{_POD}"}
    if policy.is_preferred:
        ranks = {"at-the-threshold": 1, "without-a-value": 1, "beyond-it": 3 if is_avoided else 1}
        return {**at, "ranks": ranks}
    if not is_avoided:
        return {**at, "rejected": []}
    # with states, the reason depends on the time since the last change
    has_states = policy.release is not None or any(policy.times)
    return {**at, "rejected": ["beyond-it"] if has_states else {"beyond-it": _comparison(policy)}}


_COMMENTS: Final[Sequence[str]] = (
    "Tests of the policy: nodewise policy test FOLDER.",
    "Values are one per minute: 80+1x10 are 80 to 90, _ is a missing value, and stale ends a series.",
)


_MOST_NODES: Final = 5
"""Nodes that are named in a comment."""
_MAX_NAME: Final = 63


def distribution_lines(distribution: ValueDistribution, series: Series) -> Iterator[str]:
    """The number of nodes with values, and some percentiles."""
    count, without = len(distribution.ordered), len(distribution.without_value)
    yield (
        f"{series.metric}: {count} {'node' if count == 1 else 'nodes'} with a value from source {series.source},"
        f" {without} without"
    )
    if series.incomplete:
        yield f"Warning: the response is incomplete, so values may be missing: {series.incomplete}"
    figures = {
        "minimum": distribution.ordered[0],
        "median": distribution.percentile(50),
        "90th percentile": distribution.percentile(90),
        "maximum": distribution.ordered[-1],
    }
    yield ", ".join(f"{name} {quantity.nano_to_text(value)}" for name, value in figures.items())


def rejected_nodes(distribution: ValueDistribution, direction: Direction, threshold: int) -> str:
    """The number of nodes beyond a threshold in nano-units, and the first of their names."""
    nodes = distribution.beyond(direction, threshold)
    count = f"{len(nodes)} of {len(distribution.ordered) + len(distribution.without_value)} nodes now"
    if not nodes:
        return count
    names = ", ".join(nodes[:_MOST_NODES])
    return f"{count}: {names}{', …' if len(nodes) > _MOST_NODES else ''}"


def default_name(metric: str) -> str:
    """The name of a policy for a metric, which is a valid object name."""
    plain = re.sub(r"[^a-z0-9]+", "-", metric.lower()).strip("-")
    return f"avoid-{plain}"[:_MAX_NAME].rstrip("-")


def written_value(text: str) -> str:
    """A quantity in YAML: a number if it is whole, else a string, because the field accepts no fractions as numbers."""
    return text if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text) else f'"{text.strip()}"'


_MOST_SUGGESTIONS: Final = 5
_AGGREGATIONS: Final = "max, min, sum or avg"
_ENFORCEMENT_LINES: Final = {
    "Required": ["  # A node that meets any of these rules takes no such pods."],
    "Preferred": [
        "  # Such pods are placed on other nodes, if there are any.",
        "  enforcement: Preferred",
        "  # A node that meets any of these rules comes after all others.",
    ],
}

_MODE_LINES: Final[Mapping[str, Sequence[str]]] = {
    "Enforce": [],
    "Shadow": [
        "  # Evaluated and reported, without any effect; with Enforce, the policy has one.",
        "  mode: Shadow",
    ],
}


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

    for_s: Annotated[float | None, Option("--for", metavar="DURATION")] = None
    """Avoid only nodes that have been beyond the threshold for this time."""

    release: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid a node until its value is beyond this second threshold again."""

    keep_for_s: Annotated[float | None, Option("--keep-for", metavar="DURATION")] = None
    """Avoid a node for this time after it was last beyond the threshold; not together with --release."""

    selector: Annotated[str, Option("-l --selector", metavar="LABELS")] = ""
    """Labels of the pods that the policy affects, such as app=web,tier=batch; default: all pods."""

    name: Annotated[str, Option(metavar="NAME")] = ""
    """Name of the policy; default: from the metric."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAME", type=NamespaceName())] = ""
    """Namespace of the policy; default: the one that kubectl uses."""

    enforcement: Literal["Required", "Preferred"] = "Required"
    """Whether pods must avoid the nodes, or only prefer others."""

    mode: Literal["Enforce", "Shadow"] = "Enforce"
    """With Shadow, the policy is evaluated and has no effect until you edit its mode."""

    cluster_wide: bool = False
    """Print a ClusterPlacementPolicy, which affects the pods of all namespaces."""

    folder: Annotated[str, Option(metavar="DIR")] = ""
    """Write policy.yaml and its tests, tests/suite.yaml, to this new folder instead of printing the policy."""


class _Threshold(NamedTuple):
    direction: Direction
    text: str
    """A quantity as it was typed or proposed."""
    release: int | None
    """The second threshold in nano-units."""


@settings_command(
    "new",
    NewPolicyOptions,
    ClusterOptions,
    MetricOptions,
    RefreshOptions,
    PrometheusOptions,
    short_help="Print a policy with a threshold that fits a metric.",
)
def command(command_line: CommandLine) -> None:
    """Print a commented PlacementPolicy that avoids nodes by a metric.

    The metric is read once, for all nodes, from the sources that --metrics or the settings file of the extender name.
    With FILE (files or folders with metrics and Nodes, as for nodewise decide) no cluster is read. The distribution of
    the values is part of the comments, with the nodes that the threshold rejects now. On a terminal, nodewise asks for
    what no flag says, and proposes a threshold that at most a tenth of the nodes exceeds. With --folder the policy and
    a suite for nodewise policy test are written.

    \b
    Examples:
      nodewise policy new
      nodewise policy new --metric health_metric --above 0 -l app=web >policy.yaml
      nodewise policy new --metric cpu_usage_share --above 0.8 --folder cpu
      nodewise policy new --metric temp --above 80 --for 2m --mode Shadow
      nodewise policy new --metric cpu_usage_share --above 0.8 --cluster-wide

    \b
    Exit codes:
      0  the policy was printed or written
      1  the metric or the cluster cannot be read, or a file cannot be written
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
        for line in distribution_lines(distribution, series):
            click.echo(visible(line), err=True)
    threshold = _threshold(own, distribution)
    lines = [visible(line) for line in _policy_lines(own, request, labels, threshold, distribution, series)]
    text = "\n".join(lines)
    _check(text, own)
    if own.folder:
        suite = format_suite(_suite_inputs(own, request, labels, threshold))
        _write_folder(Path(own.folder), {POLICY_FILE: f"{text}\n", SUITE_FILE: suite})
    else:
        for line in lines:
            terminal_output.print_line(line)


def _suite_inputs(
    own: NewPolicyOptions, request: MetricRequest, labels: Mapping[str, str], threshold: _Threshold
) -> NewPolicy:
    return NewPolicy(
        request,
        threshold.direction,
        quantity.parse(threshold.text),
        threshold.release,
        HoldTimes(own.for_s or 0.0, own.keep_for_s or 0.0),
        own.namespace if own.namespace and not own.cluster_wide else DEFAULT_NAMESPACE,
        labels,
        own.enforcement == "Preferred",
    )


def _write_folder(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files. Existing ones are not changed."""
    for name, text in texts.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(text)
        except OSError as error:
            problem = Problem(str(path), error.strerror or str(error), "a new file")
            raise BadInput("policy new", [problem]) from error
        terminal_output.print_line(str(path))


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
    settings = decide_inputs.metric_settings(command_line)
    kube = command_line.settings(ClusterOptions).kube
    async with nullcontext() if paths else open_api(kube) as api:
        inputs = await decide_inputs.read_nodes(paths, api)
        snapshot = await decide_inputs.fetch_metrics(inputs, [request], settings, api)
        series = snapshot.series.get(request.key)
        if series is not None:
            return series, inputs.node_names or sorted({*series.samples, *series.invalid})
        why = snapshot.failures.get(request.key, "no source has it")
        similar = await decide_inputs.similar_metrics(
            request.metric, inputs, settings, api, _MOST_SUGGESTIONS
        )
    expected = f"a metric of nodes, such as {' or '.join(similar)}" if similar else "a metric of nodes"
    raise BadInput("policy new", [Problem("--metric", f"{shown(request.metric)}: {why}", expected)])


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
    return aggregation.distribution_of(values, [node for node in nodes if node not in values])


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
    _parse_quantity(f"--{direction}", text)
    release = _parse_quantity("--release", own.release) if own.release else None
    return _Threshold(direction, text, release)


def _parse_quantity(flag: str, text: str) -> int:
    """Nano-units."""
    try:
        return quantity.parse(text)
    except ValueError as error:
        raise BadSettings("settings", [Problem(flag, shown(text), quantity.EXPECTED)]) from error


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
    yield from (f"# {line}" for line in distribution_lines(distribution, series))
    yield "apiVersion: nodewise.io/v1alpha1"
    yield f"kind: {'Cluster' if own.cluster_wide else ''}PlacementPolicy"
    yield "metadata:"
    yield f"  name: {scalar(own.name or default_name(request.metric))}"
    if own.namespace and not own.cluster_wide:
        yield f"  namespace: {scalar(own.namespace)}"
    yield "spec:"
    if own.cluster_wide:
        yield "  # The namespaces whose pods the policy affects; {} selects all."
        yield "  namespaceSelector: {}"
    inside = "the selected namespaces" if own.cluster_wide else "the namespace"
    yield f"  # The pods that the policy affects; {{}} selects all pods of {inside}."
    yield f"  podSelector:{'' if labels else ' {}'}"
    if labels:
        yield "    matchLabels:"
        yield from (f"      {scalar(key)}: {scalar(value)}" for key, value in labels.items())
    yield from _MODE_LINES[own.mode]
    yield from _ENFORCEMENT_LINES[own.enforcement]
    yield "  avoid:"
    yield f"  # {rejected_nodes(distribution, threshold.direction, quantity.parse(threshold.text))}"
    yield f"  - metric: {scalar(request.metric)}"
    if request.aggregate:
        yield f"    aggregate: {request.aggregate}  # of several values of one node"
    yield f"    {threshold.direction}: {written_value(threshold.text)}"
    yield from _hold_lines(own)
    yield "    # Whether a node without a value takes pods: Allow or Reject."
    yield "    whenMissing: Allow"


def _hold_lines(own: NewPolicyOptions) -> Iterator[str]:
    """The fields that keep the verdict about a node whose value is near the threshold."""
    if own.for_s is not None:
        yield "    # How long a node must be beyond the threshold before it is avoided."
        yield f"    for: {clock.format_duration(own.for_s)}"
    if own.release:
        yield "    # An avoided node takes pods again when its value is not beyond this."
        yield f"    release: {written_value(own.release)}"
    if own.keep_for_s is not None:
        yield "    # How long a node is still avoided when its value is no longer beyond the threshold."
        yield f"    keepFor: {clock.format_duration(own.keep_for_s)}"


def _check(text: str, own: NewPolicyOptions) -> None:
    """Refuse a name or labels that the API server would refuse."""
    from nodewise.policy_tools import policy_lint  # start-up time: only policies need it

    document: Any = safe_yaml_loader.load(text.encode(), "policy")
    kind: Literal["PlacementPolicy", "ClusterPlacementPolicy"] = (
        "ClusterPlacementPolicy" if own.cluster_wide else "PlacementPolicy"
    )
    problems = policy_lint.lint(msgspec.json.encode(document), kind)
    if problems:
        raise BadSettings("policy new", problems)
