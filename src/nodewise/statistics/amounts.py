"""Kubernetes quantities as whole numbers, rounded up as Kubernetes does; what cannot be read is 0."""

from functools import lru_cache
from typing import Any, Final

from nodewise import quantity

Quantity = str | int | float | None
"""As JSON has it; null is 0."""

MAX_AMOUNT: Final = 2**53
"""No amount is more: up to here doubles hold every whole number."""

_LONGEST: Final = 256
"""No honest quantity is longer; what is longer is not read, and not remembered either."""


def milli(given: Any) -> int:
    """Thousandths of a unit, from 0 to `MAX_AMOUNT`: 1 for a CPU request of `0.0005`."""
    return _read(given, quantity.NANO // 1000)


def units(given: Any) -> int:
    """Whole units, from 0 to `MAX_AMOUNT`: bytes of memory, numbers of pods."""
    return _read(given, quantity.NANO)


def _read(given: Any, step: int) -> int:
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        return 0
    text = str(given)
    return _whole(text, step) if len(text) <= _LONGEST else 0


@lru_cache(maxsize=4096)
def _whole(text: str, step: int) -> int:
    try:
        return min(max(0, -(-quantity.parse(text) // step)), MAX_AMOUNT)
    except ValueError:
        return 0
