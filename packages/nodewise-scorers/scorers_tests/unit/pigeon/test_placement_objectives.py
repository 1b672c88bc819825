"""Rows 126 to 140 and 173 to 174: the objectives of given shares, and the statistics of given pods."""

import numpy as np
import pytest

from nodewise_scorers.pigeon import scored_pod_statistics as demands


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
