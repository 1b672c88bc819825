import pytest

from nodewise.base import clock

GOOD = {"5s": 5, "500ms": 0.5, "1m30s": 90, "1.5h": 5400, "0": 0, "0s": 0, "-1s": -1, "2us": 2e-6}


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_duration(text: str, seconds: float) -> None:
    assert clock.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "seconds"), {**GOOD, "90d": 90 * 86400, "1d12h": 36 * 3600}.items())
def test_options_take_days_too(text: str, seconds: float) -> None:
    assert clock.parse_option_duration(text) == pytest.approx(seconds)


def test_a_plain_number_means_seconds_only_where_it_did_in_an_older_program() -> None:
    assert clock.parse_option_duration("1.5", has_default_unit=True) == 1.5
    with pytest.raises(ValueError, match="invalid duration '90'"):
        clock.parse_option_duration("90")
    with pytest.raises(ValueError, match="invalid duration '1d'"):
        clock.parse_duration("1d")


@pytest.mark.parametrize("text", ["5", "", "abc", "s", "-", "5 s", "1..5s", "5sm"])
def test_invalid_duration_has_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid duration .* \(for example 5s, 500ms, 1m30s\)"):
        clock.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5s"), (90, "1m30s"), (0.25, "250ms"), (3600, "1h"), (60, "1m")]
)
def test_duration_text(seconds: float, text: str) -> None:
    assert clock.format_duration(seconds) == text


def test_rfc3339_round_trip() -> None:
    assert clock.format_rfc3339(clock.parse_rfc3339("2026-11-21T00:43:47Z")) == "2026-11-21T00:43:47Z"
    assert clock.parse_rfc3339("2026-11-21T01:43:47+01:00") == clock.parse_rfc3339("2026-11-21T00:43:47")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1970-01-01T00:00:00Z", 0), ("2106-02-07T06:28:15Z", clock.LAST_TIME_S)]
)
def test_the_first_and_the_last_time_that_users_may_choose(text: str, seconds: float) -> None:
    assert clock.parse_input_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["1969-12-31T23:59:59Z", "2106-02-07T06:28:16Z", "0001-01-01T00:00:00+05:00", "soon", ""]
)
def test_any_other_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        clock.parse_input_time(text)


def test_a_text_as_long_as_an_object_is_no_duration() -> None:
    with pytest.raises(ValueError, match="1000000 characters"):
        clock.parse_duration("1s" * 500_000)
