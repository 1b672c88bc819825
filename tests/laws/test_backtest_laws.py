"""Arrays agree with the agent's state builder, and nano-units with the parser of quantities."""

import io
import json
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from nodewise.agent import NodeIndex
from nodewise.base import cooperative_scheduling, quantity
from nodewise.kube import object_files
from nodewise.metrics.metrics_source import AGGREGATIONS
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import node_matching, range_matrix
from nodewise.metrics.prometheus.query_responses import QueryResponse, SeriesValue
from nodewise.metrics.prometheus.range_matrix import DifferingEntries, NodeMatrix, TimeGrid
from nodewise.metrics.series import ValueState
from nodewise.policies.placement_policy import Policy
from nodewise.policy_tools import policy_backtest, policy_timeline
from nodewise.policy_tools.policy_backtest import Backtest, Variant
from nodewise.policy_tools.policy_timeline import PolicyTimeline, TimelineSettings

METRICS = ("temp", "load")
NODES = NodeIndex(("a", "b", "c", "d"))
RANGES = {6: (0, 1), 7: (2, 3)}
"""The lowest and the highest value of a node whose series differ."""
OPERATORS = ("above", "atLeast", "below", "atMost", "equals", "notEquals")


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    operator = draw(st.sampled_from([*OPERATORS, "between"]))
    ends = draw(st.lists(st.integers(0, 3), min_size=2, max_size=2))
    part: dict[str, Any] = {
        "metric": draw(st.sampled_from(METRICS)),
        operator: sorted(ends) if operator == "between" else ends[0],
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
    """For each block and metric, rows of values: 0 to 3, 4 for missing, 5 for invalid, and keys of `RANGES`."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    gap = draw(st.sampled_from([4, 3]))
    rows = st.lists(st.integers(0, 7), min_size=4, max_size=4)
    rows = st.one_of(rows, st.just([gap] * 4), st.just([4] * 4))
    return [
        {metric: draw(st.lists(rows, min_size=size, max_size=size)) for metric in METRICS} for size in sizes
    ]


def matrix(rows: list[list[int]], sample_distance_s: float | None) -> NodeMatrix:
    values = np.array(rows)
    states = np.full(values.shape, np.uint8(ValueState.FRESH), np.uint8)
    states[values == 4] = ValueState.MISSING
    states[values == 5] = ValueState.INVALID
    states[values > 5] = ValueState.INVALID
    steps, nodes = np.nonzero(values > 5)
    ranges = np.array([RANGES[code] for code in values[steps, nodes].tolist()], np.int64).reshape(-1, 2)
    differing = DifferingEntries(steps, nodes, *(ranges * quantity.NANO).T)
    values[values > 3] = 0
    return NodeMatrix(
        values * quantity.NANO, states, sample_distance_s=sample_distance_s, differing=differing
    )


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
@example(
    avoid=[{"metric": "temp", "above": 1}],
    history=[{"temp": [[0, 0, 6, 7], [4] * 4], "load": [[4] * 4] * 2}],
    distances={"temp": 30.0, "load": None},
    incomplete=set(),
)
@example(
    avoid=[
        {
            "all": [
                {"metric": "load", "above": 0, "whenMissing": "Reject"},
                {"metric": "load", "below": 1, "whenMissing": "Allow"},
            ]
        }
    ],
    history=[{"temp": [[0] * 4] * 2, "load": [[0] * 4, [0, 4, 4, 7]]}],
    distances={"temp": None, "load": None},
    incomplete=set(),
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
    """Also where they share comparisons with variants. `incomplete` are the numbers and metrics of blocks in which
    series may be missing.
    """

    def others_and_itself(policy: Policy) -> list[Variant]:
        assert not policy.problems
        requests = [part.metric_request() for part in policy.avoided()]
        samples = {each.key: matrix(history[0][each.query or each.metric], None) for each in requests}
        return [*policy_backtest.alternatives(policy, samples), Variant(0, "", policy)]

    backtest = Backtest(timeline(avoid), NODES, others_and_itself, TimelineSettings())
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
    assert (record.rejected.mask() == record.by_variant[-1].mask()).all()


@st.composite
def labelled_series(draw: st.DrawFn) -> list[SeriesValue]:
    """Series of some nodes at one time, which differ in a sensor, and some also in a cluster or a replica."""
    optional = {"cluster": st.sampled_from("ew"), "replica": st.sampled_from("01")}
    required = {"instance": st.sampled_from(NODES.known), "sensor": st.sampled_from("012")}
    labels = st.fixed_dictionaries(required, optional=optional)
    texts = st.sampled_from(["1", "2", "2.5", "NaN", "+Inf", "7e+10"])
    unique = draw(st.lists(labels, max_size=8, unique_by=lambda own: tuple(sorted(own.items()))))
    return [SeriesValue(own, draw(texts), _AT) for own in unique]


_AT = 1_700_000_000.0


@given(labelled_series(), st.sampled_from(("", *AGGREGATIONS)))
def test_nodes_have_the_values_of_the_running_program(series: list[SeriesValue], aggregate: str) -> None:
    run = cooperative_scheduling.run_without_pauses
    attributes = NodeAttributes({}, {name: name for name in NODES.known})
    labels = node_matching.series_labels()
    grouped = run(node_matching.group_by_node(series, labels, attributes))
    program = run(node_matching.reduce(grouped, aggregate, labels))
    entries = [{"metric": item.labels, "values": [[_AT, item.value]]} for item in series]
    response = QueryResponse("matrix", [Raw(json.dumps(entry).encode()) for entry in entries])
    grid = TimeGrid(_AT, 60.0, 1)
    past = range_matrix.build_matrix(response, grid, labels, attributes, NODES, aggregate)
    names = {state: [] for state in ValueState}
    for name, state in zip(NODES.known, past.states[0].tolist(), strict=True):
        names[ValueState(state)].append(name)
    assert names[ValueState.FRESH] == sorted(program.samples)
    assert names[ValueState.INVALID] == sorted(program.invalid)
    values = dict(zip(NODES.known, past.values[0].tolist(), strict=True))
    assert {name: values[name] for name in program.samples} == {
        name: sample.value for name, sample in program.samples.items()
    }
    own = past.differing
    ranges = zip(own.nodes.tolist(), own.lowest.tolist(), own.highest.tolist(), strict=True)
    assert {NODES.known[node]: (lowest, highest) for node, lowest, highest in ranges} == {
        name: (entry.lowest, entry.highest) for name, entry in program.differing.items()
    }


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
