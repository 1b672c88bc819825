"""Rows 126 to 140 and 173 to 174: the objectives of given shares, and the statistics of given pods."""

import numpy as np
import pytest

from nodewise_scorers.pigeon import placement_objectives
from nodewise_scorers.pigeon import scored_pod_statistics as demands
from nodewise_scorers.pigeon.placement_objectives import LAYOUTS, NodeTable, Objective
from scorers_tests.unit.pigeon.cluster_notation import close

NOTHING = np.zeros(1)


def measured(objective: Objective, shares: list[float]) -> float:
    """The objective of these shares. The pod has no requests, so it does not change them."""
    table = NodeTable(np.full((1, len(shares)), 1000.0), 1000 * np.array([shares]))
    return float(LAYOUTS[objective](table, 0).evaluate(np.array([0]), NOTHING)[0])


@pytest.mark.parametrize(
    ("shares", "balance", "consolidation"),
    [
        pytest.param([0.375, 0.5, 0.75], 0.155902, 0.679998, id="126"),
        pytest.param([0.25, 0.625, 0.75], 0.212459, 0.579837, id="127"),
        pytest.param([0.5, 0.5, 0.5], 0, 1, id="130"),
        pytest.param([1, 1, 1], 0, 0, id="131 full"),
        pytest.param([0, 0, 0], 0, 0, id="131 empty"),
        pytest.param([0, 0.5, 1], 0.408248, 0.183503, id="132"),
        pytest.param([1.2, 0.4], 0.4, -0.457738, id="133"),
    ],
)
def test_shares_of_one_resource(shares: list[float], balance: float, consolidation: float) -> None:
    assert close(measured("LOAD_BALANCE", shares), balance, 1e-5)
    assert close(measured("CONSOLIDATE", shares), consolidation, 1e-5)


@pytest.mark.parametrize(
    ("mean", "covariance", "variability"),
    [
        pytest.param(
            [0.271, 0.198, 0.500],
            [[0.032, 0.021, 0.073], [0.021, 0.016, 0.047], [0.073, 0.047, 0.167]],
            0.760545,
            id="135",
        ),
        pytest.param(
            [0.300, 0.218, 0.566],
            [[0.033, 0.022, 0.073], [0.022, 0.017, 0.049], [0.073, 0.049, 0.166]],
            0.679205,
            id="136",
        ),
        pytest.param(
            [0.455, 0.390, 0.703],
            [[0.090, 0.087, 0.122], [0.087, 0.094, 0.106], [0.122, 0.106, 0.191]],
            0.635812,
            id="140",
        ),
    ],
)
def test_variability_of_several_resources(
    mean: list[float], covariance: list[list[float]], variability: float
) -> None:
    mean_vector = np.array(mean)
    variabilities = placement_objectives.variability(
        mean_vector[:, None], np.array([mean_vector @ np.array(covariance) @ mean_vector])
    )
    assert close(variabilities, [variability], 1e-5)


@pytest.mark.parametrize(
    ("samples", "mean", "second_moments"),
    [
        pytest.param(
            [(100 + number, 200) for number in range(150)],
            [179.9478, 200],
            [[34386.537, 35989.560], [35989.560, 40000]],
            id="173",
        ),
        pytest.param(
            [(1000, 1000)] * 100 + [(2000, 1000)],
            [1010, 1000],
            [[1030000, 1010000], [1010000, 1000000]],
            id="174",
        ),
    ],
)
def test_statistics_of_pods(
    samples: list[tuple[int, int]], mean: list[float], second_moments: list[list[float]]
) -> None:
    distribution = demands.NO_DEMAND
    for sample in samples:
        distribution = demands.add_pod(distribution, np.array([*sample, 0, 0, 0], float))
    assert distribution.samples == 100
    assert np.allclose(distribution.mean[:2], mean, rtol=1e-6)
    assert np.allclose(distribution.second_moments[:2, :2], second_moments, rtol=1e-6)


def test_equal_pods_have_no_variability_at_all() -> None:
    distribution = demands.NO_DEMAND
    for _ in range(1000):
        distribution = demands.add_pod(distribution, np.array([500, 1024, 1, 0, 0], float))
    distribution = demands.add_pods(distribution, [np.array([500, 1024, 1, 0, 0], float)] * 1000)
    assert demands.demand_variability(distribution, np.array([4000.0, 8192.0])) == 0


@pytest.mark.parametrize("known", [0, 1, 60, 500])
@pytest.mark.parametrize("count", [0, 1, 2, 99, 100, 1024])
def test_adding_many_pods_at_once_equals_adding_them_one_by_one(known: int, count: int) -> None:
    samples = list(np.random.default_rng(count).integers(0, 10_000, (known + count, 5)).astype(float))
    one_by_one = demands.NO_DEMAND
    for sample in samples:
        one_by_one = demands.add_pod(one_by_one, sample)
    at_once = demands.add_pods(demands.add_pods(demands.NO_DEMAND, samples[:known]), samples[known:])
    assert at_once.samples == one_by_one.samples
    assert np.allclose(at_once.mean, one_by_one.mean, rtol=1e-12)
    assert np.allclose(at_once.covariance, one_by_one.covariance, rtol=1e-9)


def test_a_resource_that_no_node_has_does_not_count_for_demand() -> None:
    distribution = demands.add_pod(demands.NO_DEMAND, np.array([500, 1024, 1, 8, 0], float))
    distribution = demands.add_pod(distribution, np.array([500, 1024, 1, 0, 0], float))
    assert demands.demand_variability(distribution, np.array([4000.0, 8192.0, 110.0, 0.0])) == 0
    assert demands.demand_variability(distribution, np.array([4000.0, 8192.0, 110.0, 8.0])) > 0
