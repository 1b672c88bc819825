"""The pods that count, and the statistics that are stored."""

import json
from typing import Any

import numpy as np
import pytest

from nodewise.base.errors import BadInput
from nodewise_scorers.pigeon import scored_pod_statistics as demands
from nodewise_scorers.pigeon import scored_pod_statistics as memories
from nodewise_scorers.pigeon.scored_pod_statistics import DemandMemory
from scorers_tests.unit.pigeon.cluster_notation import P1, PigeonCluster, pod

SMALL, LARGE = np.array([100, 128, 1, 0, 0], float), np.array([8000, 65536, 1, 0, 0], float)


def test_a_pod_that_is_tried_again_counts_once() -> None:
    cluster = PigeonCluster()
    cluster.prioritize(pod(P1, uid="a"))
    results = [cluster.prioritize(pod("2,512Mi", uid="b")) for _ in range(3)]
    assert [result.demand_variability for result in results] == pytest.approx([0.522936] * 3, abs=1e-6)
    assert results[0].scores == results[1].scores == results[2].scores == [1, 10, 0]


def test_pods_without_a_uid_count_each_time() -> None:
    cluster = PigeonCluster()
    variabilities = [cluster.prioritize(of).demand_variability for of in (P1, "2,512Mi", "2,512Mi")]
    assert variabilities[0] == 0
    assert variabilities[1] != variabilities[2]


def test_scoring_changes_no_statistics() -> None:
    cluster = PigeonCluster()
    assert cluster.score() == cluster.score()
    assert cluster.score("2,512Mi").demand_variability == 0
    assert cluster.state.keep(None) is None


def test_where_the_objective_does_not_go_by_demand_nothing_is_counted() -> None:
    cluster = PigeonCluster(policy_objective="LOAD_BALANCE")
    assert cluster.prioritize().demand_variability is None
    assert cluster.state.keep(None) is None


def test_statistics_outlive_the_process() -> None:
    before, after = PigeonCluster(), PigeonCluster()
    before.prioritize(pod(P1, uid="a"))
    kept = before.state.keep(None)
    assert kept is not None
    after.state.recall(kept)
    pigeon_pod = pod("900m,512Mi", uid="b")
    assert after.score(pigeon_pod) == before.score(pigeon_pod)
    assert after.score(pod(P1, uid="a")).demand_variability == 0


def test_stored_pods_are_not_stored_again() -> None:
    memory = DemandMemory()
    memory.count("a", SMALL)
    kept = memory.keep(None)
    assert kept is not None
    assert memory.keep(kept) is None


def test_a_failed_write_is_repeated() -> None:
    memory, other = DemandMemory(), DemandMemory()
    memory.count("a", SMALL)
    memory.keep(None)  # the write fails, because another replica was faster:
    other.count("b", LARGE)
    kept = memory.keep(other.keep(None))
    assert kept is not None
    assert json.loads(kept)["samples"] == 2
    assert len(json.loads(kept)["pods"]) == 2


def test_statistics_change_only_with_recalled_forms() -> None:
    """A replay uses only recalled statistics."""
    memory, other = DemandMemory(), DemandMemory()
    memory.count("a", SMALL)
    other.count("b", LARGE)
    before = memory.statistics
    kept = memory.keep(other.keep(None))
    assert memory.statistics is before
    assert kept is not None
    memory.recall(kept)
    assert memory.statistics.samples == 2


def test_unreadable_statistics_are_overwritten() -> None:
    memory = DemandMemory()
    memory.count("a", SMALL)
    kept = memory.keep(b"{")
    assert kept == memory.keep(None)


def test_the_stored_form_is_bounded() -> None:
    memory = DemandMemory()
    for number in range(3 * memories.MAX_PODS):
        memory.count(f"{number:08}-0000-0000-0000-000000000000", SMALL + number)
    kept = memory.keep(None)
    assert kept is not None
    assert len(kept) < 2**17
    assert len(json.loads(kept)["pods"]) == memories.MAX_PODS
    DemandMemory().recall(kept)


GOOD: dict[str, Any] = {"samples": 1, "mean": [1.0] * 5, "covariance": [[0.0] * 5] * 5, "pods": ["00"]}


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 100_000, id="nested without end"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="no fields"),
        pytest.param(b" " * 2**20, id="large"),
        pytest.param(GOOD | {"samples": -1}, id="samples below 0"),
        pytest.param(GOOD | {"samples": 101}, id="samples beyond the window"),
        pytest.param(GOOD | {"mean": [1.0] * 4}, id="four means"),
        pytest.param(GOOD | {"mean": [-1.0] * 5}, id="means below 0"),
        pytest.param(GOOD | {"mean": [1e308] * 5}, id="means beyond all quantities"),
        pytest.param(GOOD | {"mean": ["1"] * 5}, id="texts"),
        pytest.param(GOOD | {"covariance": [[0.0] * 5] * 4}, id="four rows"),
        pytest.param(GOOD | {"covariance": [[1e300] * 5] * 5}, id="a covariance beyond all quantities"),
        pytest.param(GOOD | {"pods": ["0" * 17]}, id="a mark that is none"),
        pytest.param(GOOD | {"pods": ["0"] * 5000}, id="too many pods"),
    ],
)
def test_invalid_stored_statistics_are_refused_and_change_nothing(kept: bytes | dict[str, Any]) -> None:
    memory = DemandMemory()
    memory.count("a", SMALL)
    before = memory.keep(None)
    with pytest.raises(BadInput, match=r"stored statistics of the agent pigeon: pigeon\.json: "):
        memory.recall(kept if isinstance(kept, bytes) else json.dumps(kept).encode())
    assert memory.keep(None) == before


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
