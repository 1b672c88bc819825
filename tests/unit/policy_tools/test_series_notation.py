"""The notation of series and their values."""

import pytest

from nodewise.policy_tools import policy_suite
from nodewise.policy_tools.policy_suite import NotationError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("80", ("80",)),
        ("80+1x3 _ stale", ("80", "81", "82", "83", None, "stale")),
        ("1-0.5x2", ("1.0", "0.5", "0.0")),
        ("0.1+0.1x3", ("0.1", "0.2", "0.3", "0.4")),
        ("7x2", ("7", "7", "7")),
        ("_x3 -4", (None, None, None, "-4")),
        ("-2+-1x1", ()),
        ("1e3 .5 NaN -Inf", ("1000", "0.5", "NaN", "-Inf")),
        ("64x0", ("64",)),
    ],
)
def test_values(text: str, values: tuple[str | None, ...]) -> None:
    if values:
        assert policy_suite.parse_values(text) == values
    else:
        with pytest.raises(NotationError):
            policy_suite.parse_values(text)


@pytest.mark.parametrize(
    ("text", "position", "actual"),
    [
        ("", 0, "no value"),
        ("80 8..1", 3, "'8..1'"),
        ("80+1x10 gap", 8, "'gap'"),
        ("stalex3", 0, "'stalex3'"),
        ("80+1", 0, "'80+1'"),
        ("_+1x3", 0, "'_+1x3'"),
        ("1x9999999", 0, "more values"),
        ("{{schema:1}}", 0, "'{{schema:1}}'"),
    ],
)
def test_unreadable_values_have_a_position(text: str, position: int, actual: str) -> None:
    with pytest.raises(NotationError) as raised:
        policy_suite.parse_values(text)
    assert (raised.value.position, str(raised.value)) == (position, actual)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("temp", {"__name__": "temp"}),
        ("temp{}", {"__name__": "temp"}),
        ("""temp{node="a", sensor='x"y',}""", {"__name__": "temp", "node": "a", "sensor": 'x"y'}),
        (r'{node="a\"b"}', {"node": 'a"b'}),
        ("rule:temp { instance = '10.0.0.1:9100' } ", {"__name__": "rule:temp", "instance": "10.0.0.1:9100"}),
    ],
)
def test_series(text: str, labels: dict[str, str]) -> None:
    assert policy_suite.parse_series(text) == labels


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("temp{node=a}", 5),
        ('temp{node="a"', 4),
        ('t{a="1",a="2"}', 8),
        ('t{a="1" b="2"}', 8),
        ("1t", 0),
    ],
)
def test_unreadable_series_have_a_position(text: str, position: int) -> None:
    with pytest.raises(NotationError) as raised:
        policy_suite.parse_series(text)
    assert raised.value.position == position
