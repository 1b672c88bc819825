"""`nodewise policy diff`: what changes for nodes and pods if policies replace others."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.agent import NodeIndex, Watched
from nodewise.agents.telemetry import KIND
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_duration, format_rfc3339
from nodewise.base.errors import BadInput, BadSettings, Problem, counted
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs, terminal_output
from nodewise.cli.decide_inputs import InputSelection, MetricOptions, ObjectsAndMetrics
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.policy_backtest import report
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import progress_bar
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe import logs
from nodewise.policies import policy_status, policy_status_fields
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policies.state import POLICY_KINDS, PolicyState
from nodewise.policy_tools import device_timeline, policy_diff, policy_history_diff, policy_timeline
from nodewise.policy_tools.backtest_history import HistoryObjects, HistoryRange
from nodewise.policy_tools.device_timeline import (
    DeviceChange,
    DeviceObjects,
    DeviceRuleChange,
    DeviceState,
    DeviceTimeline,
)
from nodewise.policy_tools.policy_diff import ModeChange, NodeVerdict, SelectedPodGroup
from nodewise.policy_tools.policy_history_diff import HistoryComparison
from nodewise.policy_tools.policy_timeline import Moment, Objects, PolicyTimeline, TimelineSettings

_NO_VALUE: Final = "no value"
_MAX_ROWS: Final = 20  # nodes that the text lists for a group of pods; JSON has all of them


class DiffOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy diff`."""

    old: Annotated[str, Argument(metavar="OLD")] = ""

    new: Annotated[str, Argument(metavar="NEW")] = ""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False)] = ()

    cluster: bool = False
    """Read nodes, pods, metrics and other policies from the cluster; needs only the rights to list and get objects."""

    now: Annotated[str, Option(metavar="TIME")] = ""
    """Time of the comparison, RFC 3339; default: that of the newest sample in files."""

    since_s: Annotated[float, Option("--since", metavar="DURATION", shows_default=False)] = 0.0
    """Also compare over this time of history in Prometheus, such as 7d."""

    step_s: Annotated[float, Option("--step", metavar="DURATION")] = 60.0
    """Time between two evaluations of the history."""

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Output format."""


class PolicyComparison(NamedTuple):
    """What changes from some policies to others."""

    node_count: int
    groups: Sequence[SelectedPodGroup]
    """Those with nodes that change."""
    pod_count: int
    """The pods that any policy selects."""
    labels: Sequence[tuple[str, str, str, str]]
    """Node, key, and values before and after."""
    missing: str = ""
    """Which metrics of the compared policies have no value on any node, and why; empty if all have values."""
    has_values: bool = True
    """Whether a rule of the compared policies is valid and its metric has a value."""
    modes: Sequence[ModeChange] = ()
    notes: Sequence[str] = ()
    """Which policies are compared as if they were enforced."""
    history: HistoryComparison | None = None
    device_rules: Sequence[DeviceRuleChange] = ()
    devices: Sequence[DeviceChange] = ()
    device_count: int = 0
    """The devices of the drivers that device rules name."""
    unknown_devices: Sequence[str] = ()
    """Those without a value for a rule that differs: whether they change is unknown."""

    @property
    def is_comparable(self) -> bool:
        """Whether anything was compared, now or in the history."""
        return self.has_values or self.history is not None or bool(self.device_rules)

    @property
    def has_changes(self) -> bool:
        now = self.groups or self.labels or self.modes or self.device_rules or self.devices
        return bool(now or (self.history and (self.history.groups or self.history.devices)))


@settings_command(
    "diff",
    DiffOptions,
    ClusterOptions,
    MetricOptions,
    RefreshOptions,
    PrometheusOptions,
    kinds=[KIND],
    short_help="Show what changes if policies replace others.",
)
def command(command_line: CommandLine) -> None:
    """Show the nodes, pods and devices that change if the policies of NEW replace those of OLD.

    OLD and NEW are files or folders with policies, also of different kinds or names. Nodes, pods, metrics and all other
    policies are read from FILE as by nodewise decide, or with --cluster from the cluster. Pods with the same policies
    are compared once. If none is selected, an example for the selectors of each policy is compared. Node labels of
    policies are compared as if no node had any. Device rules that differ are listed, and with ResourceSlices and values
    the devices that would be tainted or released. Policies in the mode Shadow or Canary are compared as if they were
    enforced, unless NEW gives a policy more effect: from Shadow to Enforce, or another canary. With --since, rejections
    and taints are also compared over the history of the metrics in Prometheus, for the pods, nodes and devices of now.
    Nothing is written.

    \b
    Examples:
      nodewise policy diff policy.yaml stricter.yaml --cluster
      nodewise policy diff policy.yaml stricter.yaml nodes.yaml metrics.csv
      nodewise policy diff policy.yaml stricter.yaml --cluster --since 7d \\
        --prometheus-url http://localhost:9090

    \b
    Exit codes:
      0  nothing changes; with --since, at the times that could be compared
      1  a file or the cluster cannot be read, or no rule could be compared
      2  the command line or a setting is invalid
      3  a change: a node for a pod, a node label, a taint, a device rule, a mode
    """
    logs.configure("error", "messages")
    own = command_line.settings(DiffOptions)
    if not own.paths and not own.cluster:
        expected = "files with nodes, pods and metrics, or --cluster"
        raise BadSettings("settings", [Problem("FILE", "no file", expected)])
    if own.since_s and not command_line.settings(PrometheusOptions).prometheus_url:
        raise BadSettings(
            "settings", [Problem("--prometheus-url", "no value", "the URL of Prometheus, for --since")]
        )
    if own.since_s and not 1 <= own.step_s <= own.since_s:
        raise BadSettings("settings", [Problem("--step", f"{own.step_s:g}s", "1s to the time of --since")])
    comparison = cooperative_scheduling.run_event_loop(_compare(own, command_line))
    if comparison.missing:
        terminal_output.print_message(
            f"Warning: {comparison.missing}; rules with these metrics are not compared"
        )
    if own.output == "json":
        click.echo(msgspec.json.encode(_document(comparison)))
    else:
        _print_text(comparison)
    if comparison.has_changes:
        click.get_current_context().exit(terminal_output.NO)
    if not comparison.is_comparable:
        expected = "at least one; `nodewise policy lint` checks the policies"
        actual = "no rule that can be evaluated with a metric that has values"
        raise BadInput("policy diff", [Problem(f"{own.old}, {own.new}", actual, expected)])


def _read_policies(path: str, options: TelemetryOptions) -> Objects:
    objects = policy_timeline.objects_of_files(object_files.read([path]), options)
    if not any(objects[name] for name in POLICY_KINDS):
        raise BadInput(
            "policy diff", [Problem(path, "no policy", f"one of {', '.join(POLICY_KINDS.values())}")]
        )
    return objects


async def _compare(  # complexity: reads, evaluates and compares
    own: DiffOptions, command_line: CommandLine
) -> PolicyComparison:
    options = command_line.agent_options(KIND)
    assert isinstance(options, TelemetryOptions)
    old, new = _read_policies(own.old, options), _read_policies(own.new, options)
    fetching = decide_inputs.metric_settings(command_line)
    selection = InputSelection(own.paths, (), [KIND.name], {KIND.name: options}, "", running=True)
    kube = command_line.settings(ClusterOptions).kube
    async with open_api(kube) if own.cluster else nullcontext() as api:
        sources = decide_inputs.read_files(selection, api)
        inputs = await decide_inputs.read_objects(selection, sources, _watched_devices(old, new))
        if not inputs.nodes:
            raise BadInput(
                "policy diff", [Problem(" ".join(own.paths) or "the cluster", "no Node", "at least one Node")]
            )
        settings = TimelineSettings(options, fetching.refresh.sync_period_s)
        modes = policy_diff.comparable_modes(old, new)
        objects = policy_diff.replace_policies(inputs.objects, modes.old, modes.new)
        timelines = [PolicyTimeline(objects_of_side, settings) for objects_of_side in objects]
        requests = [request for timeline in timelines for request in timeline.requests.values()]
        snapshot = await decide_inputs.fetch_metrics(inputs, requests, fetching, api)
    at = decide_inputs.decision_time(own.now, inputs.snapshot if api is None else None)
    nodes = NodeIndex(inputs.node_names)
    before, after = (_advance(timeline, at, snapshot, nodes) for timeline in timelines)
    groups = _group_pods(before, after, inputs)
    states = [*_states_of(before, old), *_states_of(after, new)]
    compared = [policy_diff.compare(group, before, after) for group in groups]
    comparison = PolicyComparison(
        len(nodes),
        [group for group in compared if group.nodes],
        sum(len(group.pods) for group in groups),
        list(policy_diff.label_changes(before, after)),
        _missing_metrics(states, snapshot),
        _have_values(states),
        modes.changes,
        modes.notes,
    )
    comparison = _with_devices(comparison, (old, new), inputs, objects, (before, after))
    if not own.since_s:
        return comparison
    history_range = HistoryRange(own.since_s, None, own.step_s)
    now = HistoryObjects(inputs.nodes, DeviceObjects.of(inputs.objects))
    with progress_bar("evaluating") as progress:
        history = await policy_history_diff.compare(
            objects, groups, settings, now, fetching.prometheus, history_range, progress
        )
    return comparison._replace(history=history)


def _watched_devices(*sides: Objects) -> Sequence[Watched]:
    """What is read for device rules; nothing without any."""
    policies = chain.from_iterable(policy_diff.parse_policies(side).values() for side in sides)
    return device_timeline.WATCHED if any(policy.device_taints for policy in policies) else ()


def _with_devices(  # complexity: two sides, and policies that are invalid
    comparison: PolicyComparison,
    sides: Sequence[Objects],
    inputs: ObjectsAndMetrics,
    objects: Sequence[Objects],
    moments: Sequence[Moment],
) -> PolicyComparison:
    """The comparison with the devices of all policies, if one of `sides` has device rules."""
    if not _watched_devices(*sides):
        return comparison
    timelines = [
        _device_timeline(inputs, objects_of_side, moment)
        for objects_of_side, moment in zip(objects, moments, strict=True)
    ]
    before, after = timelines
    reports = after.taints.reports.items()
    notes = [
        f"{key.text()}: {text}"
        for key, report in reports
        for text in filter(None, (report.unmatched, report.limited))
    ]
    # the leader leaves the taints of an invalid policy as they are
    invalid = {
        key.name: f"{key.text()} is invalid, so its taints stay as they are: {state.policy.problems[0]}"
        for key, state in moments[1].state.policies.items()
        if "deviceTaints" in state.policy.sections and state.policy.problems
    }
    kept = {name: taint for name, taint in before.taints.wanted.items() if taint.policy not in invalid}
    changes = device_timeline.device_changes(before.taints._replace(wanted=kept), after.taints)
    listed, unknown = _split_changes(changes, before.unknown_devices(after), after.unknown_devices(before))
    if unknown:
        has, change = ("has", "it changes") if len(unknown) == 1 else ("have", "they change")
        notes.append(
            f"{counted(len(unknown), 'device')} {has} no value for a rule that differs: whether {change} is unknown"
        )
    count = len(
        {str(each) for timeline in timelines for each in timeline.table.ids[: timeline.table.present]}
    )
    return comparison._replace(
        notes=[*comparison.notes, *invalid.values(), *notes],
        device_rules=list(device_timeline.device_rule_changes(*map(policy_diff.parse_policies, sides))),
        devices=listed,
        device_count=count,
        unknown_devices=sorted(unknown),
    )


def _split_changes(
    changes: Sequence[DeviceChange], unknown_before: AbstractSet[str], unknown_after: AbstractSet[str]
) -> tuple[list[DeviceChange], AbstractSet[str]]:
    """The changes of known devices, and the other devices. A taint that follows is listed in any case."""
    listed = [
        change._replace(before=DeviceState(reason=_NO_VALUE)) if change.device in unknown_before else change
        for change in changes
        if change.device not in unknown_after and (change.after.effect or change.device not in unknown_before)
    ]
    return listed, (unknown_before | unknown_after) - {change.device for change in listed}


def _device_timeline(inputs: ObjectsAndMetrics, objects: Objects, moment: Moment) -> DeviceTimeline:
    """The device rules of one side, evaluated once."""
    policies = objects.get(RESOURCES["ClusterPlacementPolicy"].plural, {})
    timeline = DeviceTimeline(
        [state.policy for state in moment.state.policies.values() if state.policy.device_taints],
        DeviceObjects.of(inputs.objects),
        {
            PolicyKey("ClusterPlacementPolicy", *key): policy_status.rules_of_status(item)
            for key, item in policies.items()
        },
    )
    timeline.advance(moment.state.device_metrics, moment.state.max_ages, moment.at)
    return timeline


def _advance(timeline: PolicyTimeline, at: float, snapshot: MetricsSnapshot, nodes: NodeIndex) -> Moment:
    responses = {
        key: snapshot.series.get(key) or snapshot.causes.get(key, missing_values.UNKNOWN).event_text()
        for key in timeline.requests
    }
    return timeline.advance(at, responses, nodes)


def _states_of(moment: Moment, side: Objects) -> Iterator[PolicyState]:
    """The states of the policies of one side."""
    for name, kind in POLICY_KINDS.items():
        for namespace, policy in side.get(name, {}):
            if state := moment.state.policies.get(PolicyKey(kind, namespace, policy)):
                yield state


def _have_values(states: Sequence[PolicyState]) -> bool:
    """Whether a rule of these policies is valid, and its metric has a value."""
    return any(
        comparison.metric_request().key not in state.unfetched
        for state in states
        for comparison in chain(state.policy.usable_comparisons(), state.policy.device_comparisons())
    )


def _missing_metrics(states: Sequence[PolicyState], snapshot: MetricsSnapshot) -> str:
    """Which metrics of these policies have no value on any node, and why; empty if all have values."""
    causes: dict[str, Cause] = {key: cause for state in states for key, cause in state.unfetched.items()}
    return policy_status_fields.missing_metrics_text(
        {key: snapshot.causes.get(key, cause) for key, cause in sorted(causes.items())}
    )


def _group_pods(before: Moment, after: Moment, inputs: ObjectsAndMetrics) -> list[SelectedPodGroup]:
    """The pods with the same policies; without any, examples for the selectors of each policy."""
    states = {**before.state.policies, **after.state.policies}
    return policy_diff.group_pods(list(inputs.pods.values()), before, after) or policy_diff.group_pods(
        policy_diff.example_pods([state.policy for state in states.values()]), before, after
    )


def _print_text(comparison: PolicyComparison) -> None:
    for note in comparison.notes:
        terminal_output.print_line(f"Note: {note}")
    for change in comparison.modes:
        terminal_output.print_line(
            f"{change.policy.text()}: mode {change.before} before, {change.after} after"
        )
    for group in comparison.groups:
        _print_group(group, comparison.node_count)
    labels = comparison.labels
    if labels:
        rows = [(node, key, before or "-", after or "-") for node, key, before, after in labels]
        terminal_output.print_table(("NODE", "LABEL", "BEFORE", "AFTER"), rows[:_MAX_ROWS])
        if len(labels) > _MAX_ROWS:
            click.echo(f"… and {len(labels) - _MAX_ROWS} more labels")
    _print_devices(comparison)
    click.echo(_summary(comparison))
    if comparison.history:
        _print_history(comparison.history)


def _print_devices(comparison: PolicyComparison) -> None:
    for rule in comparison.device_rules:
        terminal_output.print_line(f"{rule.policy.text()}: device rule")
        terminal_output.print_line(f"  before: {rule.before or 'none'}")
        terminal_output.print_line(f"  after:  {rule.after or 'none'}")
    if comparison.devices:
        changes = comparison.devices[:_MAX_ROWS]
        terminal_output.print_table(
            ("DEVICE", "BEFORE", "AFTER"),
            [(change.device, change.before.text(), change.after.text()) for change in changes],
        )
        if len(comparison.devices) > _MAX_ROWS:
            click.echo(f"… and {len(comparison.devices) - _MAX_ROWS} more devices")


def _summary(comparison: PolicyComparison) -> str:
    """What changes now, in one line."""
    of_devices = comparison.device_rules or comparison.devices
    if comparison.groups or comparison.labels or comparison.modes or of_devices:
        pods = sum(len(group.pods) for group in comparison.groups)
        selected = f"{pods:,} of {comparison.pod_count:,} selected pods change"
        summary = f"{selected}, {len(comparison.labels):,} node labels change"
        if not of_devices:
            return summary
        rules = len(comparison.device_rules)
        devices = f"{len(comparison.devices):,} of {counted(comparison.device_count, 'device')} change"
        unknown = f", {len(comparison.unknown_devices):,} unknown" if comparison.unknown_devices else ""
        return f"{summary}, {counted(rules, 'device rule')} and {devices}{unknown}"
    if not comparison.is_comparable:
        return "nothing was compared"
    now = " now" if comparison.history else ""
    return f"nothing changes{now}" + (", as far as metrics have values" if comparison.missing else "")


def _print_history(history: HistoryComparison) -> None:
    begun, ended = format_rfc3339(history.start), format_rfc3339(history.end)
    click.echo(f"\nfrom {begun} to {ended}, one evaluation per {format_duration(history.step_s)}:")
    for note in history.notes:
        terminal_output.print_line(f"note: {note}")
    for item in history.groups:
        before, after = (
            report.duration(seconds) for seconds in (item.no_node_before_s, item.no_node_after_s)
        )
        terminal_output.print_line(
            f"{_group_name(item.group)}: {len(item.nodes):,} nodes change; no node was left for {before} before, "
            f"{after} after"
        )
        rows = [(f"  {node.node}", *map(report.duration, node[1:])) for node in item.nodes[:_MAX_ROWS]]
        terminal_output.print_table(("  NODE", "REJECTED BEFORE", "AFTER", "ONLY BEFORE", "ONLY AFTER"), rows)
        if len(item.nodes) > _MAX_ROWS:
            click.echo(f"  … and {len(item.nodes) - _MAX_ROWS} more nodes")
    _print_device_history(history)
    has_changes = history.groups or history.devices
    if not has_changes and history.left_out:
        click.echo(
            f"nothing changes at the last {history.compared} times; the {history.left_out} before are unknown"
        )
    elif not has_changes:
        click.echo("nothing changes")


def _print_device_history(history: HistoryComparison) -> None:
    if history.devices:
        head = ("DEVICE", "EFFECT", "TAINTED BEFORE", "AFTER", "ONLY BEFORE", "ONLY AFTER")
        rows = [(*each[:2], *map(report.duration, each[2:])) for each in history.devices[:_MAX_ROWS]]
        terminal_output.print_table(head, rows)
    if len(history.devices) > _MAX_ROWS:
        click.echo(f"… and {len(history.devices) - _MAX_ROWS} more devices")


def _print_group(group: SelectedPodGroup, node_count: int) -> None:
    """`web/web-1 and 11 more pods: of 5 nodes, 2 verdicts and 1 rank change`, and the nodes."""
    verdicts = sum(change.changes_verdict for change in group.nodes)
    terminal_output.print_line(
        f"{_group_name(group)}: of {counted(node_count, 'node')}, {counted(verdicts, 'verdict')} and "
        f"{counted(len(group.nodes) - verdicts, 'rank')} change"
    )
    rows = [
        (
            f"  {change.node}",
            str(_pods_on(group, change.node) or "-"),
            change.before.text(),
            change.after.text(),
        )
        for change in group.nodes[:_MAX_ROWS]
    ]
    head = ("  NODE", "PODS THERE", "BEFORE", "AFTER")
    terminal_output.print_table(*terminal_output.drop_empty_columns("PODS THERE", head, rows))
    if len(group.nodes) > _MAX_ROWS:
        click.echo(f"  … and {len(group.nodes) - _MAX_ROWS} more nodes")


def _group_name(group: SelectedPodGroup) -> str:
    more = f" and {counted(len(group.pods) - 1, 'more pod')}" if len(group.pods) > 1 else ""
    return f"{_pod_name(group.pods[0])}{more}"


def _pod_name(pod: Any) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _pods_on(group: SelectedPodGroup, node: str) -> int:
    """The number of pods of the group that run on a node. The pods of a test or of a recording have no such field."""
    return sum(getattr(getattr(pod, "spec", None), "nodeName", "") == node for pod in group.pods)


def _document(comparison: PolicyComparison) -> Mapping[str, Any]:
    return {
        "pods": [
            {
                "pods": [_pod_name(pod) for pod in group.pods],
                "policies": {
                    "before": [key.text() for key in group.before.keys],
                    "after": [key.text() for key in group.after.keys],
                },
                "nodes": [
                    {
                        "node": change.node,
                        "running": _pods_on(group, change.node),
                        "before": _verdict_document(change.before),
                        "after": _verdict_document(change.after),
                    }
                    for change in group.nodes
                ],
            }
            for group in comparison.groups
        ],
        "labels": [
            {"node": node, "key": key, "before": before or None, "after": after or None}
            for node, key, before, after in comparison.labels
        ],
        "modes": [
            {"policy": change.policy.text(), "before": change.before, "after": change.after}
            for change in comparison.modes
        ],
        "notes": comparison.notes,
        **_devices_document(comparison),
        **({"history": _history_document(comparison.history)} if comparison.history else {}),
    }


def _history_document(history: HistoryComparison) -> Mapping[str, Any]:
    """Durations are in seconds."""
    return {
        "start": format_rfc3339(history.start),
        "end": format_rfc3339(history.end),
        "step": history.step_s,
        "notes": history.notes,
        "evaluations": {"compared": history.compared, "left_out": history.left_out},
        "pods": [
            {
                "pods": [_pod_name(pod) for pod in item.group.pods],
                "no_node": {"before": item.no_node_before_s, "after": item.no_node_after_s},
                "nodes": [node._asdict() for node in item.nodes],
            }
            for item in history.groups
        ],
        "devices": [each._asdict() for each in history.devices],
    }


def _devices_document(comparison: PolicyComparison) -> Mapping[str, Any]:
    return {
        "device_rules": [
            {"policy": change.policy.text(), "before": change.before or None, "after": change.after or None}
            for change in comparison.device_rules
        ],
        "devices": [
            {
                "device": change.device,
                "before": _device_document(change.before),
                "after": _device_document(change.after),
            }
            for change in comparison.devices
        ],
        "unknown_devices": comparison.unknown_devices,
    }


def _device_document(state: DeviceState) -> Mapping[str, Any]:
    return {"effect": state.effect or None, "reason": state.reason or None}


def _verdict_document(verdict: NodeVerdict) -> Mapping[str, Any]:
    return {"rejected": verdict.reason or None, "rank": verdict.rank}
