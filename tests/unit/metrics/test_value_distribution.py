"""The distribution of a metric over nodes, and proposed thresholds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import quantity
from nodewise.metrics.aggregation import Direction, ValueDistribution, distribution_of

DIRECTIONS: tuple[Direction, ...] = ("above", "below")


def distribution(*values: float) -> ValueDistribution:
    return distribution_of({f"n{at}": quantity.parse(str(value)) for at, value in enumerate(values)}, ())


def test_percentiles_are_values() -> None:
    ten = distribution(*range(10, 0, -1))
    assert [ten.percentile(percent) // quantity.NANO for percent in (0, 50, 90, 91, 100)] == [1, 5, 9, 10, 10]


def test_nodes_beyond_a_threshold_come_with_the_most_extreme_first() -> None:
    some = distribution(3, 9, 5, 9)
    assert some.beyond("above", 3 * quantity.NANO) == ["n1", "n3", "n2"]
    assert some.beyond("below", 9 * quantity.NANO) == ["n0", "n2"]


@pytest.mark.parametrize(
    ("values", "direction", "proposed"),
    [
        ([*range(1, 101)], "above", "90"),
        ([*range(1, 101)], "below", "11"),
        ([0] * 95 + [7] * 5, "above", "0"),
        ([41.2, 42.7, 43.1], "above", "44"),
        ([0.123, 0.456, 0.4561], "above", "0.46"),
        ([12345678], "above", "13000000"),
        ([12345678], "below", "12000000"),
        ([-0.5, -0.123], "above", "-0.12"),
    ],
)
def test_proposals_are_round(values: list[float], direction: Direction, proposed: str) -> None:
    assert quantity.nano_to_text(distribution(*values).propose_threshold(direction)) == proposed


@given(st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=60), st.sampled_from(DIRECTIONS))
def test_a_proposal_rejects_at_most_a_tenth_of_the_nodes(values: list[int], direction: Direction) -> None:
    some = distribution_of({f"n{at}": value for at, value in enumerate(values)}, ())
    assert len(some.beyond(direction, some.propose_threshold(direction))) * 10 <= len(values)
