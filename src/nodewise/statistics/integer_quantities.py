"""Kubernetes quantities as whole numbers, rounded up as Kubernetes does; invalid quantities are 0."""

from functools import lru_cache
from typing import Any, Final

from nodewise import quantity

Quantity = str | int | float | None
"""In the form of JSON; null is 0."""

MAX_AMOUNT: Final = 2**53
"""Larger amounts are reduced to it: a double holds every whole number up to here."""

_MAX_LENGTH: Final = 256
"""Characters of a quantity. Longer texts are invalid, and are not cached."""


def milli(amount: Any) -> int:
    """Thousandths of a unit, from 0 to `MAX_AMOUNT`: 1 for a CPU request of `0.0005`."""
    return _parse_quantity_in_steps(amount, quantity.NANO // 1000)


def units(amount: Any) -> int:
    """Whole units, from 0 to `MAX_AMOUNT`: bytes of memory, numbers of pods."""
    return _parse_quantity_in_steps(amount, quantity.NANO)


def _parse_quantity_in_steps(amount: Any, step: int) -> int:
    if not isinstance(amount, str | int | float) or isinstance(amount, bool):
        return 0
    text = str(amount)
    return _count_whole_steps(text, step) if len(text) <= _MAX_LENGTH else 0


@lru_cache(maxsize=4096)
def _count_whole_steps(text: str, step: int) -> int:
    try:
        return min(max(0, -(-quantity.parse(text) // step)), MAX_AMOUNT)
    except ValueError:
        return 0
