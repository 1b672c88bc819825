"""Kubernetes quantities as whole numbers, rounded up as Kubernetes does; what cannot be read is 0."""

from functools import lru_cache
from typing import Any, Final

from nodewise import quantity

Quantity = str | int | float | None
"""As JSON has it; null is 0."""

MOST: Final = 2**53
"""No amount is more: up to here doubles hold every whole number."""


def milli(given: Any) -> int:
    """Thousandths of a unit, from 0 to `MOST`: 1 for a CPU request of `0.0005`."""
    return _whole(str(given), quantity.NANO // 1000) if _is_quantity(given) else 0


def units(given: Any) -> int:
    """Whole units, from 0 to `MOST`: bytes of memory, numbers of pods."""
    return _whole(str(given), quantity.NANO) if _is_quantity(given) else 0


def _is_quantity(given: Any) -> bool:
    return isinstance(given, str | int | float) and not isinstance(given, bool)


@lru_cache(maxsize=4096)
def _whole(text: str, step: int) -> int:
    try:
        return min(max(0, -(-quantity.parse(text) // step)), MOST)
    except ValueError:
        return 0
