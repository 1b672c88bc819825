from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import quantity

SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "Ki": 2**10,
    "Gi": 2**30,
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
}


@given(st.integers(-(10**30), 10**30))
def test_text_round_trips(nano: int) -> None:
    assert quantity.parse(quantity.nano_to_text(nano)) == nano


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**9 - 1), st.sampled_from(sorted(SUFFIXES)))
def test_parsing_is_exact_or_rounded_away_from_zero(whole: int, fraction: int, suffix: str) -> None:
    exact = (abs(whole) + Fraction(fraction, 10**9)) * SUFFIXES[suffix] * quantity.NANO
    cap = (2**63 - 1) * quantity.NANO
    value = quantity.parse(f"{'-' if whole < 0 else ''}{abs(whole)}.{fraction:09d}{suffix}")
    rounded = -(-exact.numerator // exact.denominator)
    assert abs(value) == (min(rounded, cap) if suffix.endswith("i") else rounded)


@given(st.text(max_size=30))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    try:
        value = quantity.parse(text)
    except ValueError:
        return
    assert quantity.parse(quantity.nano_to_text(value)) == value
