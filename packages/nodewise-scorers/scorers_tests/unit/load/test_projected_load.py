"""Which nodes the projected load prefers."""

import numpy as np
import pytest

from nodewise_scorers.load import projected_load
from nodewise_scorers.load.projected_load import ProjectedLoad
from nodewise_scorers.load.usage_profiles import Forecast

NODES = np.arange(3)
BUSY, CALM, NEW = range(3)
FORECAST = Forecast(
    np.array([4.0, 0.5, 1.0, 1.0]), np.array([0.5, 0.01, 0.5, 0.0]), np.array([0.0, 0.0, 0.0, 0.5]), 1.0, 0.5
)


def load(*pods: tuple[int, int, float]) -> ProjectedLoad:
    made = ProjectedLoad(np.full(3, 16.0))
    for pod in pods:
        made.add(*pod)
    made.update(FORECAST)
    return made


def best(made: ProjectedLoad, application: int, request: float = 1.0) -> int:
    return int(np.argmin(made.costs(NODES, application, request)))


def test_a_pod_avoids_the_loaded_node() -> None:
    made = load((0, BUSY, 3.0), (1, CALM, 3.0), (2, BUSY, 3.0))
    assert best(made, NEW) == 1


def test_pods_in_flight_count_at_once() -> None:
    made = load((0, CALM, 1.0), (1, CALM, 1.0), (2, CALM, 1.0))
    nodes = []
    for _ in range(6):
        node = best(made, BUSY)
        made.add(node, BUSY, 1.0)
        nodes.append(node)
    assert sorted(nodes) == [0, 0, 1, 1, 2, 2]
    before = made.costs(NODES, BUSY, 1.0)
    made.add(0, NEW, 2.0)
    made.remove(0, NEW, 2.0)
    assert made.costs(NODES, BUSY, 1.0).tolist() == pytest.approx(before.tolist())


@pytest.mark.parametrize(("common", "independent", "spread"), [(0.5, 0.0, True), (0.0, 0.5, False)])
def test_replicas_that_are_busy_at_the_same_time_are_spread(common, independent, spread) -> None:
    """The nodes have the same mean and requests."""
    made = ProjectedLoad(np.full(2, 16.0))
    for _ in range(4):
        made.add(0, 0, 1.0)
        made.add(1, 1, 1.0)
    made.update(Forecast(np.ones(3), np.full(3, common), np.full(3, independent), 1.0, 0.5))
    first, other = made.costs(np.arange(2), 0, 1.0)
    assert (other < first) == spread
    assert spread or first == pytest.approx(other)


def test_on_full_nodes_calm_pods_go_to_busy_nodes_and_busy_pods_to_calm_ones() -> None:
    """All nodes will be filled, so the calm pod takes room that a busier one would take later."""
    made = load((0, BUSY, 3.0), (0, CALM, 12.0), (1, CALM, 15.0), (2, CALM, 15.0))
    assert best(made, CALM) == 0
    assert best(made, BUSY) != 0


def test_large_nodes_take_more() -> None:
    made = ProjectedLoad(np.array([8.0, 64.0]))
    made.update(Forecast(np.ones(3), np.zeros(3), np.zeros(3), 1.0, 0.0))
    nodes = []
    for _ in range(18):
        nodes.append(int(np.argmin(made.costs(np.arange(2), NEW, 1.0))))
        made.add(nodes[-1], NEW, 1.0)
    assert nodes.count(0) == 2
    assert made.requested_by_application(3)[NEW] == 18


@pytest.mark.parametrize(
    ("requested_share", "filled"), [(0.0, 0.0), (0.75, 0.0), (0.9, 0.6), (0.98, 0.92), (1.2, 1.0)]
)
def test_free_requests_are_taken_where_the_cluster_is_full(requested_share, filled) -> None:
    assert projected_load.filled_share(requested_share) == pytest.approx(filled, abs=0.01)


def test_only_the_best_node_has_the_highest_score() -> None:
    assert projected_load.points(np.array([1.0, 1.0001, 2.0, 3.0])).tolist() == [10, 9, 5, 0]
    assert projected_load.points(np.array([2.0, 2.0])).tolist() == [10, 10]
    assert projected_load.points(np.array([2.0])).tolist() == [10]


def test_a_copy_does_not_change_with_the_original() -> None:
    made = load((0, BUSY, 3.0), (1, CALM, 3.0))
    copied = made.copy()
    before = copied.costs(NODES, BUSY, 1.0).tolist()
    made.add(2, BUSY, 4.0)
    made.remove(1, CALM, 3.0)
    assert copied.costs(NODES, BUSY, 1.0).tolist() == before
    assert made.costs(NODES, BUSY, 1.0).tolist() != before


def test_a_pod_of_an_application_without_a_number_counts_with_the_means() -> None:
    made = load()
    for application in (projected_load.OTHERS, 99):
        made.add(0, application, 2.0)
    assert best(made, NEW) != 0
    made.remove(0, 99, 2.0)
    made.remove(0, projected_load.OTHERS, 2.0)
    assert made.costs(NODES, NEW, 1.0).tolist() == pytest.approx(load().costs(NODES, NEW, 1.0).tolist())


def test_usage_besides_the_pods_counts() -> None:
    made = load((0, CALM, 3.0), (1, CALM, 3.0), (2, CALM, 3.0))
    made.set_forecast(np.array([10.0, 2.0, 10.0]), np.ones(3))
    assert best(made, NEW) == 1
