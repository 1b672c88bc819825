"""Laws of the pigeon agent: its objectives equal a direct calculation, for any cluster and pod."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise_scorers.pigeon import placement_objectives
from nodewise_scorers.pigeon import scored_pod_statistics as demands
from nodewise_scorers.pigeon.agent import HoldingPod, NodeRequests
from nodewise_scorers.pigeon.options import OBJECTIVES, Objective
from nodewise_scorers.pigeon.placement_objectives import LAYOUTS, ROUNDING, NodeTable
from nodewise_scorers.pigeon.scored_pod_statistics import DemandMemory
from scorers_tests.unit.pigeon.cluster_notation import PigeonCluster, node
from scorers_tests.unit.pigeon.test_node_request_sums import apply_pod_changes, holding_pod, reduced_pods

CAPACITY = st.sampled_from([0, 1, 10, 4000, 8192]) | st.integers(1, 10**6)


@st.composite
def tables(draw: st.DrawFn) -> NodeTable:
    """Tables with one to five resources. Some nodes are over-committed, and some have no capacity."""
    resources, count = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    capacity = draw(
        st.lists(st.lists(CAPACITY, min_size=count, max_size=count), min_size=resources, max_size=resources)
    )
    shares = st.floats(0, 1.5) | st.sampled_from([0.0, 0.5, 1.0])
    used = [
        [round(amount * draw(shares)) if amount else draw(st.integers(0, 2)) for amount in row]
        for row in capacity
    ]
    return NodeTable(np.array(capacity, float), np.array(used, float))


def cell(used: float, capacity: float, *, clamped: bool) -> float:
    if clamped:
        return float(used > 0) if capacity == 0 else min(used / capacity, 1.0)
    return 1.0 if capacity == 0 else used / capacity


def directly(objective: Objective, table: NodeTable, prime: int) -> float:
    """The objective by the formula of the specification, computed from all nodes."""
    clamped = objective == "A_BINPACK"
    rows = zip(table.used, table.capacity, strict=True)
    shares = np.array([[cell(u, c, clamped=clamped) for u, c in zip(*row, strict=True)] for row in rows])
    if clamped:
        mean, covariance = shares.mean(axis=1), np.atleast_2d(np.cov(shares, bias=True))
        root, length = np.sqrt(max(mean @ covariance @ mean, 0.0)), mean @ mean
        return float(root / length) if length else 0.0
    if objective == "LOAD_BALANCE":
        return float(shares[prime].std())
    mean_ = float(shares[prime].mean())
    if not ROUNDING < mean_ < 1 - ROUNDING:
        return 0.0
    parts = [(mean_ - u) / mean_ if u < mean_ else (u - mean_) / (1 - mean_) for u in shares[prime]]
    return float(1 - np.sqrt(np.mean(np.square(parts))))


def test_consolidate_on_a_full_cluster_does_not_depend_on_rounding() -> None:
    """458465 · (1/458465) is slightly less than 1."""
    full = NodeTable(np.array([[458465.0]]), np.array([[458465.0]]))
    assert LAYOUTS["CONSOLIDATE"](full, 0).evaluate(np.array([0]), np.zeros(1)).tolist() == [0.0]


@given(tables(), st.sampled_from(OBJECTIVES), st.data())
def test_incremental_moments_are_the_direct_ones(
    table: NodeTable, objective: Objective, data: st.DataObject
) -> None:
    resources, _ = table.capacity.shape
    prime = data.draw(st.integers(0, resources - 1))
    room = table.capacity - table.used
    demand = np.array([data.draw(st.integers(0, max(int(row.max()), 0))) for row in room], float)
    fits = np.flatnonzero((demand[:, None] <= room).all(axis=0))
    measured = LAYOUTS[objective](table, prime).evaluate(fits, demand)
    for column, value in zip(fits.tolist(), measured.tolist(), strict=True):
        used = table.used.copy()
        used[:, column] += demand
        # a square root turns a difference of 1e-16 into one of 1e-8
        assert abs(value - directly(objective, NodeTable(table.capacity, used), prime)) < 1e-7


@given(st.lists(st.floats(0, 1e6) | st.just(np.nan), max_size=8))
def test_the_best_fitting_node_scores_10_the_worst_1_and_others_0(values: list[float]) -> None:
    points = placement_objectives.stretch(np.array(values)).tolist()
    fitting = sorted(
        (value, -score) for value, score in zip(values, points, strict=True) if not np.isnan(value)
    )
    assert all(score == 0 for value, score in zip(values, points, strict=True) if np.isnan(value))
    assert [-score for _, score in fitting] == sorted((-score for _, score in fitting), reverse=True)
    if fitting:
        assert -fitting[0][1] == 10
        assert -fitting[-1][1] in (1, 10)


SAMPLES = st.lists(st.tuples(*[st.integers(0, 2**40)] * 5), min_size=1, max_size=150)


@given(SAMPLES)
def test_statistics_are_those_of_the_older_system(samples: list[tuple[int, ...]]) -> None:
    statistics, mean, second = demands.NO_DEMAND, np.zeros(5), np.zeros((5, 5))
    for number, sample in enumerate(np.array(samples, float), 1):
        statistics = demands.add_pod(statistics, sample)
        weight = 1 / min(number, 100)
        mean = (1 - weight) * mean + weight * sample
        second = (1 - weight) * second + weight * np.outer(sample, sample)
    sizes = np.sqrt(second.diagonal())
    assert np.allclose(statistics.mean, mean, rtol=1e-9)
    second_moments = statistics.covariance + np.outer(statistics.mean, statistics.mean)
    assert (abs(second_moments - second) <= 1e-9 * np.outer(sizes, sizes)).all()


@given(SAMPLES, st.data())
def test_two_replicas_store_the_same_statistics_as_one(
    samples: list[tuple[int, ...]], data: st.DataObject
) -> None:
    """The result does not depend on which replica gets a request, nor on failed writes."""
    alone, replicas = DemandMemory(), (DemandMemory(), DemandMemory())
    kept: bytes | None = None
    for number, sample in enumerate(samples):
        who = replicas[data.draw(st.integers(0, 1))]
        who.count(f"uid-{number}", np.array(sample, float))
        who.count(f"uid-{number}", np.array(sample, float))
        alone.count(f"uid-{number}", np.array(sample, float))
        for _ in range(data.draw(st.integers(0, 2))):
            who.keep(kept)  # the write fails, because another replica was faster
        kept = who.keep(kept) or kept
        if data.draw(st.booleans()):
            assert kept is not None
            who.recall(kept)
    assert kept == alone.keep(None)


HELD = st.builds(
    holding_pod,
    st.sampled_from("abcdefgh"),
    st.sampled_from(["", "n1", "n2"]),
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 2**60) | st.just("1500m"), max_size=3
    ),
    st.sampled_from(["Pending", "Running", "Failed"]),
)


@given(st.lists(st.lists(HELD, max_size=8), min_size=1, max_size=5))
def test_node_requests_are_the_sum_of_the_current_pods(worlds: list[list[HoldingPod]]) -> None:
    holdings = NodeRequests("gpu")
    before: dict[tuple[str, str], HoldingPod] = {}
    for pods in worlds:
        apply_pod_changes(holdings, reduced_pods(pods), before)
        before = reduced_pods(pods)
    anew = apply_pod_changes(NodeRequests("gpu"), reduced_pods(worlds[-1]))
    assert [holdings.of(name) for name in ("n1", "n2")] == [anew.of(name) for name in ("n1", "n2")]


LIMITS = ["", "0", "-1", "1e308", "-1e308", "1e999", "nan", "inf", "9" * 20, "9" * 600]
FORMS = ["1000.0", " 5", "0x10", "1_0", "٣", "1.5Gi"]
TEXTS = st.none() | st.text(max_size=20) | st.sampled_from(LIMITS + FORMS)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
QUANTITIES = st.text(max_size=10) | NUMBERS | st.sampled_from([None, True, [], {}])
RESOURCES = st.sampled_from(["cpu", "memory", "pods", "gpu", "ephemeral-storage"])
ODD_NODES = st.builds(
    node,
    st.none() | st.dictionaries(RESOURCES, QUANTITIES),
    st.none() | st.dictionaries(RESOURCES.map("requested-{}".format), TEXTS),
)
OPTIONS = st.fixed_dictionaries(
    {
        "policy_objective": st.sampled_from(OBJECTIVES),
        "num_resources": st.integers(1, 5),
        "score_missing": st.none() | st.integers(0, 10),
    }
)


@given(st.lists(ODD_NODES, max_size=5), OPTIONS, st.text(max_size=9))
def test_whatever_nodes_and_pods_say_scores_are_scores(
    odd: list[Any], options: dict[str, Any], requested: str
) -> None:
    given_nodes = {f"n{number}": amounts for number, amounts in enumerate(odd)}
    cluster = PigeonCluster(given_nodes, **options)
    report = cluster.prioritize(requested, names=" ".join([*given_nodes, "stranger"]))
    assert all(0 <= score <= 10 for score in report.scores)
    assert report.scores[-1] == 0
    assert not any(np.isinf(report.objectives))
