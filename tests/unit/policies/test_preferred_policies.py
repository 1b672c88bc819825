"""Policies with `enforcement: Preferred`: their rejections lower scores and filter nothing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.policies import rule_evaluation
from nodewise.policies.agent import TelemetryAgent
from tests.unit.policies.placement_policy_cluster import ALL, BUSY, HOT, Cluster, pod, policy_object
from tests.unit.policies.policy_snapshot_builders import candidates, metrics_snapshot, series

RANK = {"metric": "power", "order": "Ascending"}
VALUES = metrics_snapshot(
    series("heat", n1=90, n2=50, n3=50),
    series("load", n1="0.5", n2="0.5", n3="0.25"),
    series("power", n1=10, n2=20, n3=30),
)


def preferred(*avoid: dict[str, Any], name: str = "p", **more: Any) -> Any:
    return policy_object(
        name, "d", "1", {"podSelector": ALL, "avoid": avoid, "enforcement": "Preferred"} | more
    )


def cluster_of(*policies: Any) -> Cluster:
    return Cluster(*policies, values=VALUES)


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        pytest.param([preferred(HOT)], {"n1": 0, "n2": 10, "n3": 10}, id="accepted nodes first"),
        pytest.param(
            [preferred(HOT, prefer=[RANK])],
            {"n1": 0, "n2": 10, "n3": 9},
            id="then by preferences, of these nodes",
        ),
        pytest.param(
            [preferred(HOT), preferred(BUSY, name="q")],
            {"n1": 0, "n2": 0, "n3": 10},
            id="the fewest rejections first",
        ),
        pytest.param(
            [preferred(HOT | {"above": 10})], {"n1": 10, "n2": 10, "n3": 10}, id="all rejected: no effect"
        ),
        pytest.param(
            [preferred(HOT | {"metric": "absent"}, prefer=[RANK])],
            {"n1": 10, "n2": 9, "n3": 8},
            id="cannot be evaluated: no effect",
        ),
        pytest.param(
            [preferred(HOT, prefer=[RANK | {"metric": "absent"}])],
            {"n1": 0, "n2": 10, "n3": 10},
            id="a preference without values",
        ),
        pytest.param(
            [preferred({"metric": "heat", "over": 5})],
            {"n1": 10, "n2": 10, "n3": 10},
            id="an invalid rule: no effect",
        ),
    ],
)
def test_scores(policies: list[Any], expected: dict[str, int]) -> None:
    cluster = cluster_of(*policies)
    assert cluster.rejected(pod()) is None
    assert cluster.scores(pod()) == expected


def test_an_accepted_node_without_a_value_of_a_preference_comes_before_rejected_ones() -> None:
    values = metrics_snapshot(series("heat", n1=90, n2=50, n3=50), series("power", n1=10, n2=20))
    cluster = Cluster(preferred(HOT, prefer=[RANK]), values=values)
    assert cluster.scores(pod()) == {"n1": 0, "n2": 10, "n3": 1}


def test_another_policy_still_filters() -> None:
    required = policy_object("r", "d", "1", {"podSelector": ALL, "avoid": [BUSY], "enforcement": "Required"})
    cluster = cluster_of(required, preferred(HOT))
    assert set(cluster.rejected(pod()) or ()) == {"n1", "n2"}


def test_the_evidence_has_the_rules() -> None:
    cluster = cluster_of(preferred(HOT, prefer=[RANK]))
    scored = TelemetryAgent().score(pod(), candidates(cluster.snapshot, "n1 n2"), cluster.snapshot)
    assert scored is not None
    expected = [("power", "below", None), ("heat", "above", 80 * 10**9)]
    assert [(each.metric, each.operator, each.target) for each in scored.evidence] == expected


@given(st.integers(0, 6).flatmap(lambda size: st.tuples(
    st.one_of(st.none(), st.lists(st.integers(-1, 3), min_size=size, max_size=size)),
    st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=1, max_size=3),
)))  # fmt: skip
def test_fewer_rejections_come_first_and_preferences_decide_among_equals(
    case: tuple[list[int] | None, list[list[bool]]],
) -> None:
    ranks, rejections = case
    scores = rule_evaluation.scores_of_avoided(
        None if ranks is None else np.array(ranks, np.int64),
        [np.array(each, np.bool_) for each in rejections],
    ).tolist()
    counts = [sum(each) for each in zip(*rejections, strict=True)]
    for own, (count, score) in enumerate(zip(counts, scores, strict=True)):
        assert (score == 0) == (count > min(counts))
        for other in range(own):
            if count == counts[other] == min(counts) and ranks is not None and 0 <= ranks[own] < ranks[other]:
                assert score >= scores[other]
