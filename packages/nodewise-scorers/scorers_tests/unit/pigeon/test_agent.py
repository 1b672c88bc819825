"""Rows 141 to 172 and 244 to 247 of the older system's cases: objectives of each node, and scores."""

import json
from typing import Any

import numpy as np
import pytest

from nodewise.agent import ScorePlugin, StateExporter
from nodewise.base import cooperative_scheduling
from nodewise_scorers.pigeon import placement_objectives
from scorers_tests.unit.pigeon.cluster_notation import N3, P1, PigeonCluster, close, pod

NAN = float("nan")
H3 = "h1(4,8Gi,10;1000,2Gi,2) h2(8,64Gi,20;2000,4Gi,10) h3(16,16Gi,110;3000,6Gi,0)"
BIG = "n1(64,256Gi;1000,2Gi) n2(64,256Gi;20000,40Gi) n3(64,256Gi;3000,6Gi)"
SAME = " ".join(f"n{number}(3,7Gi;700,1395864371)" for number in range(7))

CASES: dict[str, tuple[str, dict[str, Any], str, list[float], list[int]]] = {
    "141 balance": (N3, {"policy_objective": "LOAD_BALANCE"}, P1, [0.155902, 0.212459, 0.256851], [10, 5, 1]),
    "142 consolidate": (N3, {"policy_objective": "CONSOLIDATE"}, P1, [0.679998, 0.579837, 0.475664], [1, 5, 10]),
    "143 fit": (N3, {}, P1, [0.287820, 0.392232, 0.474186], [10, 5, 1]),
    "147 one resource": (
        N3, {"policy_objective": "LOAD_BALANCE", "num_resources": 1}, P1, [0.155902, 0.212459, 0.256851], [10, 5, 1],
    ),
    "149 equal nodes": (
        "a(4,8Gi;1000,1Gi) b(4,8Gi;1000,1Gi)", {"policy_objective": "LOAD_BALANCE"}, P1, [0.0625, 0.0625], [10, 10],
    ),
    "150 fits nowhere": (
        "a(4,8Gi;1000,1Gi) b(4,8Gi;1000,1Gi)", {"policy_objective": "LOAD_BALANCE"}, "8", [NAN, NAN], [0, 0],
    ),
    "151 a full node": (
        "a(4,8Gi;3900,1Gi) b(4,8Gi;1000,1Gi) c(4,8Gi;500,1Gi)",
        {"policy_objective": "LOAD_BALANCE"}, P1, [NAN, 0.356682, 0.341768], [0, 1, 10],
    ),
    "152 no annotations": (
        "a(4,8Gi) b(4,8Gi;1000,1Gi)", {"policy_objective": "LOAD_BALANCE"}, P1, [0.0625, 0.1875], [10, 1],
    ),
    "153 best effort": (
        "a(4,8Gi;3995,0) b(4,8Gi;1000,0)", {"policy_objective": "LOAD_BALANCE"}, "", [NAN, 0.373125], [0, 10],
    ),
    "159 consolidate, one used": (
        "n1(4,8Gi;2000,0) n2(4,8Gi;0,0) n3(4,8Gi;0,0)",
        {"policy_objective": "CONSOLIDATE"}, P1, [0.128792, 0.342800, 0.342800], [10, 1, 1],
    ),
    "160 consolidate, all empty": (
        "n1(4,8Gi) n2(4,8Gi) n3(4,8Gi)", {"policy_objective": "CONSOLIDATE"}, P1, [0.181961] * 3, [10, 10, 10],
    ),
    "165 three resources": (H3, {"num_resources": 3}, P1, [0.245125, 0.227672, 0.073370], [1, 2, 10]),
    "171 with other pods: gpu over-committed": (
        "a(4,8Gi,110,1;1000,1Gi,0,2) b(4,8Gi,110,1;1000,1Gi,0,1)",
        {"policy_objective": "LOAD_BALANCE", "num_resources": 4}, P1, [NAN, 0.0625], [0, 10],
    ),
    "245 balance": (SAME, {"policy_objective": "LOAD_BALANCE"}, P1, [0.058321] * 7, [10] * 7),
    "245 consolidate": (SAME, {"policy_objective": "CONSOLIDATE"}, P1, [0.887609] * 7, [10] * 7),
    "245 fit": (SAME, {}, P1, [0.232965] * 7, [10] * 7),
    "247 fit": (BIG, {}, "8,64Gi", [0.557221, 1.199946, 0.655269], [10, 1, 9]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_first_pod(name: str) -> None:
    node_texts, options, pod_text, objectives, scores = CASES[name]
    result = PigeonCluster(node_texts, **options).prioritize(pod_text)
    assert close(result.objectives, objectives, 2e-6)
    assert result.scores == scores


SEQUENCES: dict[str, tuple[str, dict[str, Any], list[tuple[str, float, list[float], list[int]]]]] = {
    "144, 145": (N3, {}, [
        (P1, 0, [0.287820, 0.392232, 0.474186], [10, 5, 1]),
        ("2,512Mi", 0.522936, [0.345699, 0.107267, NAN], [1, 10, 0]),
        ("100m,128Mi", 0.868665, [0.482135, 0.465432, 0.449394], [1, 6, 10]),
    ]),
    "166, 167": (H3, {"num_resources": 3}, [
        (P1, 0, [0.245125, 0.227672, 0.073370], [1, 2, 10]),
        ("2,512Mi", 0.553508, [0.136860, 0.226254, 0.495872], [10, 8, 1]),
        ("100m,128Mi", 0.866705, [0.672817, 0.664906, 0.729501], [9, 10, 1]),
    ]),
    "168": (H3, {"num_resources": 1}, [
        (P1, 0, [0.287820, 0.204124, 0.061488], [1, 4, 10]),
        ("2,512Mi", 0.6, [0.035950, 0.167951, 0.491214], [10, 7, 1]),
        ("100m,128Mi", 0.943680, [0.788737, 0.803073, 0.829015], [10, 7, 1]),
    ]),
    "245": (SAME, {}, [(P1, 0, [0.232965] * 7, [10] * 7), ("1", 0.232171, [0.057757] * 7, [10] * 7)]),
    "246": (H3.split(" h3", maxsplit=1)[0], {}, [
        (P1, 0, [0.369128, 0.050086], [1, 10]),
        (P1, 0, [0.369128, 0.050086], [1, 10]),
        ("2,4Gi", 0.707107, [0.069460, 0.507107], [10, 1]),
    ]),
    "247": (BIG, {}, [
        ("8,64Gi", 0, [0.557221, 1.199946, 0.655269], [10, 1, 9]),
        ("1,1Gi", 0.924289, [0.073829, 0.153670, 0.082532], [10, 1, 9]),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_pods_one_after_another(name: str) -> None:
    node_texts, options, steps = SEQUENCES[name]
    cluster = PigeonCluster(node_texts, **options)
    for pod_text, variability, objectives, scores in steps:
        result = cluster.prioritize(pod_text)
        assert result.demand_variability is not None
        assert close(result.demand_variability, variability, 5e-6)
        assert close(result.objectives, objectives, 5e-4 if variability == 0 else 2e-6)
        assert result.scores == scores


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
