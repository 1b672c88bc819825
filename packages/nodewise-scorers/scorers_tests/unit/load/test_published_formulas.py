"""Examples of the published formulas, from the tests and documentation of their sources.

scheduler-plugins v0.34.7 pkg/trimaran, koordinator v1.8.0 pkg/scheduler/plugins/loadaware, volcano v1.15.1
pkg/scheduler/plugins/usage.
"""

import math

import numpy as np
import pytest

from nodewise_scorers.load import published_formulas as formulas
from nodewise_scorers.load.published_formulas import Commitment, PowerModel


def one(value: float) -> np.ndarray:
    return np.array([value], np.float64)


@pytest.mark.parametrize(
    ("request_milli", "limit_milli", "used_pct", "score"),
    [
        # targetloadpacking_test.go TestTargetLoadPackingScoring; the pods have no containers, which use nothing
        pytest.param(None, None, 0, 40, id="new node"),
        pytest.param(None, None, 50, 33, id="hot node"),
        pytest.param(0, 1000, 30, 0, id="excess utilization returns min score"),
    ],
)
def test_target_load_packing_scores_as_in_its_tests(request_milli, limit_milli, used_pct, score) -> None:
    pod = 0.0 if limit_milli is None else formulas.trimaran_pod_usage(request_milli, limit_milli)
    with_pod_pct = used_pct + 100 * pod / 1000  # the node has one core
    assert formulas.target_load_packing(one(with_pod_pct)).tolist() == [score]


@pytest.mark.parametrize(
    ("request_milli", "limit_milli", "usage"),
    [(0, 0, 1000), (100, 0, 150), (100, 700, 700), (333, 0, 500)],  # PredictUtilisation and defaults.go
)
def test_trimaran_estimates_a_container(request_milli, limit_milli, usage) -> None:
    assert formulas.trimaran_pod_usage(request_milli, limit_milli) == usage


@pytest.mark.parametrize(
    ("margin", "sensitivity", "mean", "deviation", "score"),
    [
        # loadvariationriskbalancing/analysis_test.go TestComputeScore; capacity 100, request 10
        pytest.param(1, 1, 40, 36, 57, id="valid data"),
        pytest.param(1, 2, 0, 36, 65, id="negative usedAvg, which its caller replaces by 0"),
        pytest.param(1, 2, 100, 36, 20, id="large usedAvg, likewise by the capacity"),
        pytest.param(1, 2, 40, -36, 75, id="negative usedStdev"),
        pytest.param(1, 2, 40, 120, 25, id="large usedStdev"),
        pytest.param(-1, 1, 40, 36, 75, id="negative margin"),
        pytest.param(1, -1, 40, 36, 57, id="negative sensitivity"),
        pytest.param(1, 0, 40, 36, 75, id="zero sensitivity"),
    ],
)
def test_load_variation_risk_balancing_scores_as_in_its_tests(
    margin, sensitivity, mean, deviation, score
) -> None:
    scores = formulas.load_variation_risk_balancing(
        one((mean + 10) / 100), one(deviation / 100), margin, sensitivity
    )
    assert scores.tolist() == [score]


@pytest.mark.parametrize(
    ("before", "pod", "capacity", "mean", "risk"),
    [
        # lowriskovercommitment_test.go TestLowRiskOverCommitment_computeRisk: requests and limits without the pod,
        # those of the pod; all deviations are 0
        pytest.param((1000, 2000), (1000, 1000), 4000, 0.8, 0.5, id="test-cpu-1"),
        pytest.param((0, 0), (2048, 6144), 4096, 0.25, 0.25, id="test-mem-1"),
        pytest.param((3000, 4000), (1000, 1000), 4000, 0.8, 1.0, id="test-cpu-2"),
        pytest.param((512, 6144), (512, 1024), 4096, 0.25, 0.75, id="test-mem-2"),
    ],
)
def test_low_risk_over_commitment_has_the_risk_of_its_tests(before, pod, capacity, mean, risk) -> None:
    pytest.importorskip("scipy")
    nodes = Commitment(one(before[0]), one(before[1]), one(capacity))
    assert formulas.over_commitment_risk(nodes, pod, one(mean), one(0)).tolist() == [risk]
    assert formulas.low_risk_over_commitment(nodes, pod, one(mean), one(0)).tolist() == [100 * (1 - risk)]


def test_low_risk_over_commitment_uses_the_beta_distribution_of_the_load() -> None:
    """A mean of 0.5 and a deviation of sqrt(1/12) after smoothing is the uniform distribution."""
    pytest.importorskip("scipy")
    deviation = one(math.sqrt(1 / 12) / math.sqrt(5))
    nodes = Commitment(one(4.0), one(20.0), one(16.0))
    # the pod adds nothing: limits exceed the capacity by 4 of 16, and 4 of 16 cores are requested
    risk = formulas.over_commitment_risk(nodes, (0, 0), one(0.5), deviation)
    assert risk.tolist() == [pytest.approx(0.5 * 4 / 16 + 0.5 * 0.75)]
    limited = nodes._replace(limits=one(8.0))  # usage stays below 8: 0.25 of 0.5
    assert formulas.over_commitment_risk(limited, (0, 0), one(0.5), deviation).tolist() == [
        pytest.approx(0.25)
    ]


def test_peaks_prefers_the_smallest_increase_of_power() -> None:
    """peaks_test.go: Power = K0 + K1 * e^(K2 * x), normalized so that the smallest cost scores 100."""
    used = np.array([0.0, 30.0, 60.0, 95.0])
    scores = formulas.peaks(used, used + 10).tolist()
    assert scores == sorted(scores)
    assert scores[-1] == 100, "a node that would exceed 100 % costs nothing"
    assert scores[0] == 1, "100 less the truncated cost"
    assert formulas.peaks(used, used + 10, PowerModel(0, 0)).tolist() == [0, 0, 0, 0], "the default model"


@pytest.mark.parametrize(
    ("used", "score"),
    [
        # load_aware_test.go TestScore, node of 96 cores and 512Gi, pod of 16 cores and 32Gi
        pytest.param((0, 0), 90, id="score empty node"),
        pytest.param((32, 10), 72, id="score load node"),
    ],
)
def test_koordinator_scores_as_in_its_tests(used, score) -> None:
    cpu = formulas.koordinator_load_aware(one(used[0] + 16 * 0.85), one(96))
    memory = formulas.koordinator_load_aware(one(used[1] + 32 * 0.70), one(512))
    assert (cpu + memory).tolist()[0] // 2 == score


@pytest.mark.parametrize(
    ("request_milli", "limit_milli", "factor_pct", "usage"),
    [
        # estimator/default_estimator_test.go
        pytest.param(0, 0, 85, 250, id="estimate empty pod"),
        pytest.param(4000, 4000, 85, 3400, id="estimate guaranteed pod"),
        pytest.param(4000, 8000, 85, 6800, id="estimate burstable pod"),
        pytest.param(4000, 4000, 110, 4000, id="estimate guaranteed pod and zoomed cpu factors"),
        pytest.param(4000, 0, 80, 3200, id="estimate pod only has request"),
    ],
)
def test_koordinator_estimates_a_pod(request_milli, limit_milli, factor_pct, usage) -> None:
    assert formulas.koordinator_pod_usage(request_milli, limit_milli, factor_pct) == usage


def test_koordinator_gives_nothing_to_a_full_node() -> None:
    assert formulas.koordinator_load_aware(np.array([16.0, 16.1]), np.array([16.0, 16.0])).tolist() == [0, 0]


def test_volcano_scores_as_in_its_tests() -> None:
    """usage_test.go TestUsage_nodeOrderFn: nodes n1 to n3 with the default weights."""
    cpu, memory = np.array([30.0, 60.0, 60.0]), np.array([50.0, 50.0, 80.0])
    assert formulas.volcano_usage(np.stack([cpu, memory])).tolist() == pytest.approx([300, 225, 150])
