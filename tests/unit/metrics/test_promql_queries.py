"""PromQL queries: selectors become ranges, other expressions are unchanged."""

import pytest

from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus import source

ASKED = {
    "a metric's name": (MetricRequest("temp"), '{__name__="temp"}[60s]'),
    "a name with a colon": (MetricRequest("job:temp:avg"), '{__name__="job:temp:avg"}[60s]'),
    "a name that is no identifier": (MetricRequest("gpu-temp"), '{__name__="gpu-temp"}[60s]'),
    "a name that begins with a digit": (MetricRequest("9lives"), '{__name__="9lives"}[60s]'),
    "a name that reads as a number": (MetricRequest("NaN"), '{__name__="NaN"}[60s]'),
    "a name with a quote": (MetricRequest('a"b\\c'), '{__name__="a\\"b\\\\c"}[60s]'),
    "a name that is a query": (
        MetricRequest('up"} or vector(1) #'),
        '{__name__="up\\"} or vector(1) #"}[60s]',
    ),
    "a name with a line break": (MetricRequest("a\nb"), '{__name__="a\\nb"}[60s]'),
    "a query": (MetricRequest("x", "sum by (node) (temp)"), "sum by (node) (temp)"),
    "a query that is a selector": (MetricRequest("x", ' temp{a="b"} '), 'temp{a="b"}[60s]'),
    "a query that is a range": (MetricRequest("x", "temp[5m]"), "temp[5m]"),
}

SELECTORS = {
    "temp": True,
    "temp{}": True,
    "temp {}": True,
    '{__name__="temp"}': True,
    'temp{a="b", c!=\'d\',e=~`f.*`,g!~"h"}': True,
    'temp{a="b",}': True,
    'temp{ a = "b" , }': True,
    'temp{a="a}b{[,"}': True,
    'temp{a="\\"}"}': True,
    '{"gpu.temp"}': True,
    '{"gpu.temp", "my.label"="x"}': True,
    "": False,
    "nan": False,
    "Inf": False,
    "1": False,
    "temp[5m]": False,
    "temp offset 5m": False,
    "temp @ 1": False,
    "temp + 1": False,
    "rate(temp[5m])": False,
    "(temp)": False,
    "temp{a=b}": False,
    'temp{a="b"': False,
    'temp{a="b" c="d"}': False,
    "temp{,}": False,
    "temp # a comment": False,
}

SPANS = {60.0: "60s", 1.5: "1500ms", 0.0001: "1ms", 300.0: "300s", 0.1 + 0.2: "300ms"}


@pytest.mark.parametrize(("metric_request", "text"), ASKED.values(), ids=ASKED)
def test_queries_of_requests(metric_request: MetricRequest, text: str) -> None:
    assert source.range_query(metric_request, 60.0) == text


@pytest.mark.parametrize(("text", "is_one"), SELECTORS.items(), ids=SELECTORS)
def test_plain_selectors_are_recognized(text: str, is_one: bool) -> None:
    assert source.is_selector(text) is is_one


@pytest.mark.parametrize(("seconds", "text"), SPANS.items(), ids=map(str, SPANS))
def test_durations_have_no_fractions(seconds: float, text: str) -> None:
    assert source.range_query(MetricRequest("temp"), seconds) == f'{{__name__="temp"}}[{text}]'


@pytest.mark.parametrize(
    "text",
    [
        'temp{a="' + '\\"' * 1_000_000,
        "temp{" + 'a="b",' * 1_000_000,
        "temp" + " " * 2_000_000 + "x",
        "{" * 2_000_000,
    ],
)
def test_a_hostile_query_costs_no_time(text: str) -> None:
    """With a quadratic algorithm this would take an hour."""
    assert not source.is_selector(text)
