"""Laws of matching metric series to nodes."""

from contextlib import suppress
from decimal import ROUND_UP, Context, Decimal
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import cooperative_scheduling
from nodewise.metrics import aggregation, node_attributes, resource_metrics_api
from nodewise.metrics.metrics_source import AGGREGATIONS, MetricRequest, merge_requests
from nodewise.metrics.node_attributes import NodeAllocatable, NodeAttributes
from nodewise.metrics.prometheus import node_matching, query_responses, source
from nodewise.metrics.prometheus.node_matching import SeriesLabels
from nodewise.metrics.prometheus.query_responses import SeriesValue
from nodewise.metrics.series import Sample

NANO = 10**9
NAMES = ("a", "b", "c")
FLEET = NodeAttributes({name: NodeAllocatable(None, None) for name in NAMES}, {name: name for name in NAMES})
LABELS = ("node", "instance")
SERIES_LABELS = SeriesLabels(LABELS, frozenset(LABELS), frozenset())

texts = st.sampled_from((*NAMES, "x", "", "a:9100", "0"))
series = st.builds(
    SeriesValue,
    st.dictionaries(st.sampled_from((*LABELS, "core")), texts, max_size=3),
    st.sampled_from(("1", "2", "NaN")),
    st.one_of(st.none(), st.sampled_from((1.0, 2.0))),
)


def owned(series: list[SeriesValue]) -> node_matching.SeriesByNode:
    return cooperative_scheduling.run_without_pauses(
        node_matching.group_by_node(series, SERIES_LABELS, FLEET)
    )


def match(series: list[SeriesValue], aggregate: str = "") -> node_matching.NodeValues:
    return cooperative_scheduling.run_without_pauses(
        node_matching.reduce(owned(series), aggregate, SERIES_LABELS)
    )


aggregations = st.sampled_from(("", *AGGREGATIONS))


@pytest.mark.parametrize(
    ("instance", "node"),
    [
        ("a:metrics", "a"),
        ("a:cadvisor/metrics", "a"),
        ("a:9100", "a"),
        ("fd00::a", "b"),
        ("[fd00::a]:metrics", "b"),
        ("a:/export", None),
        ("a:metrics:b", None),
        ("metrics", None),
    ],
)
def test_port_of_scraped_target_may_have_a_name(instance: str, node: str | None) -> None:
    """As in Google Cloud Managed Service for Prometheus. In other labels, such a text is no node: `host:volume`."""
    labels = SeriesLabels(("device", "instance"), frozenset(), frozenset())
    item = SeriesValue({"instance": instance, "device": "b:volume"}, "1", None)
    nodes = FLEET._replace(names={**FLEET.names, "fd00::a": "b"})
    grouped = cooperative_scheduling.run_without_pauses(node_matching.group_by_node([item], labels, nodes))
    assert list(grouped.by_node) == ([node] if node else [])


@given(st.lists(series, max_size=8), aggregations, st.randoms())
def test_the_order_of_series_means_nothing(
    series_list: list[SeriesValue], aggregate: str, random: object
) -> None:
    other = list(series_list)
    random.shuffle(other)  # type: ignore[attr-defined]
    first, second = match(series_list, aggregate), match(other, aggregate)
    assert first.samples == second.samples
    assert first.invalid.keys() == second.invalid.keys()
    assert len(owned(series_list).unmatched) == len(owned(other).unmatched)


@given(st.lists(series, max_size=8))
def test_a_node_has_a_value_or_a_reason_and_every_series_a_node_or_none(
    series_list: list[SeriesValue],
) -> None:
    matched, unmatched = match(series_list), len(owned(series_list).unmatched)
    assert not matched.samples.keys() & matched.invalid.keys()
    assert matched.samples.keys() | matched.invalid.keys() <= set(NAMES)
    assert len(matched.samples) + len(matched.invalid) + unmatched <= len(series_list)
    given_values = {(series.value, series.at) for series in series_list}
    assert {(str(sample.value // NANO), sample.at) for sample in matched.samples.values()} <= given_values


@given(st.lists(series, max_size=8))
def test_without_an_aggregation_a_value_is_the_same_in_every_series_of_the_node(
    series_list: list[SeriesValue],
) -> None:
    matched = match(series_list)
    for node, own in owned(series_list).by_node.items():
        values = {series.value for series in own}
        assert (node in matched.samples) == (len(values) == 1 and values != {"NaN"})


@given(st.lists(st.integers(-(10**30), 10**30), min_size=1, max_size=6))
def test_an_aggregation_is_exact(values: list[int]) -> None:
    entries = [Sample(value, float(at)) for at, value in enumerate(values)]
    low, high, total, mean = (
        aggregation.reduce(entries, name, "").value for name in ("min", "max", "sum", "avg")
    )
    assert (low, high, total) == (min(values), max(values), sum(values))
    assert abs(mean * len(values) - total) * 2 <= len(values)
    assert aggregation.reduce(entries, "sum", "").at == 0.0, "as old as its oldest part"


@given(st.lists(series, max_size=6), series)
def test_a_series_more_changes_no_node_but_its_own(series_list: list[SeriesValue], more: SeriesValue) -> None:
    """Every node has a series with both labels, so the label that identifies nodes does not change."""
    whole = [SeriesValue({"node": name, "instance": name}, "1", 1.0) for name in NAMES]
    before, after = match(whole + series_list), match([*whole, *series_list, more])
    own = next((FLEET.find(more.labels[label]) for label in LABELS if more.labels.get(label)), None)
    for name in set(NAMES) - {own}:
        assert before.samples.get(name) == after.samples.get(name)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200))
def test_a_value_is_its_text_and_nothing_else(value: float) -> None:
    exact = Decimal(repr(value)) * NANO
    wanted = int(exact.to_integral_value(ROUND_UP, Context(prec=400)))
    assert query_responses.parse_sample_value(repr(value)) == wanted


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_reason(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(query_responses.parse_sample_value(text), int)


@given(st.binary(max_size=80))
def test_any_body_is_an_answer_or_bad_input(body: bytes) -> None:
    with pytest.raises(query_responses.BadInput):
        query_responses.decode_response(body)


@given(st.text(alphabet="ab{}[]=~!\"'`\\, \n", max_size=20))
def test_a_selector_stays_one_however_it_is_written(text: str) -> None:
    """Only selectors become ranges, because brackets occur only inside quotes."""
    if source.is_selector(text):
        assert source.is_selector(text.rstrip())
        assert source.range_query(MetricRequest("m", text), 60.0) == f"{text.strip()}[60s]"


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_means_its_node_with_and_without_a_port(address: object, port: int) -> None:
    fleet = NodeAttributes({"n": NodeAllocatable(None, None)}, {str(ip_address(str(address))): "n"})
    host = f"[{address}]" if ":" in str(address) else str(address)
    assert fleet.find(str(address)) == fleet.find(f"{host}:{port}") == "n"
    assert node_attributes.strip_port(f"{host}:{port}") == str(address)


@given(st.integers(0, 10**18), st.integers(1, 10**18))
def test_a_share_is_as_near_as_a_nano_can_be(used: int, whole: int) -> None:
    item = resource_metrics_api.NodeMetrics(
        metadata=resource_metrics_api._NodeMetricsMetadata("n"),
        usage=resource_metrics_api._Usage(f"{used}n", "0"),
    )
    fleet = NodeAttributes({"n": NodeAllocatable(whole, 1)}, {})
    ((_, share),) = cooperative_scheduling.run_without_pauses(resource_metrics_api.by_metric([item], fleet))[
        "cpu_usage_share"
    ]
    assert not isinstance(share, str)
    assert abs(share.value * whole - used * NANO) * 2 <= whole


metric_requests = st.builds(
    MetricRequest,
    st.sampled_from("mk"),
    st.sampled_from(("", "q", "r")),
    st.sampled_from((0.0, 60.0, 300.0)),
    aggregations,
    st.booleans(),
    st.frozensets(st.sampled_from(("x", "y"))),
    lookback_s=st.sampled_from((0.0, 90.0, 600.0)),
    own_query=st.just(""),
    by_pod=st.booleans(),
    is_optional=st.booleans(),
)


@given(st.frozensets(metric_requests))
def test_every_metric_and_query_is_asked_for_once_with_the_longest_age(
    given_: frozenset[MetricRequest],
) -> None:
    merged = merge_requests(given_)
    assert {metric_request.key for metric_request in merged} == {
        metric_request.key for metric_request in given_
    }
    assert len(merged) == len({metric_request.key for metric_request in merged})
    assert len(merged) == len(
        {
            metric_request._replace(max_age_s=0.0, lookback_s=0.0, namespaces=frozenset(), is_optional=False)
            for metric_request in given_
        }
    )
    for metric_request in merged:
        same = [request for request in given_ if request.key == metric_request.key]
        assert metric_request.max_age_s == max(request.max_age_s for request in same)
        assert metric_request.lookback_s == max(request.lookback_s for request in same)
        assert metric_request.is_optional == all(request.is_optional for request in same)
        of_agent = any(not request.namespaces for request in same)
        assert metric_request.namespaces == (
            frozenset() if of_agent else frozenset().union(*(request.namespaces for request in same))
        )


def test_the_removal_of_old_series_without_a_node_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    series_since = node_matching._series_since

    def record_size(own: list[SeriesValue], since: float) -> list[SeriesValue]:
        sizes.append(len(own))
        return series_since(own, since)

    monkeypatch.setattr(node_matching, "_series_since", record_size)
    unmatched = [SeriesValue({"core": str(number)}, "1", float(number)) for number in range(1000)]
    grouped = cooperative_scheduling.run_without_pauses(
        node_matching.group_by_node(unmatched, SERIES_LABELS, FLEET, 100.0)
    )
    assert grouped.unmatched == unmatched[899:]
    assert max(sizes) <= 100


def test_a_replaced_series_that_has_ended_makes_no_other_series_old() -> None:
    labels = SERIES_LABELS._replace(replica=frozenset({"replica"}))
    current = SeriesValue({"node": "a", "replica": "1"}, "1", 400.0)
    ended = SeriesValue({"node": "a", "replica": "0"}, "2", 1000.0, has_ended=True)
    grouped = cooperative_scheduling.run_without_pauses(
        node_matching.group_by_node([current, ended], labels, FLEET, 300.0)
    )
    assert grouped.by_node == {"a": [current]}
