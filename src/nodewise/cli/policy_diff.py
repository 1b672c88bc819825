"""`nodewise policy diff`: what changes for nodes and pods if policies replace others."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.base.clock import format_duration, format_rfc3339
from nodewise.base.errors import BadInput, BadSettings, Problem
from nodewise.base.option import Argument, Option
from nodewise.cli import decide_inputs, tables, terminal_output
from nodewise.cli.decide_inputs import InputSelection, MetricOptions, ObjectsAndMetrics
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.policy_backtest import history_reading, report
from nodewise.cli.policy_backtest.history_reading import HistoryRange
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.policies import KIND, policy_status_fields
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.state import POLICY_KINDS, PolicyState
from nodewise.policy_tools import policy_diff, policy_timeline
from nodewise.policy_tools.policy_backtest import Backtest
from nodewise.policy_tools.policy_diff import NodeVerdict, SelectedPodGroup
from nodewise.policy_tools.policy_timeline import Moment, Objects, PolicyTimeline, TimelineSettings

Mask = NDArray[np.bool_]


class NodeDurations(NamedTuple):
    """How long a node was rejected for some pods, in seconds."""

    node: str
    before: float
    after: float
    only_before: float
    only_after: float


class GroupHistory(NamedTuple):
    """What changes over the history for pods with the same policies."""

    group: SelectedPodGroup
    nodes: Sequence[NodeDurations]
    """The nodes that change, the most changed first."""
    no_node_before_s: float
    """How long no node was left."""
    no_node_after_s: float


class HistoryComparison(NamedTuple):
    """The comparison over a time."""

    start: float
    """Seconds since 1970."""
    end: float
    step_s: float
    groups: Sequence[GroupHistory]
    """Those with nodes that change."""
    notes: Sequence[str]
    compared: int
    """The number of times that are compared."""
    left_out: int
    """The number of times before them at which a metric has no values, so that nothing is known about them."""


async def compare(
    objects: tuple[Objects, Objects],
    groups: Sequence[SelectedPodGroup],
    settings: TimelineSettings,
    inputs: ObjectsAndMetrics,
    sources: tuple[PrometheusOptions, HistoryRange],
) -> HistoryComparison:
    """Compare the rejections of the policies before and after, for the pods that they select now.

    `BadInput` if there is no time at which all metrics have values.
    """
    prometheus, history_range = sources
    history, nodes = history_reading.open_history(inputs, prometheus)
    notes: list[str] = []
    try:
        grid = await history_reading.time_grid(history, history_range, notes)
        backtests = [
            Backtest(
                PolicyTimeline(policy_timeline.without_statuses(own), settings),
                nodes,
                lambda _: (),
                settings=settings,
            )
            for own in objects
        ]

        def add(block: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
            for backtest in backtests:
                backtest.add(block, {key: matrices[key] for key in backtest.requests})

        def requests_for(distances: Mapping[str, float | None]) -> Mapping[str, MetricRequest]:
            return _merge_requests([backtest.requests_for(distances) for backtest in backtests])

        await history_reading.for_each_block(history, requests_for, grid, add)
        notes.extend(history_reading.incomplete_notes(history))
    finally:
        await history.close()
    before, after = backtests
    steps = min(len(before.times), len(after.times))
    if not steps:
        raise BadInput("policy diff", [history_reading.no_usable_time(grid)])
    left_out = grid.steps - steps
    if left_out:
        notes.append(f"the first {left_out} of {grid.steps} times are not compared: a metric has no values")
    compared = [
        _compare_group(
            group,
            nodes,
            _rejected(before, group.before.enforced, steps, len(nodes)),
            _rejected(after, group.after.enforced, steps, len(nodes)),
            grid.step_s,
        )
        for group in groups
    ]
    changed = [group for group in compared if group.nodes]
    return HistoryComparison(
        grid.end - (steps - 1) * grid.step_s, grid.end, grid.step_s, changed, notes, steps, left_out
    )


def _merge_requests(listed: Sequence[Mapping[str, MetricRequest]]) -> dict[str, MetricRequest]:
    """All requests by key, each with the shortest maximum age."""
    requests: dict[str, MetricRequest] = {}
    for own in listed:
        for key, request in own.items():
            known = requests.get(key, request)
            age_s = min(request.max_age_s, known.max_age_s)
            requests[key] = request._replace(max_age_s=age_s)
    return requests


def _rejected(backtest: Backtest, keys: Sequence[PolicyKey], steps: int, node_count: int) -> Mask:
    """At the last `steps` times, the nodes that any of the policies rejects, of shape (steps, nodes)."""
    rejected: Mask = np.zeros((steps, node_count), bool)
    for key in keys:
        record = backtest.records.get(key)
        if record is not None and not (record.policy.only_prefers or record.policy.not_enforced):
            mask = record.rejected.mask()
            rejected |= mask[len(mask) - steps :]
    return rejected


def _compare_group(
    group: SelectedPodGroup, nodes: NodeIndex, before: Mask, after: Mask, step_s: float
) -> GroupHistory:
    only_before = (before & ~after).sum(axis=0) * step_s
    only_after = (after & ~before).sum(axis=0) * step_s
    changes = only_before + only_after
    order = [int(node) for node in np.argsort(-changes, kind="stable") if changes[node]]
    durations = [
        NodeDurations(
            nodes.known[node],
            float(before[:, node].sum() * step_s),
            float(after[:, node].sum() * step_s),
            float(only_before[node]),
            float(only_after[node]),
        )
        for node in order
    ]
    left = [float(mask.all(axis=1).sum() * step_s) for mask in (before, after)]
    return GroupHistory(group, durations, left[0], left[1])


_MAX_ROWS: Final = 20
"""Nodes that the text lists for a group of pods; JSON has all of them."""


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
    history: HistoryComparison | None = None

    @property
    def is_comparable(self) -> bool:
        """Whether anything was compared, now or in the history."""
        return self.has_values or self.history is not None

    @property
    def has_changes(self) -> bool:
        return bool(self.groups or self.labels or (self.history and self.history.groups))


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
    """Show the nodes and pods whose verdict or rank changes if the policies of NEW replace those of OLD.

    OLD and NEW are files or folders with policies, also of different kinds or names. Nodes, pods, metrics and all other
    policies are read from FILE as by nodewise decide, or with --cluster from the cluster. Pods with the same policies
    are compared once. If none is selected, an example for the selectors of each policy is compared. Node
    labels of policies are compared as if no node had any. With --since, rejections are also compared over the history
    of the metrics in Prometheus, for the pods and nodes of now. Nothing is written.

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
      3  a node changes for a pod, or a node label changes
    """
    logs.configure("error")
    own = command_line.settings(DiffOptions)
    if not own.paths and not own.cluster:
        expected = "files with nodes, pods and metrics, or --cluster"
        raise BadSettings("settings", [Problem("FILE", "none", expected)])
    if own.since_s and not command_line.settings(PrometheusOptions).prometheus_url:
        raise BadSettings(
            "settings", [Problem("--prometheus-url", "none", "the URL of Prometheus, for --since")]
        )
    if own.since_s and not 1 <= own.step_s <= own.since_s:
        raise BadSettings("settings", [Problem("--step", f"{own.step_s:g}s", "1s to the time of --since")])
    comparison = asyncio.run(_compare(own, command_line))
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


async def _compare(own: DiffOptions, command_line: CommandLine) -> PolicyComparison:
    options = command_line.agent_options(KIND)
    assert isinstance(options, TelemetryOptions)
    old, new = _read_policies(own.old, options), _read_policies(own.new, options)
    fetching = decide_inputs.metric_settings(command_line)
    selection = InputSelection(own.paths, (), [KIND.name], {KIND.name: options}, "", running=True)
    kube = command_line.settings(ClusterOptions).kube
    async with open_api(kube) if own.cluster else nullcontext() as api:
        inputs = await decide_inputs.read_objects(selection, api)
        if not inputs.nodes:
            raise BadInput(
                "policy diff", [Problem(" ".join(own.paths) or "the cluster", "no Node", "at least one")]
            )
        settings = TimelineSettings(options, fetching.refresh.sync_period_s)
        objects = policy_diff.replace_policies(inputs.objects, old, new)
        timelines = [PolicyTimeline(objects_of_side, settings) for objects_of_side in objects]
        requests = [request for timeline in timelines for request in timeline.requests.values()]
        snapshot = await decide_inputs.fetch_metrics(inputs, requests, fetching, api)
    at = decide_inputs.decision_time(own.now, inputs.snapshot if api is None else None)
    nodes = NodeIndex(inputs.node_names)
    before, after = (_advance(timeline, at, snapshot, nodes) for timeline in timelines)
    groups = _group_pods(before, after, inputs)
    states = [*_states_of(before, old), *_states_of(after, new)]
    comparison = _compare_moments(before, after, groups)._replace(
        missing=_missing_metrics(states, snapshot), has_values=_have_values(states)
    )
    if not own.since_s:
        return comparison
    history_range = HistoryRange(own.since_s, None, own.step_s)
    history = await compare(objects, groups, settings, inputs, (fetching.prometheus, history_range))
    return comparison._replace(history=history)


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
    """Whether a rule of these policies is valid, and its metric has a value on a node."""
    return any(
        comparison.metric_request().key not in state.unfetched
        for state in states
        for comparison in state.policy.usable_comparisons()
    )


def _missing_metrics(states: Sequence[PolicyState], snapshot: MetricsSnapshot) -> str:
    """Which metrics of these policies have no value on any node, and why; empty if all have values."""
    causes: dict[str, Cause] = {key: cause for state in states for key, cause in state.unfetched.items()}
    return policy_status_fields.missing_metrics_text(
        {key: snapshot.causes.get(key, cause) for key, cause in sorted(causes.items())}
    )


def _group_pods(before: Moment, after: Moment, inputs: ObjectsAndMetrics) -> list[SelectedPodGroup]:
    groups = policy_diff.group_pods(list(inputs.pods.values()), before, after)
    if groups:
        return groups
    states = {**before.state.policies, **after.state.policies}
    pods = policy_diff.example_pods([state.policy for state in states.values()])
    return policy_diff.group_pods(pods, before, after)


def _compare_moments(before: Moment, after: Moment, groups: Sequence[SelectedPodGroup]) -> PolicyComparison:
    compared = [policy_diff.compare(group, before, after) for group in groups]
    changed = [group for group in compared if group.nodes]
    count = sum(len(group.pods) for group in groups)
    labels = list(policy_diff.label_changes(before, after))
    return PolicyComparison(len(before.snapshot.nodes), changed, count, labels)


def _print_text(comparison: PolicyComparison) -> None:
    for group in comparison.groups:
        _print_group(group, comparison.node_count)
    if comparison.labels:
        rows = [
            (node, key, before or "-", after or "-")
            for node, key, before, after in comparison.labels[:_MAX_ROWS]
        ]
        tables.print_table(("NODE", "LABEL", "BEFORE", "AFTER"), rows)
        if len(comparison.labels) > _MAX_ROWS:
            click.echo(f"… and {len(comparison.labels) - _MAX_ROWS} more labels")
    if comparison.groups or comparison.labels:
        pods = sum(len(group.pods) for group in comparison.groups)
        pods_text = f"{pods:,} of {comparison.pod_count:,} selected pods change"
        click.echo(f"{pods_text}, {len(comparison.labels):,} node labels change")
    else:
        click.echo(_unchanged_text(comparison))
    if comparison.history:
        _print_history(comparison.history)


def _unchanged_text(comparison: PolicyComparison) -> str:
    """That nothing changes, and what this does not include."""
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
        left = [report.duration(seconds) for seconds in (item.no_node_before_s, item.no_node_after_s)]
        terminal_output.print_line(
            f"{_group_name(item.group)}: {len(item.nodes):,} nodes change;"
            f" no node was left for {left[0]} before, {left[1]} after"
        )
        rows = [(f"  {node.node}", *map(report.duration, node[1:])) for node in item.nodes[:_MAX_ROWS]]
        tables.print_table(("  NODE", "REJECTED BEFORE", "AFTER", "ONLY BEFORE", "ONLY AFTER"), rows)
        if len(item.nodes) > _MAX_ROWS:
            click.echo(f"  … and {len(item.nodes) - _MAX_ROWS} more nodes")
    if not history.groups and history.left_out:
        click.echo(
            f"nothing changes at the last {history.compared} times; the {history.left_out} before are unknown"
        )
    elif not history.groups:
        click.echo("nothing changes")


def _print_group(group: SelectedPodGroup, node_count: int) -> None:
    terminal_output.print_line(_group_heading(group, node_count))
    head = ("  NODE", "PODS THERE", "BEFORE", "AFTER")
    rows = [
        (
            f"  {change.node}",
            str(_pods_on(group, change.node) or "-"),
            change.before.text(),
            change.after.text(),
        )
        for change in group.nodes[:_MAX_ROWS]
    ]
    tables.print_table(*tables.drop_empty_columns("PODS THERE", head, rows))
    if len(group.nodes) > _MAX_ROWS:
        click.echo(f"  … and {len(group.nodes) - _MAX_ROWS} more nodes")


def _group_heading(group: SelectedPodGroup, node_count: int) -> str:
    """`web/web-1 and 11 more pods: of 5 nodes, 2 verdicts and 1 ranks change`."""
    verdicts = sum(change.changes_verdict for change in group.nodes)
    counts = f"{verdicts:,} verdicts and {len(group.nodes) - verdicts:,} ranks"
    return f"{_group_name(group)}: of {node_count:,} nodes, {counts} change"


def _group_name(group: SelectedPodGroup) -> str:
    more = f" and {len(group.pods) - 1:,} more pods" if len(group.pods) > 1 else ""
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
                    "before": _names(group.before.keys),
                    "after": _names(group.after.keys),
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
    }


def _names(keys: Sequence[PolicyKey]) -> list[str]:
    return [key.text() for key in keys]


def _verdict_document(verdict: NodeVerdict) -> Mapping[str, Any]:
    return {"rejected": verdict.reason or None, "rank": verdict.rank}
