"""Kubernetes quantities as exact integers of nano-units: `41020m` is 41_020_000_000.

Grammar and rounding are those of k8s.io/apimachinery `resource.Quantity` (v0.36): decimal suffixes n u m,
none, k M G T P E, binary Ki Mi Gi Ti Pi Ei, exponents `e3` and `E3`; anything finer than one nano is rounded
away from zero; a value with a binary suffix is capped at 2**63 - 1 units. Python integers do not overflow, so
all comparisons are exact. `nano`, `milli` and `units` read requests of pods: an invalid quantity is 0 there.
"""

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

NANO: Final = 1_000_000_000
_CAP: Final = (2**63 - 1) * NANO
_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,4}))?"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX_LENGTH: Final = 256
"""In characters. Real quantities are shorter; the limit bounds the time for hostile ones."""

EXPECTED: Final = "a Kubernetes quantity such as 3, 0.5, 250m or 64Mi"


def parse(text: str) -> int:
    """Nano-units of a quantity. ValueError for any other text.

    Whole numbers and thousandths, the usual form of metrics, take a fast path without the cache, as they seldom repeat.
    """
    if text.isascii() and len(text) <= _MAX_FAST_LENGTH:
        if text.isdigit():
            return int(text) * NANO
        if text[-1:] == "m" and text[:-1].isdigit():
            return int(text[:-1]) * _MILLI
    return _parse_quantity(text)


_MAX_FAST_LENGTH: Final = 18
_MILLI: Final = NANO // 1000


@lru_cache(maxsize=4096)
def _parse_quantity(text: str) -> int:
    match = _FORM.fullmatch(text.strip()) if len(text) <= _MAX_LENGTH else None
    parts = match.groupdict(default="") if match else {}
    if not parts.get("whole") and not parts.get("fraction"):
        raise ValueError(f"{text[:80]!r} is not {EXPECTED}")
    digits, suffix = int(parts["whole"] + parts["fraction"]), parts["suffix"]
    exponent = int(parts["exponent"] or _DECIMAL.get(suffix, 0)) - len(parts["fraction"]) + 9
    if digits and exponent > _MAX_LENGTH:
        raise ValueError(f"{text[:80]!r} is out of every range, not {EXPECTED}")
    magnitude = _scale_digits(digits << _BINARY.get(suffix, 0), exponent)
    if suffix in _BINARY:
        magnitude = min(magnitude, _CAP)
    return -magnitude if parts["sign"] == "-" else magnitude


def _scale_digits(digits: int, exponent: int) -> int:
    """Digits times ten to the exponent, rounded away from zero."""
    if exponent >= 0:
        return digits * int(10**exponent) if digits else 0
    if -exponent > 2 * _MAX_LENGTH:
        return 1 if digits else 0
    return -(-digits // int(10**-exponent))


def nano_to_text(nano: int) -> str:
    """The shortest decimal text of the value: `72.133`, `1024`, `-0.5`."""
    whole, rest = divmod(abs(nano), NANO)
    sign = "-" if nano < 0 else ""
    return f"{sign}{whole}.{rest:09d}".rstrip("0") if rest else f"{sign}{whole}"


def nano_to_decimal(nano: int) -> Decimal:
    """The exact value in units, for JSON numbers and tables."""
    return Decimal(nano_to_text(nano))


Quantity = str | int | float | None
"""In the form of JSON; null is 0."""

MAX_AMOUNT: Final = 2**53
"""Larger amounts are reduced to it: a double holds every whole number up to here."""


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
    return min(-(-nano // _MILLI), MAX_AMOUNT)


def whole_units(nano: int) -> int:
    """Nano-units as whole units, rounded up, at most `MAX_AMOUNT`."""
    return min(-(-nano // NANO), MAX_AMOUNT)


@lru_cache(maxsize=4096)
def _parse_nano(text: str) -> int:
    try:
        return min(max(0, parse(text)), MAX_AMOUNT * NANO)
    except ValueError:
        return 0
