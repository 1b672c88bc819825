"""Kubernetes quantities as whole numbers, rounded up as Kubernetes does; invalid quantities are 0."""

from functools import lru_cache
from typing import Any, Final

from nodewise.base import quantity

Quantity = str | int | float | None
"""In the form of JSON; null is 0."""

MAX_AMOUNT: Final = 2**53
"""Larger amounts are reduced to it: a double holds every whole number up to here."""

_NANO_PER_MILLI: Final = quantity.NANO // 1000
_MAX_LENGTH: Final = 256
"""Characters of a quantity. Longer texts are invalid, and are not cached."""


def milli(amount: Any) -> int:
    """Thousandths of a unit, from 0 to `MAX_AMOUNT`: 1 for a CPU request of `0.0005`."""
    return whole_milli(nano(amount))


def units(amount: Any) -> int:
    """Whole units, from 0 to `MAX_AMOUNT`: bytes of memory, numbers of pods."""
    return whole_units(nano(amount))


def nano(amount: Any) -> int:
    """Nano-units, from 0 to `MAX_AMOUNT` units."""
    if isinstance(amount, str):
        return _parse_nano(amount) if len(amount) <= _MAX_LENGTH else 0
    if isinstance(amount, int | float) and not isinstance(amount, bool):
        return nano(str(amount))
    return 0


def whole_milli(nano: int) -> int:
    """Nano-units as thousandths of a unit, rounded up, at most `MAX_AMOUNT`."""
    return min(-(-nano // _NANO_PER_MILLI), MAX_AMOUNT)


def whole_units(nano: int) -> int:
    """Nano-units as whole units, rounded up, at most `MAX_AMOUNT`."""
    return min(-(-nano // quantity.NANO), MAX_AMOUNT)


@lru_cache(maxsize=4096)
def _parse_nano(text: str) -> int:
    try:
        return min(max(0, quantity.parse(text)), MAX_AMOUNT * quantity.NANO)
    except ValueError:
        return 0
