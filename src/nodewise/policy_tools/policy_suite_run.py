"""Runs the tests of a suite: advances the policies through the times of a test, and compares expectations.

A test is evaluated from time 0 in steps of the suite's `evaluation_interval`, and at the times of its expectations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nodewise.agent import NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_duration, format_rfc3339
from nodewise.devices.resource_slices import ResourceSliceObject
from nodewise.engine.decision import summarize_rejections
from nodewise.kube.event_recorder import NO_NODE_PASSES
from nodewise.policies import node_labels, policy_status, selected_pods
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_status import Status, StatusFacts
from nodewise.policy_tools import device_timeline, policy_timeline
from nodewise.policy_tools.device_timeline import DeviceObjects, DeviceTimeline
from nodewise.policy_tools.policy_suite import (
    START,
    Expectation,
    ExpectedEvent,
    InputSeriesSource,
    PolicyTest,
    Suite,
    SuiteObject,
)
from nodewise.policy_tools.policy_timeline import Moment, Objects, PolicyTimeline, TimelineSettings

Labels = Mapping[str, Mapping[str, str]]
"""Labels by node."""


class Mismatch(NamedTuple):
    """An expectation that is not met."""

    line: int
    """In the suite."""
    about: str
    """`5m, pod web/web-1, rejected`."""
    lines: tuple[str, ...]
    """The expected lines with `-`, and those that were found with `+`."""


Observer = Callable[[Moment, DeviceTimeline, Expectation], None]
"""Is called at each expectation, for coverage."""


class SuiteRunner:
    """Runs the tests of one suite."""

    def __init__(self, suite: Suite, settings: TimelineSettings) -> None:
        self._suite = suite
        self._settings = settings

    def objects(self, changed: Mapping[PolicyKey, Any] = {}) -> Objects:
        """The policies of the suite, some of them with another spec.

        The mode Shadow has no effect on any pod, so such a policy is tested as if it were enforced.
        """
        written = {key: item.spec() for key, item in self._suite.policies().items()}
        specs: dict[PolicyKey, Any] = {**written, **changed}
        shadows = {key: spec for key, spec in specs.items() if spec.get("mode") == "Shadow"}
        enforced = {key: {**spec, "mode": "Enforce"} for key, spec in shadows.items()}
        return policy_timeline.objects_of_files(
            self._suite.files({**changed, **enforced}), self._settings.options
        )

    def valid_policies(self) -> dict[PolicyKey, SuiteObject]:
        """The policies without problems: only the rules of these can be distinguished."""
        parsed = PolicyTimeline(self.objects(), self._settings).policies
        return {key: item for key, item in self._suite.policies().items() if not parsed[key].problems}

    def run(
        self, test: PolicyTest, objects: Objects, observe: Observer | None = None, *, with_texts: bool = True
    ) -> Iterator[Mismatch]:
        """The expectations of a test that are not met, in the order of their times.

        Without texts, reasons of rejections and messages of events are not compared. They contain the rule itself, so
        with them every change of a rule would be a mismatch.
        """
        history = _TestHistory(test, objects, self._settings, self._suite.slices())
        nodes, source = NodeIndex(test.nodes), InputSeriesSource(test)
        for at_s in _evaluation_times(test, self._suite.evaluation_interval_s):
            responses = source.respond(history.timeline.next_requests(), at_s)
            moment = history.timeline.advance(START + at_s, responses, nodes)
            history.record(moment)
            expectations = [
                expectation for expectation in test.expectations if expectation.eval_time_s == at_s
            ]
            for expectation in expectations:
                if observe:
                    observe(moment, history.devices, expectation)
                yield from _compare(expectation, test, moment, history, with_texts=with_texts)
            if expectations:
                history.events = []


def _evaluation_times(test: PolicyTest, interval_s: float) -> list[float]:
    """The times of evaluations since the beginning of the test, in order."""
    expected = {expectation.eval_time_s for expectation in test.expectations}
    last = max(expected, default=0.0)
    # rounded, so that a step is equal to the time of an expectation that a suite writes: 3 * 1.2 is not 3.6
    steps = (round(number * interval_s, 6) for number in range(int(last // interval_s) + 1))
    return sorted({*steps, *expected})


class _TestHistory:
    """What follows from all evaluations so far: node labels, and the statuses of policies with their events."""

    def __init__(
        self,
        test: PolicyTest,
        objects: Objects,
        settings: TimelineSettings,
        slices: Sequence[ResourceSliceObject],
    ) -> None:
        self.timeline = PolicyTimeline(objects, settings)
        self.labels: Labels = {}
        self.tainted: Mapping[str, str] = {}
        """The effects by tainted device."""
        self.devices = DeviceTimeline(self.timeline.policies.values(), DeviceObjects(slices))
        self.events: list[ExpectedEvent] = []
        """Of policies, since the last expectation."""
        self._test = test
        self._needs_labels = any(expectation.labels is not None for expectation in test.expectations)
        self._needs_events = any(expectation.events is not None for expectation in test.expectations)
        self._statuses: dict[PolicyKey, Status] = {}

    def record(self, moment: Moment) -> None:
        """Record the evaluation of one more time."""
        if any(state.policy.device_taints for state in moment.state.policies.values()):
            telemetry = moment.state
            taints = self.devices.advance(telemetry.device_metrics, telemetry.max_ages, moment.at)
            self.tainted = device_timeline.effects(taints)
        if not self._needs_labels and not self._needs_events:
            return
        states = moment.state.policies
        assignment = node_labels.combine_policy_labels(
            {key: (state.policy, state.labels) for key, state in states.items()}
        )
        nodes = moment.snapshot.nodes
        self.labels = cooperative_scheduling.run_without_pauses(
            node_labels.desired_labels(assignment.columns, nodes, self.labels)
        )
        if not self._needs_events:
            return
        selections = [moment.state.selection.select(pod) for pod in self._test.pods.values()]
        rejecting = cooperative_scheduling.run_without_pauses(
            selected_pods.find_rejecting_policies(states, len(nodes), set(selections))
        )
        for key, state in states.items():
            facts = StatusFacts(
                label_conflict=assignment.conflicts.get(key, ""),
                selected_pods=sum(key in selection for selection in selections),
                rejecting_policies=rejecting.get(key, ()),
            )
            before = self._statuses.get(key) or policy_status.status_of(key.kind, PolicyObject())
            wanted = policy_status.desired_status(state, facts, before, format_rfc3339(moment.at))
            self.events += [
                ExpectedEvent(f"policy {key.path}", event.reason, event.condition.message)
                for event in policy_status.condition_events(before, wanted)
            ]
            self._statuses[key] = wanted


def _compare(  # complexity: one case for each part of an expectation
    expectation: Expectation, test: PolicyTest, moment: Moment, history: _TestHistory, *, with_texts: bool
) -> Iterator[Mismatch]:
    """The parts of an expectation that are not met."""
    differences: dict[str, list[str]] = {}
    if expectation.pod is not None:
        pod, about = test.pods[expectation.pod], f"pod {'/'.join(expectation.pod)}, "
        if expectation.rejected is not None:
            differences[f"{about}rejected"] = _rejection_differences(
                expectation.rejected, moment.rejection_reasons(pod), with_texts=with_texts
            )
        if expectation.ranks is not None:
            differences[f"{about}ranks"] = _differences(expectation.ranks, moment.ranks(pod))
    if expectation.labels is not None:
        differences["labels"] = _differences(_flatten(expectation.labels), _flatten(history.labels))
    if expectation.tainted is not None:
        differences["tainted"] = _differences(expectation.tainted, history.tainted)
    if expectation.suspended is not None:
        suspended = (key.path for key, state in moment.state.policies.items() if state.suspended)
        differences["suspended"] = _differences(
            dict.fromkeys(expectation.suspended, "suspended"), dict.fromkeys(suspended, "suspended")
        )
    if expectation.events is not None:
        events = [*history.events, *_pod_events(test, moment)]
        differences["events"] = _event_differences(expectation.events, events, with_texts=with_texts)
    at = format_duration(expectation.eval_time_s) if expectation.eval_time_s else "0s"
    for about, lines in differences.items():
        if lines:
            yield Mismatch(expectation.line, f"{at}, {about}", tuple(lines))


def _pod_events(test: PolicyTest, moment: Moment) -> Iterator[ExpectedEvent]:
    """The events of pods that no node takes now."""
    for key, pod in test.pods.items():
        decision = moment.filter(pod)
        if not decision.feasible().any():
            text = summarize_rejections(decision)
            yield ExpectedEvent(f"pod {'/'.join(key)}", NO_NODE_PASSES, text)


def _flatten(labels: Labels) -> dict[str, str]:
    """The labels as texts, by node."""
    return {
        node: ", ".join(f"{key}={value}" for key, value in sorted(own.items()))
        for node, own in labels.items()
    }


def _differences(expected: Mapping[str, object], actual: Mapping[str, object]) -> list[str]:
    """The lines that differ, by key."""
    lines = []
    for key in sorted({*expected, *actual}):
        if expected.get(key) != actual.get(key):
            lines += [f"- {key}: {expected[key]}"] if key in expected else []
            lines += [f"+ {key}: {actual[key]}"] if key in actual else []
    return lines


def _rejection_differences(
    expected: Mapping[str, str], actual: Mapping[str, str], *, with_texts: bool
) -> list[str]:
    """The nodes that differ, or whose reason does not end with the expected one."""
    equal = {
        node
        for node in expected.keys() & actual.keys()
        if not with_texts or actual[node].endswith(expected[node])
    }
    return _differences(
        {node: reason or "rejected" for node, reason in expected.items() if node not in equal},
        {node: reason for node, reason in actual.items() if node not in equal},
    )


def _event_differences(
    expected: Sequence[ExpectedEvent], actual: Sequence[ExpectedEvent], *, with_texts: bool
) -> list[str]:
    """The events that are missing or not expected."""
    left = list(actual)
    missing = []
    for event in expected:
        same = (
            other
            for other in left
            if (event.about, event.reason) == (other.about, other.reason)
            and (not with_texts or event.message in other.message)
        )
        match = next(same, None)
        if match is None:
            missing.append(event)
        else:
            left.remove(match)
    return [*(f"- {event.text()}" for event in missing), *(f"+ {event.text()}" for event in left)]
