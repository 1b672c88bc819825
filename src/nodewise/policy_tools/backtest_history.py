"""Reads the history of nodes, metrics and pods for a backtest, from Prometheus, files and recordings."""

import asyncio
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import NodeIndex, ObjectKey
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, Problem, Unavailable
from nodewise.engine import recording_file
from nodewise.engine.recording_file import RequestEntry
from nodewise.metrics import node_attributes
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus import history as prometheus_history
from nodewise.metrics.prometheus.history import PodStart, PrometheusHistory
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import ValueState
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import policy_selection
from nodewise.policies.placement_policy import LabelSelector, PodSelection, Policy, PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_selection import PodFields, PodMetadata, SelectionIndex, daemon_set_pod
from nodewise.policy_tools import backtest_report, policy_backtest, policy_timeline
from nodewise.policy_tools.backtest_report import BacktestReport
from nodewise.policy_tools.backtest_summary import StartedPod
from nodewise.policy_tools.device_backtest import DeviceBacktest
from nodewise.policy_tools.device_timeline import DeviceObjects
from nodewise.policy_tools.policy_backtest import Backtest, Variant
from nodewise.policy_tools.policy_timeline import Objects, PolicyTimeline, TimelineSettings


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _FilterBody(msgspec.Struct, frozen=True, rename="pascal"):
    pod: _Pod = _Pod()


_decode = msgspec.json.Decoder(_FilterBody).decode


def read(path: str) -> list[PodStart]:
    """The pods of the filter requests, oldest first. A pod started at its last request; its node is not known.

    `BadInput` if the file is no recording, or has no pod.
    """
    pods: dict[str, PodStart] = {}
    try:
        with Path(path).open("rb") as file:
            for entry, blobs in recording_file.read(file):
                if isinstance(entry, RequestEntry) and entry.path.endswith("/filter") and blobs:
                    pods |= _decode_pod(blobs[0], entry.at)
    except OSError as error:
        raise BadInput("recording", [Problem(path, error.strerror or str(error), "a file")]) from error
    if not pods:
        expected = "a recording of an extender that kube-scheduler called"
        raise BadInput("recording", [Problem(path, "no filter request with a pod", expected)])
    return sorted(pods.values(), key=lambda pod: pod.started_at)


def _decode_pod(body: bytes, at: float) -> dict[str, PodStart]:
    """The pod of a request by what identifies it; empty if the request could not be decoded."""
    try:
        metadata = _decode(body).pod.metadata
    except UNREADABLE:
        return {}
    labels = {exported_label(key): text for key, text in (metadata.labels or {}).items()}
    owner = next((owner.kind for owner in metadata.owner_references or ()), "")
    key = metadata.uid or f"{metadata.namespace}/{metadata.name}"
    return {key: PodStart(metadata.namespace, metadata.name, at, "", labels, owner)}


def exported_label(key: str) -> str:
    """The name that kube-state-metrics gives a label (kube-state-metrics v2, `sanitizeLabelName`)."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


_WHAT: Final = "policy backtest"
_SAMPLE_STEPS: Final = 200
"""Times at which all metrics are read first: for thresholds to propose, and to find empty metrics early."""
_MAX_SKEW_S: Final = 30.0
_MAX_NAMED: Final = 3
_DISTANCE_TIMES: Final = 16
"""How often the distance of samples is measured in the range: scrape intervals change rarely."""


class HistoryRange(NamedTuple):
    """The time to evaluate."""

    since_s: float
    until: float | None
    """Seconds since 1970; None for now."""
    step_s: float
    recording: str = ""
    """The recording with the pods that started; empty for those of kube-state-metrics."""


OnProgress = Callable[[int, int], None]
"""Called with the number of times that are evaluated, and of all."""


class HistoryObjects(NamedTuple):
    """The objects of now that a history is evaluated for."""

    nodes: Mapping[ObjectKey, Any]
    devices: DeviceObjects = DeviceObjects()


class _Setup(NamedTuple):
    """What every part of a backtest uses."""

    history: PrometheusHistory
    nodes: NodeIndex
    recording: str
    notes: list[str]
    on_progress: OnProgress


async def backtest(
    objects: Objects,
    settings: TimelineSettings,
    now: HistoryObjects,
    prometheus: PrometheusOptions,
    history_range: HistoryRange,
    on_progress: OnProgress,
) -> BacktestReport:
    """The report of all policies that reject nodes or taint devices.

    `BadInput` if a policy has problems, or the history has no values of these nodes.
    """
    timeline = PolicyTimeline(objects, settings)
    problems = [
        problem._replace(field=f"{key.path}: {problem.field}")
        for key, policy in timeline.policies.items()
        for problem in policy.problems
    ]
    if problems:
        raise BadInput(_WHAT, problems)
    if not any(policy.avoid or policy.device_taints for policy in timeline.policies.values()):
        names = ", ".join(key.path for key in timeline.policies)
        expected = "a policy with avoid or deviceTaints"
        problem = Problem(names, "no rules that reject nodes or taint devices", expected)
        raise BadInput(_WHAT, [problem if names else Problem("", "no policy", "at least one policy")])
    history, index = open_history(now.nodes, prometheus)
    evaluated = {key: each for key, each in timeline.policies.items() if each.avoid or each.device_taints}
    notes = list(policy_timeline.mode_notes(evaluated))
    setup = _Setup(history, index, history_range.recording, notes, on_progress)
    try:
        grid = await time_grid(history, history_range, setup.notes)
        devices = DeviceBacktest(timeline.policies, now.devices, settings.max_ages, history_range.step_s)
        return await _evaluate(setup, timeline, objects, settings, grid, devices)
    finally:
        await history.close()


def open_history(
    nodes: Mapping[ObjectKey, Any], prometheus: PrometheusOptions
) -> tuple[PrometheusHistory, NodeIndex]:
    """The history of all nodes, which the caller closes. `BadInput` without nodes.

    `BadSettings` with several servers: the extender uses the first one that has a metric at a time, so that none of
    them alone has what it would have seen.
    """
    if len(prometheus.prometheus_url) > 1:
        urls = " and ".join(prometheus.prometheus_url)
        raise BadSettings("settings", [Problem("--prometheus-url", urls, "one URL, whose history is read")])
    index = NodeIndex(sorted(name for _, name in nodes))
    if not nodes:
        raise BadInput(_WHAT, [Problem("nodes", "no Node", "Nodes in FILE, or in the cluster")])
    attributes = cooperative_scheduling.run_without_pauses(
        node_attributes.read_node_attributes(nodes.values())
    )
    url = prometheus.prometheus_url[0]
    return PrometheusHistory(url, prometheus, attributes, index, MetricsRegistry()), index


async def time_grid(history: PrometheusHistory, history_range: HistoryRange, notes: list[str]) -> TimeGrid:
    """The times to evaluate, which end at the time of Prometheus or before. A clock skew is added to the notes."""
    now = await history.clock()
    ahead_s = now - clock.SystemClock().now()
    if abs(ahead_s) > _MAX_SKEW_S:
        direction = "ahead of" if ahead_s > 0 else "behind"
        notes.append(
            f"clock skew: Prometheus' clock is {clock.format_duration(abs(round(ahead_s)))} {direction} the local"
            " clock; times are those of Prometheus"
        )
    if history_range.until is not None and history_range.until > now:
        text = clock.format_rfc3339(history_range.until)
        problem = Problem("--until", text, f"at most the time of Prometheus, {clock.format_rfc3339(now)}")
        raise BadInput(_WHAT, [problem])
    step_s = history_range.step_s
    end = (now if history_range.until is None else history_range.until) // step_s * step_s
    steps = max(int(history_range.since_s // step_s), 1)
    return TimeGrid(end - (steps - 1) * step_s, step_s, steps)


async def _evaluate(
    setup: _Setup,
    timeline: PolicyTimeline,
    objects: Objects,
    settings: TimelineSettings,
    grid: TimeGrid,
    devices: DeviceBacktest,
) -> BacktestReport:
    setup.history.most_columns = max(len(setup.nodes), devices.device_count)
    needed = Backtest(timeline, setup.nodes, lambda _: (), settings=settings)
    samples = await _read_samples(setup, CombinedBacktest(needed, devices), grid)

    def variants(policy: Policy) -> Sequence[Variant]:
        return [*policy_backtest.single_rules(policy), *policy_backtest.alternatives(policy, samples)]

    evaluation = Backtest(timeline, setup.nodes, variants, settings=settings)
    combined = CombinedBacktest(evaluation, devices)
    await for_each_block(setup.history, combined.requests_for, grid, combined.add, setup.on_progress)
    if not len(evaluation.times):
        raise BadInput(_WHAT, [no_usable_time(grid)])
    _note_gaps(setup, evaluation, grid)
    pods = await _read_pods(setup, timeline, objects, grid) if evaluation.records else None
    report = backtest_report.build(evaluation, setup.nodes, grid, pods, samples, setup.notes)
    return report._replace(device_policies=devices.reports())


class CombinedBacktest(NamedTuple):
    """Rules of nodes and of devices over the same history."""

    nodes: Backtest
    devices: DeviceBacktest

    def requests_for(self, distances: Mapping[str, float | None]) -> dict[str, MetricRequest]:
        """The requests of both, which differ by their keys."""
        return self.nodes.requests_for(distances) | self.devices.requests_for(distances)

    def add(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
        """Evaluate a block of times."""
        self.nodes.add(grid, {key: matrices[key] for key in self.nodes.requests})
        self.devices.add(grid, {key: matrices[key] for key in self.devices.requests})


RequestsFor = Callable[[Mapping[str, float | None]], Mapping[str, MetricRequest]]
"""The requests by key, with the maximum ages that follow from the distances of samples, by key."""


async def for_each_block(
    history: PrometheusHistory,
    requests_for: RequestsFor,
    grid: TimeGrid,
    add: Callable[[TimeGrid, Mapping[str, NodeMatrix]], None],
    on_progress: OnProgress,
) -> None:
    """Call `add`, in the thread of the history, with each block of times in order. The next one is read meanwhile."""
    blocks = [
        grid.part(first, history.steps_per_part) for first in range(0, grid.steps, history.steps_per_part)
    ]
    reader = _BlockReader(history, requests_for, grid)
    done = 0
    reading = asyncio.create_task(reader.read(blocks[0]))
    for number, block in enumerate(blocks):
        matrices = await reading
        if number + 1 < len(blocks):
            reading = asyncio.create_task(reader.read(blocks[number + 1]))
        await asyncio.get_running_loop().run_in_executor(history.worker, add, block, matrices)
        done += block.steps
        on_progress(done, grid.steps)


class _BlockReader:
    """Reads blocks in order, each with the distances of samples at that time, which are measured a few times."""

    def __init__(self, history: PrometheusHistory, requests_for: RequestsFor, grid: TimeGrid) -> None:
        self._history = history
        self._requests_for = requests_for
        self._every_s = (grid.end - grid.start) / _DISTANCE_TIMES
        self._measured_at = -np.inf
        self._distances: dict[str, float | None] = {}

    async def read(self, block: TimeGrid) -> Mapping[str, NodeMatrix]:
        if block.end - self._measured_at >= self._every_s:
            self._measured_at = block.end
            await self._measure(block)
        matrices = await self._history.read(list(self._requests_for(self._distances).values()), block)
        return {
            key: matrix._replace(sample_distance_s=self._distances.get(key))
            for key, matrix in matrices.items()
        }

    async def _measure(self, block: TimeGrid) -> None:
        """Measure at the end of the block, and where no samples are then, at its beginning. Others stay."""
        for at in dict.fromkeys((block.end, block.start)):
            requests = self._requests_for({}).values()
            distances = await self._history.sample_distances(list(requests), at)
            self._distances |= {key: each for key, each in distances.items() if each is not None}
            if None not in distances.values():
                return


async def _read_samples(setup: _Setup, needed: CombinedBacktest, grid: TimeGrid) -> Mapping[str, NodeMatrix]:
    """The metrics at a few times of the range. `BadInput` for a metric that has no value of any node or device."""
    every = max(grid.steps // _SAMPLE_STEPS, 1)
    steps = -(-grid.steps // every)
    # aligned to the end: the start of a range may be older than the history
    step_s = grid.step_s * every
    coarse = TimeGrid(grid.end - (steps - 1) * step_s, step_s, steps)
    samples = await _BlockReader(setup.history, needed.requests_for, grid).read(coarse)
    requests = needed.requests_for({}).values()
    problems = [
        _no_values_problem(setup, request, samples[request.key], grid)
        for request in requests
        if (samples[request.key].incomplete or not request.empty_is_healthy)
        and not (samples[request.key].states == ValueState.FRESH).any()
    ]
    if problems:
        raise BadInput(_WHAT, problems)
    return samples


def _no_values_problem(setup: _Setup, request: MetricRequest, matrix: NodeMatrix, grid: TimeGrid) -> Problem:
    name = request.query or request.metric
    if matrix.incomplete:
        actual = f"no series in {_range_text(grid)}, in an incomplete response: {matrix.incomplete}"
        return Problem(
            name, actual, "all series, with all stores of Thanos or storage nodes of VictoriaMetrics"
        )
    if matrix.unmatched and request.device_label:
        actual = f"series in {_range_text(grid)} without the label {request.device_label}"
        return Problem(name, actual, "deviceLabel: a label of the series that identifies the device")
    if matrix.unmatched:
        named = ", ".join(sorted(matrix.unmatched)[:_MAX_NAMED])
        actual = f"series in {_range_text(grid)} of {named}, none of today's nodes"
        return Problem(
            name, actual, f"series of nodes such as {setup.nodes.known[0]} (--prometheus-node-label)"
        )
    if (matrix.states == ValueState.INVALID).any():
        owner = "device" if request.device_label else "node"
        return Problem(name, f"several series of each {owner}, or no numbers", "aggregate: max, or a query")
    return Problem(name, f"no series in {_range_text(grid)}", "a metric with a history, or a longer --since")


def _range_text(grid: TimeGrid) -> str:
    return f"{clock.format_rfc3339(grid.start)} to {clock.format_rfc3339(grid.end)}"


def no_usable_time(grid: TimeGrid) -> Problem:
    """That policies cannot be evaluated at any time of the grid."""
    actual = f"no time from {_range_text(grid)} at which all metrics have values"
    return Problem("history", actual, "at least one, as with a longer --since")


def _note_gaps(setup: _Setup, evaluation: Backtest, grid: TimeGrid) -> None:
    """Note what the history lacks, and how its limits were handled."""
    begun = float(evaluation.times[0])
    if begun > grid.start:
        setup.notes.append(
            f"the history begins at {clock.format_rfc3339(begun)}, not at {clock.format_rfc3339(grid.start)}:"
            " before, a metric has no values"
        )
    for key, steps in evaluation.steps_without_values.items():
        if steps and not evaluation.requests[key].empty_is_healthy:
            name = evaluation.requests[key].name
            duration = clock.format_duration(steps * grid.step_s)
            setup.notes.append(f"gaps: for {duration} in total, no node has a value of {name}")
    absent = evaluation.records and [
        name
        for name, first in zip(setup.nodes.known, evaluation.first_value_at.tolist(), strict=True)
        if first == np.inf
    ]
    if absent:
        setup.notes.append(f"{len(absent)} of {len(setup.nodes)} nodes have no history: {_named(absent)}")
    setup.notes.extend(incomplete_notes(setup.history))
    gone = sorted(setup.history.unmatched)
    if gone:
        setup.notes.append(f"series of {len(gone)} names are of none of today's nodes: {_named(gone)}")
    if setup.history.halvings:
        setup.notes.append(
            f"{len(setup.history.halvings)} of {setup.history.query_count} queries were repeated in halves:"
            f" {setup.history.halvings[-1]}"
        )


def incomplete_notes(history: PrometheusHistory) -> Iterator[str]:
    """That Prometheus does not have the whole history, and why."""
    if history.incomplete:
        yield (
            "the history is incomplete, and nodes that are absent keep their last verdicts:"
            f" {history.incomplete}"
        )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")


async def _read_pods(
    setup: _Setup, timeline: PolicyTimeline, objects: Objects, grid: TimeGrid
) -> Mapping[PolicyKey, Sequence[StartedPod]] | None:
    """The pods that each policy selects among those that started, of the policies whose pods are known. None if no
    history of pods can be read.
    """
    pods = read(setup.recording) if setup.recording else await _read_started_pods(setup, grid)
    if not pods:
        return None
    policies = [policy for policy in timeline.policies.values() if policy.avoid]
    if not setup.recording:
        policies = _without_unknown_labels(policies, pods, setup.notes)
    recent = [pod for pod in pods if grid.start <= pod.started_at < grid.end + grid.step_s]
    namespaces = objects.get(NAMESPACES, {})
    return {policy.key: _selected(policy, recent, namespaces, setup.nodes) for policy in policies}


async def _read_started_pods(setup: _Setup, grid: TimeGrid) -> list[PodStart]:
    """The pods of kube-state-metrics. If there are none, a note says why."""
    window_s = await setup.history.clock() - grid.start
    try:
        pods = await prometheus_history.read_pod_starts(setup.history, window_s)
    except (Unavailable, BadInput) as error:
        setup.notes.append(f"pods are not counted: {error.problems[0] if error.problems else error}")
        return []
    if not pods:
        setup.notes.append(
            "pods are not counted: Prometheus has no kube_pod_start_time (kube-state-metrics) in this time"
        )
    return pods


def _label_keys(policy: Policy, operators: Container[str] = ()) -> list[str]:
    """The labels by which a policy selects pods, in requirements with these operators; all if there are none."""
    if policy.key.kind == "TASPolicy":
        return [policy_selection.POLICY_LABEL]
    requirements = policy.selection.pods.requirements if policy.selection else ()
    return [
        requirement.key for requirement in requirements if not operators or requirement.operator in operators
    ]


def _without_unknown_labels(
    policies: Sequence[Policy], pods: Sequence[PodStart], notes: list[str]
) -> list[Policy]:
    """The policies without requirements for labels that no pod has, which a note names: kube-state-metrics exports only
    some labels. TASPolicies, whose pods need a label, are left out then.
    """
    exported = {name for pod in pods for name in pod.labels}
    required = {key for policy in policies for key in _label_keys(policy, ("In", "Exists"))}
    unknown = {key for key in required if exported_label(key) not in exported}
    if not unknown:
        return list(policies)
    note = (
        f"no pod that started has the label {' or '.join(sorted(unknown))} in kube-state-metrics"
        " (--metric-labels-allowlist): selectors ignore it"
    )
    if policy_selection.POLICY_LABEL in unknown:
        note += ", and pods of TASPolicies are not counted"
    notes.append(note)
    return [
        _without_pod_labels(policy, unknown)
        for policy in policies
        if policy.key.kind != "TASPolicy" or policy_selection.POLICY_LABEL not in unknown
    ]


def _without_pod_labels(policy: Policy, keys: Container[str]) -> Policy:
    """The policy without requirements for these labels of pods."""
    if policy.selection is None:
        return policy
    requirements = policy.selection.pods.requirements
    kept = LabelSelector(tuple(each for each in requirements if each.key not in keys))
    return msgspec.structs.replace(policy, selection=PodSelection(kept, policy.selection.namespaces))


def _selected(
    policy: Policy, pods: Sequence[PodStart], namespaces: Mapping[ObjectKey, Any], nodes: NodeIndex
) -> list[StartedPod]:
    keys = _label_keys(policy)
    index = SelectionIndex([policy], namespaces)
    started = []
    for pod in pods:
        labels = {key: pod.labels[name] for key in keys if (name := exported_label(key)) in pod.labels}
        # kube-state-metrics exports neither the API group of owners nor node affinity
        is_of_daemon_set = pod.owner_kind == "DaemonSet"
        fields = (
            daemon_set_pod(pod.namespace, labels)
            if is_of_daemon_set
            else PodFields(PodMetadata(pod.namespace, labels))
        )
        if policy.key in index.select(fields):
            node = int(nodes.numbers([pod.node])[0]) if pod.node in nodes else -1
            started.append(StartedPod(pod.started_at, node))
    return started
