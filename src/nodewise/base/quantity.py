"""Kubernetes quantities as exact integers of nano-units: `41020m` is 41_020_000_000.

Grammar and rounding are those of k8s.io/apimachinery `resource.Quantity` (v0.36): decimal suffixes n u m,
none, k M G T P E, binary Ki Mi Gi Ti Pi Ei, exponents `e3` and `E3`; anything finer than one nano is rounded
away from zero; a value with a binary suffix is capped at 2**63 - 1 units. Python integers do not overflow, so
all comparisons are exact.
"""

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

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
