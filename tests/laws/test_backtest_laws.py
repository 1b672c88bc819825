"""Arrays agree with the agent's state builder, and nano-units with the parser of quantities."""

import io
import json
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise import quantity
from nodewise.agent import NodeIndex
from nodewise.agents.telemetry.placement_policy import Policy
from nodewise.kube import object_files
from nodewise.metrics.prometheus import range_matrix
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import ValueState
from nodewise.simulate import policy_timeline
from nodewise.simulate.backtest_variants import Variant
from nodewise.simulate.policy_backtest import Backtest
from nodewise.simulate.policy_timeline import PolicyTimeline, TimelineSettings

METRICS = ("temp", "load")
NODES = NodeIndex(("a", "b", "c", "d"))
OPERATORS = ("above", "atLeast", "below", "atMost", "equals", "notEquals")


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    part: dict[str, Any] = {
        "metric": draw(st.sampled_from(METRICS)),
        draw(st.sampled_from(OPERATORS)): draw(st.integers(0, 3)),
        "whenMissing": draw(st.sampled_from(["Allow", "Reject"])),
    }
    if draw(st.booleans()):
        part |= {"query": part.pop("metric"), "emptyMeans": "Healthy"}
        if draw(st.booleans()):
            del part["whenMissing"]
    return part


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    parts = draw(st.lists(comparisons(), min_size=1, max_size=3))
    times: dict[str, str] = {}
    if draw(st.booleans()):
        times["for"] = draw(st.sampled_from(["1m", "90s", "2m"]))
    if draw(st.booleans()):
        times["keepFor"] = draw(st.sampled_from(["1m", "2m"]))
    elif draw(st.booleans()):
        for part in parts:
            side = {"above": -1, "atLeast": -1, "below": 1, "atMost": 1}
            operator = next((name for name in side if name in part), None)
            if operator is not None:
                part["release"] = part[operator] + side[operator]
    return {**parts[0], **times} if len(parts) == 1 else {"all": parts, **times}


@st.composite
def blocks(draw: st.DrawFn) -> list[dict[str, list[list[int]]]]:
    """For each block and metric, rows of values: 0 to 3, 4 for missing, 5 for invalid."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    gap = draw(st.sampled_from([4, 3]))
    rows = st.lists(st.integers(0, 5).map(lambda value: min(value, 5)), min_size=4, max_size=4)
    rows = st.one_of(rows, st.just([gap] * 4), st.just([4] * 4))
    return [
        {metric: draw(st.lists(rows, min_size=size, max_size=size)) for metric in METRICS} for size in sizes
    ]


def matrix(rows: list[list[int]], sample_distance_s: float | None) -> NodeMatrix:
    values = np.array(rows)
    states = np.full(values.shape, np.uint8(ValueState.FRESH), np.uint8)
    states[values == 4] = ValueState.MISSING
    states[values == 5] = ValueState.INVALID
    values[values > 3] = 0
    return NodeMatrix(values * quantity.NANO, states, sample_distance_s=sample_distance_s)


def timeline(avoid: list[dict[str, Any]]) -> PolicyTimeline:
    policy = {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "ClusterPlacementPolicy",
        "metadata": {"name": "p"},
        "spec": {"namespaceSelector": {}, "podSelector": {}, "avoid": avoid},
    }
    settings = TimelineSettings()
    files = object_files.read(["-"], io.BytesIO(json.dumps(policy).encode()))
    return PolicyTimeline(policy_timeline.objects_of_files(files, settings.options), settings)


_ABSENT = {"query": "load", "above": 0, "emptyMeans": "Healthy", "whenMissing": "Reject"}


@example(
    avoid=[_ABSENT],
    history=[
        {"temp": [[4] * 4], "load": [[0, 0, 4, 4]]},
        {"temp": [[4] * 4], "load": [[4] * 4]},
        {"temp": [[4] * 4] * 2, "load": [[0] * 4, [4] * 4]},
    ],
    distances={"temp": None, "load": None},
    incomplete={(1, "load")},
)
@given(
    st.lists(rules(), min_size=1, max_size=3),
    blocks(),
    st.fixed_dictionaries(dict.fromkeys(METRICS, st.sampled_from([None, 15.0, 60.0, 120.0, 300.0]))),
    st.sets(st.tuples(st.integers(0, 2), st.sampled_from(METRICS))),
)
def test_rules_as_arrays_agree_with_the_state_builder(
    avoid: list[dict[str, Any]],
    history: list[dict[str, list[list[int]]]],
    distances: dict[str, float | None],
    incomplete: set[tuple[int, str]],
) -> None:
    """`incomplete` are the numbers and metrics of blocks in which series may be missing."""

    def itself(policy: Policy) -> list[Variant]:
        assert not policy.problems
        return [Variant(0, "", policy)]

    backtest = Backtest(timeline(avoid), NODES, itself, TimelineSettings())
    at = 1_700_000_000.0
    for number, block in enumerate(history):
        steps = len(block["temp"])
        matrices = {}
        for key, request in backtest.requests.items():
            name = request.query or request.metric
            text = "a store is down" if (number, name) in incomplete else ""
            matrices[key] = matrix(block[name], distances[name])._replace(incomplete=text)
        backtest.add(TimeGrid(at, 60.0, steps), matrices)
        at += 60.0 * steps
    [record] = backtest.records.values()
    assert (record.rejected.mask() == record.by_variant[0].mask()).all()


@given(
    st.lists(
        st.one_of(
            st.floats(-1e12, 1e12),
            st.decimals(-10_000_000, 10_000_000, places=9).map(float),
            st.integers(-(2**33), 2**33).map(float),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_nano_units_are_exact(numbers: list[float]) -> None:
    converted = range_matrix.nano_values(np.array(numbers))
    assert converted.tolist() == [quantity.parse(repr(number)) for number in numbers]
