"""Parsing quantities, and dividing and adding amounts (cases 150 to 153)."""

from typing import Any

import pytest

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.extended_resource_amounts import LARGEST, Amounts

EXACT = {
    "500M": 500_000_000,
    "1Gi": 2**30,
    "1536Mi": 1536 * 2**20,
    "1e3": 1000,
    "1k": 1000,
    "1E": 10**18,
    "1Ei": 2**60,
    "9223372036854775807": LARGEST,
    "0": 0,
    "2000m": 2,
    "1.0": 1,
    7: 7,
    2.0: 2,
}


@pytest.mark.parametrize(("value", "amount"), EXACT.items(), ids=map(str, EXACT))
def test_whole_quantities_are_read_exactly(value: Any, amount: int) -> None:
    assert extended_resource_amounts.parse_amount(value) == amount


ODD = ["1500m", "0.5", 0.5, "-1", -1, "9223372036854775808", "1e30", 2**63, 1e300, float("nan"), float("inf")]


@pytest.mark.parametrize(
    "value", [*ODD, "", "many", "1 Gi", "0x10", None, True, [], {}, "9" * 5000], ids=repr
)
def test_anything_else_is_no_amount(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a whole number from 0 to 9223372036854775807") as caught:
        extended_resource_amounts.parse_amount(value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("gpus", "each"), [(1, {"a": 5, "b": 4}), (2, {"a": 2, "b": 2}), (5, {"a": 1, "b": 0})], ids=str
)
def test_remainder_belongs_to_no_gpu(gpus: int, each: dict[str, int]) -> None:
    assert extended_resource_amounts.divide_amounts({"a": 5, "b": 4}, gpus) == each


def test_sums_go_up_to_the_largest_amount() -> None:
    expected = {"a": LARGEST, "b": 1}
    assert extended_resource_amounts.sum_amounts([{"a": 2}, {"a": LARGEST - 2, "b": 1}]) == expected


def test_a_sum_above_the_largest_amount_is_an_overflow_that_names_the_resource() -> None:
    with pytest.raises(OverflowError, match=r"^a$"):
        extended_resource_amounts.sum_amounts([{"b": 1, "a": 2}, {"a": LARGEST - 2}, {"a": 1}])


def test_equal_amounts_are_one_key() -> None:
    assert len({Amounts({"a": 1, "b": 2}), Amounts({"b": 2, "a": 1}), Amounts({"a": 1})}) == 2
