"""Classes of preference: `preference_classes`, for any values of the nodes."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nodewise.base import cooperative_scheduling
from nodewise.metrics.node_index import NodeIndex
from nodewise.policies import preference_classes
from nodewise.policies.placement_policy import Comparison, Preference
from nodewise.policies.preference_classes import (
    CLASSES,
    HYSTERESIS,
    Places,
    PreferenceClasses,
    RankedPolicy,
)

PERIOD_S = 5.0
UNMEASURED = -1.0
VALUES = st.lists(st.one_of(st.just(UNMEASURED), st.integers(0, 9).map(float)), min_size=1, max_size=60)
Floats = NDArray[np.float64]
BEFORE = st.lists(st.integers(0, CLASSES), min_size=60, max_size=60)


def places_of(values: Floats, *, similar_are_equal: bool = False) -> Places:
    """The places of nodes by their values, small ones first; with the unknown node."""
    ranks = np.full(len(values) + 1, -1)
    measured = np.flatnonzero(values != UNMEASURED)
    ranks[measured] = np.unique(values[measured], return_inverse=True)[1]
    places = preference_classes._places([ranks], [1])
    merged = preference_classes.merge_similar(ranks, np.append(values, np.nan))
    return Places(preference_classes._places([merged], [1]) if similar_are_equal else places, places)


def run(
    classes: PreferenceClasses,
    policies: dict[str, Floats],
    nodes: NodeIndex,
    now_s: float,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, NDArray[np.int16]]:
    """One evaluation; policies by `NAMESPACE/NAME`, which is also the key of their label. All nodes have `labels`."""
    ranked = [
        RankedPolicy(
            key, frozenset(filter(None, [key.partition("/")[0]])), places_of(values, similar_are_equal=True)
        )
        for key, values in policies.items()
    ]
    columns = cooperative_scheduling.run_without_pauses(
        classes.columns(ranked, nodes, lambda _: labels, now_s, PERIOD_S)
    )
    return {key: column.codes.copy() for key, column in columns.items()}


@given(VALUES)
def test_first_classes_follow_the_rank_and_hold_a_fifth_of_the_nodes(values: list[float]) -> None:
    measured = np.array(values)
    classes, changes = preference_classes.change_classes(
        places_of(measured), np.zeros(len(values) + 1, np.int16), 0
    )
    assert changes == 0
    assert (classes[:-1] > 0).tolist() == [value != UNMEASURED for value in values]
    assert classes[-1] == 0
    by_class = {number: measured[classes[:-1] == number] for number in range(1, CLASSES + 1)}
    ranked = [group for group in by_class.values() if len(group)]
    assert all(better.max() < worse.min() for better, worse in itertools.pairwise(ranked))
    distinct = measured[measured != UNMEASURED]
    if len(np.unique(distinct)) == len(distinct):
        sizes = [len(group) for group in by_class.values()]
        assert max(sizes) - min(sizes) <= 1


@given(VALUES)
def test_similar_values_have_one_class_and_no_better_value_has_a_worse_class(values: list[float]) -> None:
    measured = np.array(values)
    places = places_of(measured, similar_are_equal=True)
    known = measured != UNMEASURED
    assert (np.isnan(places.first[:-1]) == ~known).all()
    assert (places.first[:-1][known] <= places.last[:-1][known]).all()
    order = np.argsort(measured[known], kind="stable")
    assert (np.diff(places.first[:-1][known][order]) >= 0).all()
    if known.any():
        low = np.quantile(measured[known], 0.1, method="lower")
        step = 0.1 * (np.quantile(measured[known], 0.9, method="higher") - low)
        similar = known & (measured >= low) & (measured < low + step)
        assert len(np.unique(places.first[:-1][similar])) <= 1


@given(VALUES, BEFORE, st.integers(0, 60), st.booleans())
def test_a_class_changes_only_half_a_class_beyond_it_and_within_the_limit(
    values: list[float], before: list[int], most: int, similar_are_equal: bool
) -> None:
    places = places_of(np.array(values), similar_are_equal=similar_are_equal)
    known = np.array([*before[: len(values)], 0], np.int16)
    classes, changes = preference_classes.change_classes(places, known, most)
    moved = (classes != known) & (known > 0)
    assert changes == moved.sum() <= most
    beyond = np.maximum(places.first - known, known - 1 - places.last)
    assert (beyond[moved] >= HYSTERESIS).all()
    assert (classes[moved] == np.floor(places.first[moved]) + 1).all()
    if changes < most:
        stayed = (known > 0) & ~np.isnan(places.first) & ~moved
        assert (beyond[stayed] <= HYSTERESIS).all()


@given(st.data())
def test_no_more_than_a_tenth_of_the_nodes_changes_per_period_and_sixty_per_minute(
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 80))
    policies = data.draw(
        st.lists(st.sampled_from(["/a", "/b", "x/a", "x/b", "y/a"]), min_size=1, unique=True)
    )
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes, classes = NodeIndex(map(str, range(size))), PreferenceClasses()
    most = max(1, size // 10)
    times: list[float] = []
    now_s, before = 100.0, {}
    in_period: dict[str, list[tuple[float, int]]] = {key: [] for key in policies}
    for step_s in data.draw(st.lists(st.floats(0, 20), max_size=30)):
        now_s += step_s
        after = run(classes, {key: random.random(size) for key in policies}, nodes, now_s)
        for key in after.keys() & before.keys():
            changes = int((after[key] != before[key]).sum())
            in_period[key].append((now_s, changes))
            times += [now_s] * changes
        before = after
    for changed in in_period.values():
        for at_s, _ in changed:
            # a window may be a part of two periods
            window = sum(count for time_s, count in changed if at_s <= time_s < at_s + PERIOD_S)
            assert window <= 2 * most
    saved = max(size / 10, 1.0)
    for first, at_s in enumerate(times):
        for number, end_s in enumerate(times[first:], start=1):
            assert number <= saved + (end_s - at_s) * preference_classes.CHANGES_PER_S + 1e-6


def test_noise_of_five_per_cent_changes_at_most_sixty_labels_of_5000_nodes_a_minute() -> None:
    random = np.random.default_rng(1)
    for loads in (random.random(5000), 0.4 + 0.2 * random.random(5000), np.full(5000, 0.5)):
        nodes, classes = NodeIndex(map(str, range(5000))), PreferenceClasses()
        changes = []
        before = None
        for period in range(36):
            values = loads * (1 + 0.05 * random.standard_normal(5000))
            after = run(classes, {"/a": values}, nodes, period * PERIOD_S)["/a"]
            changes.append(0 if before is None else int((after != before).sum()))
            before = after
        minutes = [sum(changes[at : at + 12]) for at in range(len(changes) - 11)]
        assert max(minutes) <= 60


def test_a_node_that_becomes_the_busiest_leaves_the_best_class_within_a_period() -> None:
    random = np.random.default_rng(2)
    nodes, classes = NodeIndex(map(str, range(1000))), PreferenceClasses()
    loads = random.random(1000)
    for period in range(12):
        run(classes, {"/a": loads * (1 + 0.05 * random.standard_normal(1000))}, nodes, period * PERIOD_S)
    best = int(np.argmin(loads))
    loads[best] = 2.0
    codes = run(classes, {"/a": loads}, nodes, 12 * PERIOD_S)["/a"]
    assert codes[best] == CLASSES


def test_a_namespace_whose_values_always_change_takes_no_changes_from_others() -> None:
    random = np.random.default_rng(3)
    nodes, classes = NodeIndex(map(str, range(200))), PreferenceClasses()
    steady = np.arange(200.0)
    noisy = [f"hostile/{number}" for number in range(10)]
    run(classes, {key: random.random(200) for key in ["/own", "web/a", *noisy]}, nodes, 0.0)
    for period in range(1, 150):
        values = {"/own": steady, "web/a": steady} | {key: random.random(200) for key in noisy}
        codes = run(classes, values, nodes, period * PERIOD_S)
    expected = np.floor(steady / 200 * CLASSES) + 1
    for key in ("/own", "web/a"):
        assert np.abs(codes[key][:-1] - expected).max() <= 1


def test_a_node_without_values_keeps_its_class_for_ten_minutes() -> None:
    nodes, classes = NodeIndex("ab"), PreferenceClasses()
    run(classes, {"/a": np.array([1.0, 2.0])}, nodes, 0.0)
    lost = {"/a": np.array([1.0, UNMEASURED])}
    assert run(classes, lost, nodes, 10.0)["/a"][1] == 3
    assert run(classes, lost, nodes, 609.0)["/a"][1] == 3
    assert run(classes, lost, nodes, 610.0)["/a"].tolist() == [1, 0, 0]


def test_a_new_leader_continues_with_the_classes_of_the_labels() -> None:
    nodes = NodeIndex(map(str, range(20)))
    codes = run(PreferenceClasses(), {"/a": np.arange(20.0)}, nodes, 0.0, {"/a": "2"})["/a"]
    assert codes[:-1].tolist() == [2] * 20
    codes = run(PreferenceClasses(), {"/a": np.arange(20.0)}, nodes, 0.0, {"/a": "foreign"})["/a"]
    assert codes[[0, 19]].tolist() == [1, 5]


def test_after_an_edit_of_the_preferences_a_tenth_of_the_nodes_changes_per_period_until_all_follow() -> None:
    nodes, classes = NodeIndex(map(str, range(1000))), PreferenceClasses()
    values, edited = np.arange(1000.0), "/edited"
    preference = Preference(Comparison("heat", "LessThan", 0))

    def run_once(now_s: float, values: Floats, *prefer: Preference) -> NDArray[np.int16]:
        policy = RankedPolicy(edited, frozenset(), places_of(values, similar_are_equal=True), prefer)
        columns = classes.columns([policy], nodes, lambda _: {}, now_s, PERIOD_S)
        return cooperative_scheduling.run_without_pauses(columns)[edited].codes.copy()

    before = run_once(0.0, values)
    unmeasured = np.full(1000, UNMEASURED)
    assert (run_once(PERIOD_S, unmeasured, preference) == before).all()
    for period in range(2, 14):
        after = run_once(period * PERIOD_S, values[::-1], preference)
        assert (after != before).sum() <= 100
        before = after
    assert np.abs(before[:-1] - (CLASSES - np.floor(values / 1000 * CLASSES))).max() <= 1
    changes = []
    for period in range(14, 40):  # other values, which are no edit, are limited on average again
        after = run_once(period * PERIOD_S, values, preference)
        changes.append(int((after != before).sum()))
        before = after
    assert sum(changes) <= 100 + 26 * PERIOD_S
