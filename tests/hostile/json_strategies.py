"""Hypothesis strategies for malformed JSON values."""

import json
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.1, -0.0, 1e308, 5e-324)
"""Integers at and beyond the limits of 32 and 64 bits, and floats near the limits of doubles."""

TEXTS = ("", " ", "\x00", "é", "\u2028", '"', "\\", 'a","b', "../..", "${x}", "%s", "\U0001f4a5", "n" * 300)
"""Texts that a program may interpret as something else."""

QUANTITIES = (
    "1e999999999",
    "-1e-999999999",
    "NaN",
    "Inf",
    "1_000",
    "0x10",
    "٣",
    "9" * 300,
    "1" + "0" * 64,
    "5Kii",
)

leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from((*TEXTS, *QUANTITIES)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


def anything(keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Any JSON value, with objects of these keys, so that wrong values occur below keys that the program reads."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(keys | st.text(max_size=4), inner, max_size=4)
        ),
        max_leaves=12,
    )


def mostly(usual: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """The usual value in seven of eight cases, so that wrong values occur beside correct ones."""
    wrong = anything(keys)  # created once, because each new strategy has to be analysed
    return st.integers(0, 7).flatmap(lambda n: usual if n else wrong)


def encoded(value: Any) -> bytes:
    """A value encoded as ASCII JSON."""
    return json.dumps(value).encode()
