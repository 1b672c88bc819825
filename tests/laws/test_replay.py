"""A replayed recording gives the same responses after any history, and every altered record is detected."""

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agent import ClusterState, NodeIndex
from nodewise.engine import recording_file
from nodewise.engine.recording_file import Record, RequestEntry
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.state import POLICIES
from tests.unit.extender.recording_extender import RecordedExtender, body, records, replay
from tests.unit.policies.policy_snapshot_builders import policy, rule

NODES = [f"n{i}" for i in range(8)]
METRICS = ["a", "b", "Ω\u2028\n"]
POLICIES_NAMED = ["p0", "p1"]
NUMBERS = st.integers(-(10**22), 10**22) | st.integers(-3, 3)
TIMES = st.none() | st.floats(900, 1300)
SAMPLES = st.dictionaries(
    st.sampled_from(NODES), st.builds(Sample, NUMBERS, TIMES, st.just(60.0) | st.floats(0, 99))
)
OPERATORS = st.sampled_from(["LessThan", "GreaterThan", "Equals", "Above"])
RULES = st.builds(
    rule,
    st.sampled_from(["a", "b", ""]),
    OPERATORS,
    st.integers(-3, 3),
    when_missing=st.sampled_from(["", "pass", "reject"]),
    max_age=st.sampled_from(["10s", "60s"]),
)
STRATEGY = st.fixed_dictionaries(
    {"rules": st.lists(RULES, max_size=3), "logicalOperator": st.sampled_from(["anyOf", "allOf"])}
)
SPECS = st.dictionaries(st.sampled_from(["dontschedule", "scheduleonmetric", "deschedule"]), STRATEGY)
STEPS = st.one_of(
    st.tuples(st.just("nodes"), st.permutations(NODES), st.integers(0, len(NODES))),
    st.tuples(st.just("policy"), st.sampled_from(POLICIES_NAMED), SPECS),
    st.tuples(st.just("delete"), st.sampled_from(POLICIES_NAMED)),
    st.tuples(st.just("relist")),
    st.tuples(
        st.just("fetch"),
        st.sampled_from(METRICS),
        SAMPLES,
        st.dictionaries(st.sampled_from(NODES), st.text()),
    ),
    st.tuples(st.just("fail"), st.sampled_from(METRICS), st.text()),
    st.tuples(st.just("forget"), st.sampled_from(METRICS)),
    st.tuples(st.just("wait"), st.floats(0, 100)),
    st.tuples(
        st.just("ask"),
        st.sampled_from(["/scheduler/", "/agents/telemetry/"]),
        st.sampled_from(["filter", "prioritize", "preempt"]),
        st.none() | st.sampled_from([*POLICIES_NAMED, "p9", ""]),
        st.lists(st.sampled_from([*NODES, "nX"]), max_size=9),
    ),
    st.tuples(st.just("garble"), st.binary(max_size=9)),
)
HISTORIES = st.lists(STEPS, max_size=25)
OPTIONS = st.builds(
    TelemetryOptions, max_age_s=st.sampled_from([0.0, 5.0]), when_missing=st.sampled_from(["pass", "reject"])
)


class RecordedCluster:
    """A cluster that steps change. Objects that a step does not change remain identical, as in the real stores."""

    def __init__(self, options: TelemetryOptions) -> None:
        self.recorded = RecordedExtender(options)
        self.cluster_states: list[ClusterState] = []
        self._nodes = NodeIndex(NODES)
        self._policies: dict[tuple[str, str], Any] = {}
        self._metrics = MetricsSnapshot()

    def take(self, step: tuple[Any, ...]) -> None:
        kind, *arguments = step
        getattr(self, kind)(*arguments)
        if kind not in {"ask", "garble"}:
            cluster_state = ClusterState(
                self._nodes, {POLICIES: self._policies}, self._metrics, self.recorded.clock.now()
            )
            self.cluster_states.append(cluster_state)
            self.recorded.see(cluster_state)

    def nodes(self, order: list[str], count: int) -> None:
        self._nodes = NodeIndex(order[:count])

    def policy(self, name: str, spec: dict[str, Any]) -> None:
        self._policies = {**self._policies, ("d", name): policy(name, **spec)}

    def delete(self, name: str) -> None:
        self._policies = {key: policy for key, policy in self._policies.items() if key[1] != name}

    def relist(self) -> None:
        self._policies = dict(self._policies)

    def fetch(self, metric: str, samples: dict[str, Sample], invalid: dict[str, str]) -> None:
        series = Series(metric, "test", self.recorded.clock.now(), samples, invalid)
        self._metrics = self._metrics.with_series(series)

    def fail(self, metric: str, why: str) -> None:
        self._metrics = self._metrics.with_failure(metric, why)

    def forget(self, metric: str) -> None:
        left = frozenset({*self._metrics.series, *self._metrics.failures} - {metric})
        self._metrics = self._metrics.only(left)

    def wait(self, seconds: float) -> None:
        self.recorded.clock.advance(seconds)

    def ask(self, prefix: str, verb: str, named: str | None, names: list[str]) -> None:
        victims = {name: {"Pods": [{"UID": "v"}]} for name in names}
        self.recorded.ask(prefix + verb, body(named, " ".join(names), NodeNameToMetaVictims=victims))

    def garble(self, text: bytes) -> None:
        self.recorded.ask("/scheduler/filter", text)


def recorded(history: list[tuple[Any, ...]], options: TelemetryOptions) -> RecordedCluster:
    scene = RecordedCluster(options)
    for step in history:
        scene.take(step)
    return scene


@settings(deadline=None)
@given(HISTORIES, OPTIONS)
def test_a_replay_answers_the_same_byte_for_byte(history: list[Any], options: TelemetryOptions) -> None:
    scene = recorded(history, options)
    report = replay(records(scene.recorded.finish()))
    requests = sum(step[0] in {"ask", "garble"} for step in history)
    tally = report.player.tally
    assert report.differences == []
    expected = (requests, requests, len(scene.cluster_states), "stopped")
    assert (tally.same, tally.requests, tally.cluster_states, tally.end) == expected


@settings(deadline=None)
@given(HISTORIES, OPTIONS, st.data())
def test_an_altered_answer_is_found(
    history: list[Any], options: TelemetryOptions, data: st.DataObject
) -> None:
    last = ("ask", "/scheduler/", "filter", "p0", NODES)
    whole = records(recorded([*history, last], options).recorded.finish())
    place = data.draw(
        st.sampled_from([n for n, record in enumerate(whole) if isinstance(record.entry, RequestEntry)])
    )
    entry, (request, answer) = whole[place]
    at, put = data.draw(st.integers(0, len(answer))), data.draw(st.binary(min_size=1, max_size=3))
    whole[place] = Record(entry, (request, answer[:at] + put + answer[at:]))
    report = replay(whole)
    assert [(difference.path, difference.at) for difference in report.differences] == [(entry.path, entry.at)]  # type: ignore[union-attr]
    assert report.player.tally.different == 1


@settings(deadline=None)
@given(HISTORIES, OPTIONS, st.data())
def test_a_recording_that_was_cut_anywhere_replays_up_to_there(
    history: list[Any], options: TelemetryOptions, data: st.DataObject
) -> None:
    scene = RecordedCluster(options)
    flushed, entries = len(scene.recorded.disk.getvalue()), 1
    for step in history:
        scene.take(step)
        if data.draw(st.booleans()):
            scene.recorded.recording.write()
            flushed = len(scene.recorded.disk.getvalue())
            entries = len(records(scene.recorded.disk.getvalue()))
    whole = scene.recorded.finish()
    cut = records(whole[: data.draw(st.integers(flushed, len(whole)))])
    assert cut == records(whole)[: len(cut)]
    assert len(cut) >= entries, "what was flushed is there"
    assert replay(cut).differences == []


@settings(deadline=None)
@given(HISTORIES)
def test_worlds_come_back_as_they_were(history: list[Any]) -> None:
    scene = recorded(history, TelemetryOptions())
    rebuilding = recording_file.ClusterStateRebuilder({POLICIES: type(policy())})
    back = [
        cluster_state
        for cluster_state in map(rebuilding.apply, records(scene.recorded.finish()))
        if cluster_state is not None
    ]
    assert list(map(shown, back)) == list(map(shown, scene.cluster_states))
    for (first, two), (again, twice) in zip(pairs(scene.cluster_states), pairs(back), strict=True):
        assert same_parts(first, two) == same_parts(again, twice)


def pairs(cluster_states: list[ClusterState]) -> list[tuple[ClusterState, ClusterState]]:
    return list(pairwise(cluster_states))


def shown(cluster_state: ClusterState) -> Any:
    """The whole content of a cluster state, including the order of its parts."""
    series = [
        (m, list(s.samples.items()), msgspec.structs.replace(s, samples={}))
        for m, s in cluster_state.metrics.series.items()
    ]
    objects = {name: list(objects.items()) for name, objects in cluster_state.objects.items()}
    return (
        cluster_state.nodes.known,
        objects,
        series,
        list(cluster_state.metrics.failures.items()),
        cluster_state.now,
    )


def same_parts(first: ClusterState, two: ClusterState) -> Any:
    """The parts that are identical objects in two cluster states, which builders use to detect changes."""
    series = {m for m in first.metrics.series if first.metrics.series[m] is two.metrics.series.get(m)}
    policies = {
        key for key, policy in first.objects[POLICIES].items() if policy is two.objects[POLICIES].get(key)
    }
    return first.nodes is two.nodes, first.metrics is two.metrics, series, policies
