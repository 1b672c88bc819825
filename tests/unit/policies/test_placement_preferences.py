"""Preferences with weights: the weighted mean of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.policies import rule_evaluation
from nodewise.policies.agent import TelemetryAgent
from tests.unit.policies.placement_policy_cluster import ALL, Cluster, pod, policy_object
from tests.unit.policies.policy_snapshot_builders import candidates, metrics_snapshot, policy, rule, series

POWER = {"metric": "power", "order": "Ascending"}
FREE = {"metric": "free", "order": "Descending"}
VALUES = metrics_snapshot(series("power", n1=10, n2=20, n3=30), series("free", n1=1, n2=5, n3=9))


def preferring(name: str, *prefer: dict[str, object], namespace: str = "d") -> object:
    scope = {} if namespace else {"namespaceSelector": ALL}
    return policy_object(name, namespace, "1", {"podSelector": ALL, "prefer": prefer} | scope)


@pytest.mark.parametrize(
    ("prefer", "expected"),
    [
        pytest.param([POWER], {"n1": 10, "n2": 9, "n3": 8}, id="one"),
        pytest.param([FREE], {"n1": 8, "n2": 9, "n3": 10}, id="descending"),
        pytest.param([POWER, FREE], {"n1": 10, "n2": 10, "n3": 10}, id="opposite ones with equal weights"),
        pytest.param([POWER | {"weight": 2}, FREE], {"n1": 10, "n2": 9, "n3": 8}, id="a larger weight"),
        pytest.param([POWER, FREE | {"weight": 100}], {"n1": 8, "n2": 9, "n3": 10}, id="the largest weight"),
    ],
)
def test_weights(prefer: list[dict[str, object]], expected: dict[str, int]) -> None:
    assert Cluster(preferring("p", *prefer), values=VALUES).scores(pod()) == expected
    several = [preferring(f"p{number}", each) for number, each in enumerate(prefer)]
    assert Cluster(*several, values=VALUES).scores(pod()) == expected, "weights apply across policies"
    wide = [preferring(f"p{number}", each, namespace="") for number, each in enumerate(prefer)]
    assert Cluster(*wide, values=VALUES).scores(pod()) == expected


def test_a_missing_value_counts_as_the_worst_place() -> None:
    values = metrics_snapshot(series("power", n1=10, n2=20, n3=30), series("free", n3=9))
    assert Cluster(preferring("p", POWER, FREE), values=values).scores(pod()) == {"n1": 10, "n2": 8, "n3": 10}
    values = metrics_snapshot(series("power", n1=10, n2=20), series("free", n1=9))
    assert Cluster(preferring("p", POWER, FREE), values=values).scores(pod()) == {"n1": 10, "n2": 9, "n3": 0}


def test_a_preference_that_cannot_be_used_is_left_out() -> None:
    beyond = POWER | {"metric": "secret", "weight": 100}
    cluster = Cluster(preferring("p", beyond, FREE), values=VALUES, allowed_metrics="free|power")
    assert cluster.scores(pod()) == {"n1": 8, "n2": 9, "n3": 10}


def test_the_evidence_of_each_preference_has_its_policy_and_weight() -> None:
    named = policy("named", scheduleonmetric=[rule("free", "GreaterThan"), rule("power", "LessThan")])
    cluster = Cluster(named, preferring("p", POWER | {"weight": 3}), values=VALUES)
    of = pod({"telemetry-policy": "named"})
    scored = TelemetryAgent().score(of, candidates(cluster.snapshot, "n1 n2"), cluster.snapshot)
    assert scored is not None
    assert [
        (each.policy, each.metric, each.operator, each.target, each.weight) for each in scored.evidence
    ] == [
        ("telemetry policy d/named", "free", "GreaterThan", None, 1.0),
        ("placement policy d/p", "power", "below", None, 3.0),
    ]


def mean_place(ranks: list[list[int]], weights: list[int], candidate: int) -> float | None:
    """The definition, for one candidate."""
    if all(each[candidate] < 0 for each in ranks):
        return None
    total = 0.0
    for each, weight in zip(ranks, weights, strict=True):
        measured = [rank for rank in each if rank >= 0]
        better = sum(rank < each[candidate] for rank in measured)
        place = better / max(len(measured) - 1, 1) if each[candidate] >= 0 else 1.0
        total += weight * place
    return total / sum(weights)


@given(st.integers(1, 12).flatmap(lambda size: st.lists(
    st.tuples(st.lists(st.integers(-1, 4), min_size=size, max_size=size), st.integers(1, 100)),
    min_size=2, max_size=4,
)))  # fmt: skip
def test_combined_ranks_order_candidates_by_their_mean(preferences: list[tuple[list[int], int]]) -> None:
    ranks, weights = [each for each, _ in preferences], [weight for _, weight in preferences]
    combined = rule_evaluation.combine_ranks([np.array(each) for each in ranks], weights).tolist()
    means = [mean_place(ranks, weights, candidate) for candidate in range(len(combined))]
    for rank, mean in zip(combined, means, strict=True):
        assert (rank < 0) == (mean is None)
    ordered = sorted({round(mean, 9) for mean in means if mean is not None})
    assert combined == [-1 if mean is None else ordered.index(round(mean, 9)) for mean in means]


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=20))
def test_one_preference_is_not_changed(ranks: list[int]) -> None:
    alone = np.array(ranks)
    twice = rule_evaluation.combine_ranks([alone, alone], [1, 3])
    assert (
        rule_evaluation.scores_from_ranks(twice).tolist() == rule_evaluation.scores_from_ranks(alone).tolist()
    )
