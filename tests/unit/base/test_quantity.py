"""The grammar of Kubernetes quantities (k8s.io/apimachinery v0.36, pkg/api/resource)."""

import pytest

from nodewise.base import quantity

NANO = quantity.NANO

GOOD = {
    "a whole number": ("5", 5 * NANO),
    "a dot and no fraction": ("5.", 5 * NANO),
    "a fraction alone": (".5", NANO // 2),
    "a sign": ("-3", -3 * NANO),
    "a plus": ("+3", 3 * NANO),
    "white space around": (" 7 ", 7 * NANO),
    "nano": ("1n", 1),
    "micro": ("100u", 100_000),
    "milli": ("41020m", 41_020_000_000),
    "kilo": ("2k", 2000 * NANO),
    "exa": ("12E", 12 * 10**18 * NANO),
    "an exponent": ("1e3", 1000 * NANO),
    "a capital exponent": ("1E3", 1000 * NANO),
    "a negative exponent": ("5e-1", NANO // 2),
    "kibi": ("1Ki", 1024 * NANO),
    "a fraction of gibi": ("1.5Gi", 3 * 2**29 * NANO),
    "more than 64 bits": ("9223372036854775808", 2**63 * NANO),
    "a binary suffix is capped": ("9Ei", (2**63 - 1) * NANO),
    "below nano is rounded up": ("0.0000000001", 1),
    "below nano is rounded away from zero": ("-0.0000000001", -1),
    "a tiny exponent": ("1e-200", 1),
    "zero with a huge exponent": ("0e999", 0),
}


@pytest.mark.parametrize(("text", "nano"), GOOD.values(), ids=GOOD)
def test_parse(text: str, nano: int) -> None:
    assert quantity.parse(text) == nano


BAD = [
    "",
    " ",
    ".",
    "-",
    "abc",
    "1kk",
    "NaN",
    "Inf",
    "1e",
    "1i",
    "--1",
    "1e99999",
    "1e9999",
    "1 2",
    "٣",
    "9" * 300,
]


@pytest.mark.parametrize("text", BAD)
def test_invalid_quantity_has_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="a Kubernetes quantity such as"):
        quantity.parse(text)


def test_text_is_the_shortest_decimal() -> None:
    expected = ["0", "0.000000001", "-0.5", "72.133", "1024"]
    assert [quantity.nano_to_text(n) for n in (0, 1, -NANO // 2, 72_133_000_000, 1024 * NANO)] == expected
