"""Rows 141 to 172 and 244 to 247 of the older system's cases: objectives of each node, and scores."""

import json

import numpy as np
import pytest

from nodewise.agent import ScorePlugin, StateExporter
from nodewise.base import cooperative_scheduling
from nodewise_scorers.pigeon import placement_objectives
from scorers_tests.unit.pigeon.cluster_notation import N3, P1, PigeonCluster, pod

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "stretched", "absolute"),
    [
        pytest.param([0.0, 0.5, 1.0], [10, 6, 1], [10, 5, 0], id="far apart; halves are rounded up"),
        pytest.param([0.30, 0.301], [10, 1], [7, 7], id="hardly different"),
        pytest.param([0.3, 0.3 + 1e-12], [10, 10], [7, 7], id="the same but for rounding"),
        pytest.param([NAN, 0.2], [0, 10], [0, 8], id="one that fits"),
        pytest.param([NAN, NAN], [0, 0], [0, 0], id="none that fits"),
        pytest.param([-0.457738, 7.0], [10, 1], [10, 0], id="values below 0 and above 1"),
        pytest.param([1e15, 1e15 + 1], [10, 10], [0, 0], id="large ones, the same but for rounding"),
        pytest.param([], [], [], id="no candidates"),
    ],
)
def test_values_become_scores(values: list[float], stretched: list[int], absolute: list[int]) -> None:
    objectives = np.array(values, float)
    assert placement_objectives.stretch(objectives).tolist() == stretched
    assert placement_objectives.scale_absolute(objectives).tolist() == absolute


def test_absolute_scores_where_asked_for() -> None:
    cluster = PigeonCluster(N3, policy_objective="LOAD_BALANCE", pigeon_scaling="absolute")
    assert cluster.score().scores == [8, 8, 7]


def test_the_exported_state_has_the_statistics_of_requests_and_nodes() -> None:
    cluster = PigeonCluster(N3)
    for uid, requests in enumerate([P1, "1500m,3Gi"]):
        cluster.prioritize(pod(requests, uid=f"u{uid}"))
    output = json.loads(
        cooperative_scheduling.run_without_pauses(
            cluster.agent.export(cluster.snapshot.agent_states["pigeon"], {})
        )
    )
    assert output["resources"] == {
        "cpu": {"unit": "milli", "node_mean": 4000, "pod_mean": 1000, "pod_deviation": 500},
        "memory": {"unit": "MiB", "node_mean": 8192, "pod_mean": 2048, "pod_deviation": 1024},
    }
    assert (output["objective"], output["pods"]) == ("A_BINPACK", 2)
    assert output["demand_variability"] == pytest.approx(0.5)


def test_the_older_systems_name_of_the_scores() -> None:
    agent = PigeonCluster(N3).agent
    assert isinstance(agent, ScorePlugin)
    assert isinstance(agent, StateExporter)
    assert agent.predicates == {}
    assert list(agent.priorities) == ["pigeon-holing"]
