"""The running program and `policy test` reject the same nodes, whenever samples arrive; and rules with `for` do not
depend on how far apart samples are.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import NodeIndex
from nodewise.metrics.prometheus.query_responses import QueryResponse, decode_response
from nodewise.policy_tools.policy_suite import START, InputSeries, InputSeriesSource, PolicyTest
from nodewise.policy_tools.policy_timeline import PolicyTimeline, TimelineSettings
from tests.manual_clock import ManualClock
from tests.unit.metrics.refreshed_policy import PERIOD_S, objects_of, rejections

NODES: Final = ("a", "b", "c", "d", "e")
RANGE: Final = re.compile(r"(?P<selector>.*)\[(?P<seconds>\d+)(?P<milli>m?)s\]")
LOOKBACK_S: Final = 300.0

Values = Mapping[str, Sequence[str | None]]
"""By node: a value, or None for no sample, every `PERIOD_S`."""


class ScrapedPrometheus:
    """Responds with the samples until now, as Prometheus' API does."""

    def __init__(self, values: Values, clock: ManualClock) -> None:
        self._values = values
        self._clock = clock

    async def query(self, query: str, before_body: Any = None) -> QueryResponse:
        if before_body is not None:
            await before_body()
        match = RANGE.fullmatch(query)
        span_s = LOOKBACK_S if match is None else int(match["seconds"]) / (1000 if match["milli"] else 1)
        series = [(node, points) for node in self._values if (points := list(self._points(node, span_s)))]
        kind, name = ("vector", "value") if match is None else ("matrix", "values")
        result = [
            {"metric": {"instance": node}, name: points[-1] if match is None else points}
            for node, points in series
        ]
        data = {"status": "success", "data": {"resultType": kind, "result": result}}
        return decode_response(json.dumps(data).encode())

    def _points(self, node: str, span_s: float) -> Iterator[tuple[float, str]]:
        for number, value in enumerate(self._values[node]):
            at = START + number * PERIOD_S
            if value is not None and 0 <= self._clock.now() - at <= span_s:
                yield at, value


def rejected_by_program(values: Values, rule: Mapping[str, Any], steps: int) -> list[set[str]]:
    """What the extender rejects after each refresh."""
    clock = ManualClock(START)
    return rejections(ScrapedPrometheus(values, clock), clock, tuple(values), rule, steps)


def rejected_by_policy_test(values: Values, rule: Mapping[str, Any], steps: int) -> list[set[str]]:
    """What `nodewise policy test` says at the same times."""
    series = tuple(
        InputSeries({"__name__": "heat", "instance": node}, "", tuple(own)) for node, own in values.items()
    )
    source = InputSeriesSource(PolicyTest("t", 1, PERIOD_S, tuple(values), {}, series, ()))
    timeline, nodes = PolicyTimeline(objects_of(rule), TimelineSettings()), NodeIndex(values)
    rejected = []
    for step in range(steps):
        at_s = step * PERIOD_S
        moment = timeline.advance(START + at_s, source.respond(timeline.next_requests(), at_s), nodes)
        [policy] = moment.state.policies.values()
        assert policy.verdict is not None
        rejected.append({node for node, code in zip(nodes.known, policy.verdict.codes, strict=False) if code})
    return rejected


@st.composite
def sample_values(draw: st.DrawFn) -> Values:
    """Values of nodes with their own scrape intervals, offsets and gaps."""
    steps = draw(st.integers(20, 60))
    common = draw(st.sampled_from([3, 12, 24, 60]))
    values: dict[str, list[str | None]] = {}
    for node in NODES:
        own: list[str | None] = [None] * steps
        step = draw(st.integers(0, 12))
        while step < steps:
            own[step] = draw(st.sampled_from(["90", "90", "90", "75", "70", None]))
            step += max(common + draw(st.sampled_from([0, 0, 0, 1, -1, 7])), 1)
        values[node] = own
    return values


RULES: Final = st.fixed_dictionaries(
    {"metric": st.just("heat"), "above": st.just(80)},
    optional={
        "for": st.sampled_from(["30s", "90s", "3m"]),
        "release": st.sampled_from([80, 72]),
        "maxAge": st.sampled_from(["30s", "60s", "3m"]),
        "whenMissing": st.sampled_from(["Allow", "Reject"]),
    },
)


@given(sample_values(), RULES)
def test_the_program_rejects_the_same_nodes_as_policy_test(values: Values, rule: dict[str, Any]) -> None:
    steps = len(values["a"])
    assert rejected_by_program(values, rule, steps) == rejected_by_policy_test(values, rule, steps)


@pytest.mark.parametrize("failed", [False, True], ids=["every scrape", "one failed scrape"])
@pytest.mark.parametrize("distance", [3, 12, 24])
@pytest.mark.parametrize("max_age", [None, "60s"])
def test_a_node_that_always_meets_a_rule_is_rejected_at_most_two_scrapes_after_for(
    distance: int, max_age: str | None, failed: bool
) -> None:
    """Samples every 15 s, 60 s and 2 min, of nodes with different offsets."""
    if max_age and distance > 12:
        pytest.skip("a longer distance than maxAge: the condition says so")
    steps = 150
    nodes = [f"n{number}" for number in range(20)]
    values: dict[str, list[str | None]] = {}
    for number, node in enumerate(nodes):
        offset = number % distance
        sampled = set(range(offset, steps, distance))
        if failed:
            sampled.discard(offset + distance * (2 + number % 3))
        values[node] = ["91" if step in sampled else None for step in range(steps)]
    rule = {"metric": "heat", "above": 80, "for": "90s"} | ({"maxAge": max_age} if max_age else {})
    rejected = rejected_by_program(values, rule, steps)
    due = 18 + 2 * distance + distance
    assert all(each == set(nodes) for each in rejected[due:])
    assert not any(rejected[:18]), "not before the time of for"
