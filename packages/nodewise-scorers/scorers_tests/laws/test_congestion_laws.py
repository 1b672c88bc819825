"""Laws of scores from congestion factors."""

from hypothesis import given
from hypothesis import strategies as st

from nodewise_scorers.congestion import CongestionOptions
from scorers_tests.unit.congestion.test_agent import scores

FACTORS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 200)
MOST = st.integers(1, 2**63 - 1) | st.integers(1, 200)


@given(FACTORS, FACTORS, MOST)
def test_a_score_never_rises_with_the_load(first: int, other: int, most: int) -> None:
    low, high = sorted((first, other))
    scores_by_node = scores(
        {"low": str(low), "high": str(high)}, CongestionOptions(congestion_factor_max=most)
    )
    assert 0 <= scores_by_node["high"] <= scores_by_node["low"] <= 10


@given(st.lists(st.none() | st.text(max_size=30), min_size=1, max_size=5), st.none() | st.integers(0, 10))
def test_whatever_stands_in_an_annotation_the_score_is_one(
    texts: list[str | None], missing: int | None
) -> None:
    factors = {f"n{number}": text for number, text in enumerate(texts)}
    assert all(0 <= s <= 10 for s in scores(factors, CongestionOptions(score_missing=missing)).values())
