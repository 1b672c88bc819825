"""`nodewise policy new`: prints a placement policy with a threshold that fits the current values of a metric."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import msgspec

from nodewise.base import cooperative_scheduling, quantity, safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, shown, visible
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs, terminal_output
from nodewise.cli.decide_inputs import MetricOptions
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.parameter_types import NamespaceName, PresetName
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.http_client import HttpApi
from nodewise.kube.object_files import DEFAULT_NAMESPACE
from nodewise.kube.resource_kinds import PODS
from nodewise.metrics import aggregation, metric_files
from nodewise.metrics.aggregation import Direction, ValueDistribution
from nodewise.metrics.metrics_source import MetricRequest, RefreshOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.series import Series
from nodewise.observe import logs
from nodewise.policy_tools import policy_library, policy_lint, policy_writer
from nodewise.policy_tools.policy_library import RuleChanges
from nodewise.policy_tools.policy_writer import CurrentValues, NewPolicy, NewRule

_MOST_SUGGESTIONS: Final = 5
_AGGREGATIONS: Final = "max, min, sum or avg"
_ALL_PODS: Final = "{}"
_MOST_PODS: Final = "500"  # pods whose labels are read to propose a selector
_NAMING_LABELS: Final = ("app", "app.kubernetes.io/name", "k8s-app")
"""Keys of labels that name an application. The first one wins between labels of equally many pods."""


class NewPolicyOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy new`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False)] = ()

    preset: Annotated[str, Option(metavar="NAME", type=PresetName())] = ""
    """Policy of the library (nodewise policy library). Flags replace its first threshold and what belongs to it."""

    metric: Annotated[str, Option(metavar="NAME")] = ""
    """Metric of nodes to compare."""

    aggregate: Literal["max", "min", "sum", "avg"] | None = None
    """How several values of one node become one."""

    above: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid nodes whose value is above this threshold."""

    below: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid nodes whose value is below this threshold."""

    for_s: Annotated[float | None, Option("--for", metavar="DURATION")] = None
    """Avoid a node only after its value has been above or below the threshold for this time."""

    release: Annotated[str, Option(metavar="QUANTITY")] = ""
    """Avoid a node until its value is at most this second threshold; with --below, at least."""

    keep_for_s: Annotated[float | None, Option("--keep-for", metavar="DURATION")] = None
    """Avoid a node for this time after its value was last above or below the threshold; not with --release."""

    selector: Annotated[str, Option("-l --selector", metavar="LABELS")] = ""
    """Labels of the pods that the policy affects, such as app=web,tier=batch; {} for all pods. Without it, nodewise
    asks on a terminal, and selects all pods elsewhere."""

    name: Annotated[str, Option(metavar="NAME")] = ""
    """Name of the policy; default: from the metric or the preset."""

    namespace: Annotated[str, Option("-n --namespace", metavar="NAME", type=NamespaceName())] = ""
    """Namespace of the policy, and of the pods that a ClusterPlacementPolicy affects; default: the one that kubectl
    uses."""

    enforcement: Literal["Required", "Preferred"] = "Required"
    """Whether pods must avoid the nodes, or only prefer others."""

    mode: Literal["Enforce", "Shadow"] = "Shadow"
    """With Shadow, the policy is evaluated and has no effect until you edit its mode."""

    cluster_wide: bool = False
    """Print a ClusterPlacementPolicy, which affects the pods of all namespaces, or of --namespace."""

    folder: Annotated[str, Option(metavar="DIR")] = ""
    """Write policy.yaml and its tests, tests/suite.yaml, to this new folder instead of printing the policy."""


@settings_command(
    "new",
    NewPolicyOptions,
    ClusterOptions,
    MetricOptions,
    RefreshOptions,
    PrometheusOptions,
    short_help="Print a policy with a threshold that fits a metric.",
)
def command(command_line: CommandLine) -> None:  # complexity: asks for what no flag says
    """Print a commented PlacementPolicy that avoids nodes by a metric.

    The metric is read once, for all nodes, from the sources that --metrics or the settings file of the extender name.
    With FILE (files or folders with metrics and Nodes, as for nodewise decide) no cluster is read. The distribution of
    the values is part of the comments, with the nodes that the threshold rejects now. On a terminal, nodewise asks for
    what no flag says: it proposes the label of most pods of the namespace, and a threshold that at most a tenth of the
    nodes exceeds. The policy begins in the mode Shadow, without any effect. With --folder the policy and a suite for
    nodewise policy test are written.

    With --preset the rules come from the library, and values are read only if FILE or --prometheus-url is set. A preset
    with a query is a ClusterPlacementPolicy; with --namespace it selects the pods of this namespace.

    \b
    Examples:
      nodewise policy new
      nodewise policy new --metric health_metric --above 0 -l app=web >policy.yaml
      nodewise policy new --metric cpu_usage_share --above 0.8 -l app=a --folder f
      nodewise policy new --metric temp --above 80 --for 2m -l '{}' --mode Enforce
      nodewise policy new --metric cpu_usage_share --above 0.8 --cluster-wide
      nodewise policy new --preset disk-wear --above 95 -l app=db --folder disks

    \b
    Exit codes:
      0  the policy was printed or written
      1  the metric or the cluster cannot be read, or a file cannot be written
      2  the command line or a setting is invalid
    """
    logs.configure("error", "messages")  # a metric that no source has is an error of the command
    own = command_line.settings(NewPolicyOptions)
    _check_flags(own)
    policy, values = _new_policy(own, command_line)
    lines = [visible(line) for line in policy_writer.policy_lines(policy, values)]
    text = "\n".join(lines)
    # `BadSettings` for a name or labels that the API server would refuse
    document: Any = safe_yaml_loader.load(text.encode(), "policy")
    if problems := policy_lint.lint(msgspec.json.encode(document), document["kind"]):
        raise BadSettings("policy new", problems)
    if not own.folder:
        for line in lines:
            terminal_output.print_line(line)
        return
    suite = policy_writer.format_suite(policy)
    _write_folder(Path(own.folder), {policy_writer.POLICY_FILE: f"{text}\n", policy_writer.SUITE_FILE: suite})


def _new_policy(
    own: NewPolicyOptions, command_line: CommandLine
) -> tuple[NewPolicy, Sequence[CurrentValues | None]]:
    """The policy of the flags and of the answers, and the current values for each of its rules."""
    values: Sequence[CurrentValues | None]
    if own.preset:
        preset = policy_library.load(own.preset, "--preset")
        changes = RuleChanges(
            direction="above" if own.above else "below" if own.below else None,
            threshold=own.above or own.below,
            release=own.release,
            for_s=own.for_s,
            keep_for_s=own.keep_for_s,
        )
        rules = policy_library.change_rule(preset.new_rules(), changes)
        values = cooperative_scheduling.run_event_loop(_read_values_of_preset(rules, own, command_line))
        rules = tuple(map(_with_warning, rules, values)) if _has_sources(own, command_line) else rules
        # only a cluster policy has queries
        is_cluster_wide = own.cluster_wide or any(rule.request.query for rule in rules)
        labels = _selector(own, command_line, is_cluster_wide=is_cluster_wide)
        name, guard, comments = own.preset, preset.guard, preset.comments(own.preset)
    else:
        name = own.metric or _ask_or_fail("Metric", "--metric", "the name of a metric of nodes")
        request = MetricRequest(name, aggregate=own.aggregate or "")
        current = cooperative_scheduling.run_event_loop(_read_values(request, own, command_line))
        is_cluster_wide = own.cluster_wide
        labels = _selector(own, command_line, is_cluster_wide=is_cluster_wide)
        rules, values = (_ask_rule(request, own, current),), [current]
        guard, comments = {}, []
    policy = NewPolicy(
        rules,
        labels,
        own.name or policy_writer.default_name(name),
        own.namespace,
        is_cluster_wide,
        own.enforcement,
        own.mode,
        guard,
        comments,
    )
    return policy, values


def _check_flags(own: NewPolicyOptions) -> None:
    if own.above and own.below:
        raise BadSettings(
            "settings", [Problem("--below", shown(own.below), "only one of --above and --below")]
        )
    for flag, value in {"--metric": own.metric, "--aggregate": own.aggregate}.items():
        if own.preset and value:
            raise BadSettings("settings", [Problem(flag, shown(value), f"--preset without {flag}")])
    for flag, value in {"--above": own.above, "--below": own.below, "--release": own.release}.items():
        if value:
            _check_quantity(flag, value)


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
        raise BadSettings("settings", [Problem(flag, "no value", f"{expected}{example}")])
    answer: str = click.prompt(question, default=default, err=True)
    return answer.strip()


def _selector(own: NewPolicyOptions, command_line: CommandLine, *, is_cluster_wide: bool) -> dict[str, str]:
    """The labels of the flag, or the answer to a question that proposes the label of most pods.

    All pods only if the answer says so; without a terminal all pods, with a message.
    """
    if command_line.is_given("selector"):
        return _parse_selector(own.selector)
    inside = policy_writer.namespaces_text(is_cluster_wide)
    if not is_interactive():
        terminal_output.print_message(f"no --selector: the policy selects all pods of {inside}")
        return {}
    pod_labels = Counter[str]()
    if not is_cluster_wide or own.namespace:
        pod_labels = cooperative_scheduling.run_event_loop(_count_pod_labels(own, command_line))
    frequent = pod_labels.most_common(_MOST_SUGGESTIONS)
    if frequent:
        listed = ", ".join(f"{label} ({count})" for label, count in frequent)
        click.echo(visible(f"Labels of pods of {inside}, with numbers of pods: {listed}"), err=True)
    question = f"Labels of the pods, such as app=web, or {_ALL_PODS} for all pods of {inside}"
    proposed = visible(frequent[0][0]) if frequent else None
    answer: dict[str, str] = click.prompt(question, default=proposed, value_proc=_parse_answer, err=True)
    return answer


def _parse_answer(text: str) -> dict[str, str]:
    try:
        return _parse_selector(text)
    except BadSettings as error:
        [problem] = error.problems
        raise click.UsageError(f"found {problem.found}, expected {problem.expected}") from error


def _parse_selector(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    if text.strip() == _ALL_PODS:
        return labels
    for part in filter(None, map(str.strip, text.split(","))):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise BadSettings(
                "settings", [Problem("--selector", shown(part), "labels such as app=web,tier=batch")]
            )
        labels[key.strip()] = value.strip().removeprefix("=").strip()
    return labels


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""


class _PodMetadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] | None = None
    ownerReferences: tuple[_Owner, ...] | None = None  # noqa: N815 - the API's name


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMetadata = _PodMetadata()


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] = ()


async def _read_values(
    request: MetricRequest, own: NewPolicyOptions, command_line: CommandLine
) -> CurrentValues:
    settings = decide_inputs.metric_settings(command_line)
    kube = command_line.settings(ClusterOptions).kube
    async with nullcontext() if own.paths else open_api(kube) as api:
        inputs = await decide_inputs.read_nodes(own.paths, api)
        snapshot = await decide_inputs.fetch_metrics(inputs, [request], settings, api)
        series = snapshot.series.get(request.key)
        if series is not None:
            distribution = _distribution(series, inputs.node_names)
            if distribution is None:
                raise _no_values_error(request, series, inputs.node_names)
            return CurrentValues(distribution, series)
        why = snapshot.failures.get(request.key, "no source has it")
        cause = snapshot.causes.get(request.key)
        similar = []
        if cause is None or cause.reason != "SeriesEnded":
            similar = await decide_inputs.similar_metrics(
                request.metric, inputs, settings, api, _MOST_SUGGESTIONS
            )
    expected = f"a metric of nodes, such as {' or '.join(similar)}" if similar else "a metric of nodes"
    raise BadInput("policy new", [Problem("--metric", f"{shown(request.metric)}: {why}", expected)])


def _no_values_error(request: MetricRequest, series: Series, nodes: Sequence[str]) -> BadInput:
    example = next((f"; {node}: {why}" for node, why in series.invalid.items()), "")
    actual = f"{len(nodes) or len(series.invalid)} nodes, none with a value{example}"
    field, expected = "--metric", "a metric of nodes"
    if not request.aggregate:
        field, expected = "--aggregate", f"{_AGGREGATIONS}, if nodes have several values"
    return BadInput("policy new", [Problem(field, actual, expected)])


def _has_sources(own: NewPolicyOptions, command_line: CommandLine) -> bool:
    """Whether the values of a preset are read."""
    return bool(own.paths or command_line.settings(PrometheusOptions).prometheus_url)


def _with_warning(rule: NewRule, values: CurrentValues | None) -> NewRule:
    """The rule with a comment if it rejects every node, because no node has a value."""
    if values is not None or rule.request.empty_is_healthy:
        return rule
    warning = (
        f"Warning: no node has a value of {rule.name} now. While that is so, the rule rejects every node."
    )
    return rule._replace(comments=(*rule.comments, warning))


async def _read_values_of_preset(
    rules: Sequence[NewRule], own: NewPolicyOptions, command_line: CommandLine
) -> list[CurrentValues | None]:
    """The values for each rule if a Prometheus or files are named; None with a message for a metric without values."""
    settings = decide_inputs.metric_settings(command_line)
    if not _has_sources(own, command_line):
        return [None for _ in rules]
    kube = command_line.settings(ClusterOptions).kube
    async with nullcontext() if own.paths else open_api(kube) as api:
        inputs = await decide_inputs.read_nodes(own.paths, api)
        requests = [rule.request for rule in rules]
        snapshot = await decide_inputs.fetch_metrics(inputs, requests, settings, api)

    def values_of(rule: NewRule) -> CurrentValues | None:
        series = snapshot.series.get(rule.request.key)
        if series is not None:
            if distribution := _distribution(series, inputs.node_names):
                return CurrentValues(distribution, series)
            if rule.request.empty_is_healthy:
                return None
        why = snapshot.failures.get(rule.request.key, "no node has a value")
        if rule.request.query and not settings.prometheus.prometheus_url:
            why = "a query requires --prometheus-url"
        if not rule.request.empty_is_healthy:
            why += "; while no node has a value, the rule rejects every node: correct the cause, or delete the rule"
        terminal_output.print_message(f"{rule.name}: {why}")
        return None

    return [*map(values_of, rules)]


async def _count_pod_labels(own: NewPolicyOptions, command_line: CommandLine) -> Counter[str]:
    """The number of pods of the namespace with each label that names an application, such as `app=web`.

    Policies select no pods of DaemonSets. Empty if the pods cannot be read.
    """
    counts = Counter[str]()
    with suppress(NodewiseError):
        async with (
            nullcontext() if own.paths else open_api(command_line.settings(ClusterOptions).kube) as api
        ):
            namespace = own.namespace or (api.namespace if api else DEFAULT_NAMESPACE)
            pods = await _read_pods(own.paths, api, namespace)
        for pod in pods:
            labels = pod.metadata.labels or {}
            if all(owner.kind != "DaemonSet" for owner in pod.metadata.ownerReferences or ()):
                counts.update(f"{key}={labels[key]}" for key in _NAMING_LABELS if key in labels)
    return counts


async def _read_pods(paths: Sequence[str], api: HttpApi | None, namespace: str) -> Sequence[_Pod]:
    """The first pods of a namespace."""
    if api is None:
        plain, _ = metric_files.split_paths(paths)
        pods = object_files.read(plain).of(PODS, _Pod) if plain else ()
        return [pod for pod in pods if (pod.metadata.namespace or DEFAULT_NAMESPACE) == namespace]
    body = await api.get(PODS.path(namespace), {"limit": _MOST_PODS})
    return msgspec.json.decode(body, type=_PodList).items


def _distribution(series: Series, names: Sequence[str]) -> ValueDistribution | None:
    """The distribution over all nodes; without Nodes in files, over those of the series. None without a value."""
    nodes = names or sorted({*series.samples, *series.invalid})
    values = {node: series.samples[node].value for node in nodes if node in series.samples}
    if not values:
        return None
    return aggregation.distribution_of(values, [node for node in nodes if node not in values])


def _ask_rule(request: MetricRequest, own: NewPolicyOptions, current: CurrentValues) -> NewRule:
    """The rule of the flags, with the answer to a question that proposes a threshold if no flag has one."""
    if is_interactive():
        for line in policy_writer.distribution_lines(current.distribution, current.series):
            click.echo(visible(line), err=True)
    direction: Direction = "below" if own.below else "above"
    threshold = own.below or own.above
    if not threshold:
        if is_interactive():
            sides: click.Choice[Direction] = click.Choice(["above", "below"])
            direction = click.prompt("Avoid nodes whose value is", type=sides, default="above", err=True)
        proposed = quantity.nano_to_text(current.distribution.propose_threshold(direction))
        example = f"--above {proposed}" if not is_interactive() else proposed
        threshold = _ask_or_fail("Threshold", "--above", "a threshold (or --below)", example)
        _check_quantity(f"--{direction}", threshold)
    return NewRule(request, direction, threshold, own.release, own.for_s, own.keep_for_s)


def _check_quantity(flag: str, text: str) -> None:
    try:
        quantity.parse(text)
    except ValueError as error:
        raise BadSettings("settings", [Problem(flag, shown(text), quantity.EXPECTED)]) from error
