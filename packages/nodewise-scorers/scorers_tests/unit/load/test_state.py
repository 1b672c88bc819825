"""The predicted load of nodes: statistics, pods in flight, and what is learned of owners."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.agent import Names
from nodewise_scorers.load import LoadAgentOptions
from nodewise_scorers.load.agent import PLACEMENTS, LoadAgent
from nodewise_scorers.load.bound_pods import OwnedPod
from nodewise_scorers.load.node_forecasts import PROFILES
from scorers_tests.unit.load import load_clusters
from scorers_tests.unit.load.load_clusters import LoadCluster, bound_pod, in_flight_milli, pod_body


def waiting_pod(name: str, cpu: str = "1", **more: Any) -> OwnedPod:
    return msgspec.json.decode(json.dumps(pod_body(name, cpu=cpu, **more)), type=OwnedPod)


def points(cluster: LoadCluster, at: float = 0.0, placement: Any = "projected") -> list[int]:
    """The scores of all nodes."""
    snapshot = cluster.snapshot(at)
    candidates = Names(snapshot.nodes, np.arange(len(snapshot.nodes)))
    scores = LoadAgent(LoadAgentOptions(load_placement=placement)).score(
        waiting_pod("web"), candidates, snapshot
    )
    assert scores is not None
    result: list[int] = scores.points.tolist()
    return result


def test_a_bound_pod_counts_until_the_window_of_the_statistics_began_after_its_start() -> None:
    cluster = LoadCluster("a", "b")
    cluster.measure({"a": 1.0, "b": 1.0})
    cluster.bind(bound_pod("old", "a", cpu="2", bound=3600, started=3590))
    assert in_flight_milli(cluster.state()) == [0, 0]
    cluster.bind(bound_pod("new", "a", bound=0))
    [estimate, _] = in_flight_milli(cluster.state())
    assert estimate > 0
    cluster.bind(bound_pod("new", "a", bound=0, started=-2))
    cluster.measure({"a": 1.0, "b": 1.0}, at=17)
    assert in_flight_milli(cluster.state(17)) == [pytest.approx(estimate / 2, abs=estimate / 10), 0]
    cluster.measure({"a": 2.0, "b": 1.0}, at=40)
    assert in_flight_milli(cluster.state(40)) == [0, 0]
    cluster.measure({"a": 2.0, "b": 1.0}, at=41)
    assert in_flight_milli(cluster.state(41)) == [0, 0]


def test_a_node_that_appears_after_its_statistics_counts_with_them() -> None:
    cluster = LoadCluster("a")
    cluster.measure({"a": 1.0, "busy": 9.0, "calm": 1.0})
    assert points(cluster) == [10]
    cluster.set_nodes("a", "busy", "calm")
    assert points(cluster, at=1) == [10, 0, 10]
    cluster.set_nodes("a", "calm")
    points(cluster, at=2)
    cluster.set_nodes("a", "calm", "busy")
    assert points(cluster, at=3) == [10, 10, 0]


def test_a_node_whose_capacity_is_known_after_its_statistics_counts_with_them() -> None:
    cluster = LoadCluster("a", "busy")
    cluster.set_capacity("busy", "0")
    cluster.measure({"a": 1.0, "busy": 9.0})
    cluster.state()
    cluster.set_capacity("busy", "10")
    assert points(cluster, at=1) == [10, 0]


def test_the_predicted_load_is_the_forecast_and_the_pods_in_flight() -> None:
    cluster = LoadCluster("a", "b")
    cluster.measure({"a": 2.0, "b": 5.0})
    before = cluster.state().predicted[0]
    assert before[:2].tolist() == pytest.approx([0.2, 0.5], abs=0.05)
    cluster.bind(bound_pod("p", "a", bound=0))
    after = cluster.state()
    assert after.predicted[0, 0] - before[0] == pytest.approx(after.in_flight[0, 0] / 10_000)
    assert after.predicted[0, 1] == before[1]


def test_the_estimate_is_the_usage_of_pods_of_the_same_deployment() -> None:
    cluster = LoadCluster("a", "b")
    cluster.measure({"a": 4.0, "b": 1.0})
    cluster.bind(bound_pod("busy-1", "a", bound=4000, started=3990, owner="ReplicaSet/busy-5d4f"))
    cluster.bind(bound_pod("calm-1", "b", bound=4000, started=3990, owner="ReplicaSet/calm-5d4f"))
    cluster.measure_pods({"busy-1": 3.0, "calm-1": 0.5})
    cluster.state()
    cluster.bind(bound_pod("busy-2", "a", bound=0, owner="ReplicaSet/busy-5d4f"))
    cluster.bind(bound_pod("calm-2", "b", bound=0, owner="ReplicaSet/calm-5d4f"))
    assert in_flight_milli(cluster.state()) == [3000, 500]
    cluster.bind(bound_pod("new", "b", bound=0, owner="Job/unknown"))
    assert in_flight_milli(cluster.state()) == [3000, 500 + 1750]


def test_the_estimate_is_never_above_the_limit() -> None:
    cluster = LoadCluster("a")
    cluster.measure({"a": 4.0})
    cluster.bind(bound_pod("busy-1", "a", bound=4000, started=3990, owner="Job/x"))
    cluster.measure_pods({"busy-1": 3.0})
    cluster.state()
    cluster.bind(bound_pod("busy-2", "a", bound=0, owner="Job/x", limit="1500m"))
    assert in_flight_milli(cluster.state()) == [1500]


def test_pressure_counts_only_on_a_busy_node() -> None:
    cluster = LoadCluster("calm", "busy")
    cluster.measure({"calm": 3.0, "busy": 9.0})
    before = cluster.state().predicted[0, :2]
    cluster.press({"calm": 0.5, "busy": 0.5})
    after = cluster.state().predicted[0, :2]
    assert after[0] == before[0]
    assert after[1] == pytest.approx(before[1] + 0.45)


def test_a_pod_that_never_starts_stops_to_count() -> None:
    cluster = LoadCluster("a")
    cluster.bind(bound_pod("stuck", "a", bound=0))
    for at in (0, 60, 600):
        cluster.measure({"a": 1.0}, at=at)
        assert in_flight_milli(cluster.state(at)) != [0]
    cluster.measure({"a": 1.0}, at=700)
    assert in_flight_milli(cluster.state(700)) == [0]


def test_pods_count_where_statistics_stop_and_not_forever() -> None:
    cluster = LoadCluster("a")
    cluster.measure({"a": 1.0})
    cluster.bind(bound_pod("p", "a", bound=0, started=-1))
    assert in_flight_milli(cluster.state(170)) != [0]
    state = cluster.state(400)
    assert str(state.predicted[0, 0]) == "nan"
    assert in_flight_milli(state) != [0]
    assert in_flight_milli(cluster.state(900)) == [0]


def test_a_node_that_returns_has_its_pods() -> None:
    cluster = LoadCluster("a", "b")
    cluster.bind(bound_pod("p", "b", cpu="2", bound=3600, started=3500))
    cluster.state()
    cluster.set_nodes("a")
    assert cluster.state().requested[0].tolist() == [0, 0]
    cluster.set_nodes("c", "b", "a")
    assert cluster.state().requested[0].tolist() == [0, 2000, 0, 0]
    cluster.delete("p")
    cluster.set_nodes("a")
    cluster.state()
    cluster.set_nodes("d", "a")
    assert cluster.state().requested[0].tolist() == [0, 0, 0]


def test_a_restart_of_nodewise_or_of_a_container_counts_no_pod_again() -> None:
    cluster = LoadCluster("a")
    cluster.bind(bound_pod("p", "a", bound=300, started=290))
    cluster.measure({"a": 1.0})
    cluster.state()
    cluster.bind(bound_pod("p", "a", bound=300, started=290, restarts=1))
    assert in_flight_milli(cluster.state(1)) == [0]
    cluster.restart()
    assert in_flight_milli(cluster.state(2)) == [0]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_node_without_capacity_affects_no_other_node(placement: str) -> None:
    cluster = LoadCluster("busy", "calm", "empty")
    cluster.measure({"busy": 8.0, "calm": 1.0})
    expected = points(cluster, placement=placement)
    assert max(expected) > 0
    cluster.nodes["", "empty"] = load_clusters.node("empty", cpu="0", memory="0")
    cluster.restart()
    cluster.measure({"busy": 8.0, "calm": 1.0, "empty": 1.0})
    assert points(cluster, placement=placement) == expected


def test_a_node_without_statistics_of_memory_is_not_preferred_for_that() -> None:
    cluster = LoadCluster("full", "free", "unknown")
    cluster.measure(dict.fromkeys(("full", "free", "unknown"), 1.0), full=9.0, free=1.0)
    assert points(cluster) == [0, 10, 0]
    cluster.measure({"full": 1.0, "free": 1.0, "unknown": 1.0}, other=1.0)
    assert points(cluster) == [10, 10, 10]


def test_a_pod_that_was_just_prioritized_counts_for_five_seconds_after_a_quiet_period() -> None:
    cluster = LoadCluster("a", "b")
    cluster.measure({"a": 1.0, "b": 1.0}, at=0)
    cluster.state(0)
    cluster.builder.count_prioritized(waiting_pod("web"), np.array([0]))
    for at, counted in ((60, True), (64, True), (66, False)):
        state = cluster.state(at)
        assert (state.bound.prioritized.amounts[0, state.numbers[0]] > 0) == counted
        assert (state.projected.requested[state.numbers[0]] > 0) == counted


def test_a_prioritized_pod_counts_as_much_as_the_formula_says() -> None:
    cluster = LoadCluster("a", "b", estimate=PLACEMENTS["target-load-packing"].estimate)
    cluster.measure({"a": 1.0, "b": 1.0})
    cluster.state()
    cluster.builder.count_prioritized(waiting_pod("web", cpu="2"), np.array([0]))
    state = cluster.state(1)
    assert state.bound.prioritized.amounts[0, state.numbers[0]] == 3000


def test_requests_during_a_state_update_count_in_the_new_state() -> None:
    cluster = LoadCluster("a", "b")
    cluster.measure({"a": 1.0, "b": 1.0})
    cluster.state()
    for number in range(20):
        cluster.builder.count_prioritized(waiting_pod(f"web-{number}"), np.array([0]))
    build = cluster.builder.build(cluster.cluster_state(1))
    try:
        while True:
            next(build)
            cluster.builder.count_prioritized(waiting_pod("web-19"), np.array([1]))
    except StopIteration as end:
        state = end.value
    assert state.projected.requested[state.numbers[:2]] == pytest.approx([19, 1])


def test_the_profiles_of_pods_are_known_also_after_all_pods_are_read_again() -> None:
    cluster = LoadCluster("a")
    cluster.bind(bound_pod("p", "a", cpu="4", bound=4000, started=3990, owner="Job/x"))
    for minute in range(30):
        used = 2.0 + minute % 2
        cluster.measure({"a": used}, at=60 * minute)
        cluster.measure_pods({"p": used}, at=60 * minute)
        cluster.state(60 * minute)
    cluster.builder._forecasts[0].methods[:] = PROFILES
    before = cluster.state(1741).predicted[0, 0]
    assert before > 0.32
    cluster.read_again()
    assert cluster.state(1742).predicted[0, 0] == pytest.approx(before)
