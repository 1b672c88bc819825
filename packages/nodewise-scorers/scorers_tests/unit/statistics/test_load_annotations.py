"""Annotations of nodes, parsed as in Go."""

import math

import msgspec
import numpy as np
import pytest

from nodewise_scorers.scoring_agent import MissingOptions, NoStatistics, StatisticStatus
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import Capacity


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


def test_the_defaults_are_those_of_the_older_system():
    options = MissingOptions()
    assert not options.rejects_missing
    assert (options.score_without_statistics(0), options.score_without_statistics(10)) == (0, 10)


def test_one_score_for_all_agents_and_0_is_one():
    assert MissingOptions(score_missing=0).score_without_statistics(10) == 0
    assert MissingOptions(score_missing=7).score_without_statistics(0) == 7


@pytest.mark.parametrize(("word", "rejects"), [("accept", False), ("pass", False), ("reject", True)])
def test_words(word, rejects):
    assert msgspec.convert({"when_missing": word}, MissingOptions).rejects_missing is rejects


@pytest.mark.parametrize(
    "settings", [{"score_missing": 11}, {"score_missing": -1}, {"when_missing": "ignore"}]
)
def test_settings_out_of_bounds_are_refused(settings):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, MissingOptions)


def test_every_state_has_words_but_the_one_where_nothing_is_missing():
    assert not StatisticStatus.PRESENT.words
    assert len({reason.words for reason in StatisticStatus}) == len(StatisticStatus)


def test_the_reason_names_the_agent_and_the_remedy():
    reason = NoStatistics("safe")
    assert reason.text() == "safe: no fresh statistics"
    assert "--when-missing accept" in reason.remedy()
    assert not reason.is_failure


def test_each_resource_in_its_unit():
    stated = (
        b'{"cpu": "3920m", "memory": "7Gi", "pods": "110", "gpu": 2, "ephemeral-storage": "1500m", "x": "y"}'
    )
    assert load_annotations.parse_capacity(msgspec.Raw(stated)) == Capacity(3920, 7 * 2**30, 110, 2, 2)


@pytest.mark.parametrize("stated", [b"null", b"{}", b"[]", b'"4"', b'{"cpu": {}, "memory": true}', b"", b"{"])
def test_absent_amounts_are_0(stated):
    assert load_annotations.parse_capacity(msgspec.Raw(stated)) == Capacity()


def test_one_bad_quantity_spoils_no_other():
    assert load_annotations.parse_capacity(msgspec.Raw(b'{"cpu": "four", "memory": "1Ki"}')) == Capacity(
        0, 1024
    )
