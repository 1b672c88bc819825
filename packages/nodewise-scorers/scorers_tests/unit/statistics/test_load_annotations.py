"""Annotations of nodes, parsed as in Go."""

import math

import numpy as np
import pytest

from nodewise_scorers.statistics import load_annotations


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2000", 2000.0),
        ("2e3", 2000.0),
        ("+4.5E-1", 0.45),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0", 0.0),
        ("1e308", 1e308),
        ("1e-400", 0.0),
        ("272629760.0", 272629760.0),
    ],
)
def test_decimal_texts_are_numbers(text, number):
    assert load_annotations.number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " ",
        " 2000",
        "2000 ",
        "2000\n",
        "2000m",
        "N/A",
        "None",
        "nan",
        "NaN",
        "-nan",
        "inf",
        "-Infinity",
        "1e309",
        "-1e999",
        "0x10",
        "0x1p4",
        "1_000",
        "1,5",
        "1e",
        "e5",
        ".",
        "+",
        "--1",
        "٣",
        "1" * 513,
    ],
)
def test_all_else_is_no_number(text):
    assert math.isnan(load_annotations.number(text))


@pytest.mark.parametrize(
    ("text", "number"), [("50", 50), ("+50", 50), ("-5", -5), ("007", 7), ("9223372036854775807", 2.0**63)]
)
def test_whole_numbers_to_base_ten(text, number):
    assert load_annotations.parse_integer(text) == number


@pytest.mark.parametrize("text", [None, "", " 50", "50.5", "1e1", "0x10", "abc", "1_0", "٣", "1" * 600])
def test_all_else_is_no_whole_number(text):
    assert math.isnan(load_annotations.parse_integer(text))


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "99999999999999999999"])
def test_more_than_64_bits_is_no_whole_number(text):
    assert math.isnan(load_annotations.parse_integer(text))


def test_of_many_texts_each_is_read_by_itself():
    np.testing.assert_array_equal(load_annotations.integers(["1", None, "1.5"]), [1, np.nan, np.nan])


def test_times_are_rfc_3339_in_utc():
    assert load_annotations.time("2026-11-21T00:00:00Z") == 1795219200.0
    for text in (None, "", "yesterday", "2026-13-01T00:00:00Z", "9" * 600):
        assert math.isnan(load_annotations.time(text))
