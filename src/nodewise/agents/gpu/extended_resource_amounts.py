"""Amounts of extended resources: whole numbers, as Kubernetes allocates them.

GPU Aware Scheduling read every quantity that does not convert to an int64 as 0, so a pod with `1500m` fit everywhere.
Here an amount is either exact or an error.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from nodewise.base import quantity
from nodewise.base.errors import shown

LARGEST: Final = 2**63 - 1
"""Amounts are summed in arrays of int64."""

EXPECTED: Final = f"a whole number from 0 to {LARGEST}"


class Amounts(Mapping[str, int]):
    """Amounts by the full name of the resource. Immutable and hashable.

    The hash is that of a text. Hashes of numbers are known, and 2**61 - 1 more has the same one, so that a tenant could
    choose requests that make dictionaries slow.
    """

    __slots__ = ("_amounts", "_hash")

    def __init__(self, amounts: Mapping[str, int]) -> None:
        self._amounts: Final = dict(amounts)
        self._hash: Final = hash(str(sorted(self._amounts.items())))

    def __getitem__(self, resource: str) -> int:
        return self._amounts[resource]

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Amounts({self._amounts})"


NONE: Final = Amounts({})


def parse_amount(value: Any) -> int:
    """Parse a quantity. The ValueError contains the value found and the expected form."""
    amount = _parse_whole_number(value)
    if amount is None or not 0 <= amount <= LARGEST:
        raise ValueError(f"{shown(value)} is not {EXPECTED}")
    return amount


def _parse_whole_number(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            whole, rest = divmod(quantity.parse(value), quantity.NANO)
        except ValueError:
            return None
        return None if rest else whole
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_SUFFIXES: Final = {
    suffix: base**power
    for power in (4, 3, 2)
    for suffix, base in ((f"{'KMGT'[power - 1]}i", 1024), ("KMGT"[power - 1], 1000))
}
"""In descending order, without `k`, because `2000` is the usual notation of millicores."""


def format_amount(amount: int) -> str:
    """Format an amount, with a suffix if that is exact: `5G`, `512Mi`."""
    for suffix, unit in _SUFFIXES.items():
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)


def divide_amounts(amounts: Mapping[str, int], gpus: int) -> Amounts:
    """Divide amounts evenly among GPUs, at least one; the remainder is lost."""
    return Amounts({resource: amount // gpus for resource, amount in amounts.items()})


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> Amounts:
    """The sum by resource. OverflowError if it exceeds `LARGEST`."""
    sums: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            sums[resource] = sums.get(resource, 0) + amount
            if sums[resource] > LARGEST:
                raise OverflowError(resource)
    return Amounts(sums)
