"""Both decoders of a MetricValueList, item by item and as a whole, return the same items."""

import json
from typing import Any
from unittest import mock

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.base.errors import BadInput, Problem
from nodewise.metrics import custom_metrics_api
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.series import Series

NAMES = st.sampled_from(["a", "b", 'q"', '},{"describedObject":{', "[{", "}]", "é", ""])
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | NAMES
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["describedObject", "items", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@st.composite
def items(draw: st.DrawFn) -> Any:
    """Items that are mostly valid."""
    if draw(st.integers(0, 5)) == 0:
        return draw(ANYTHING)
    item: dict[str, Any] = {"describedObject": draw(st.fixed_dictionaries({"name": NAMES}) | ANYTHING)}
    if draw(st.booleans()):
        item["x"] = draw(ANYTHING)
    return item | {"timestamp": "2026-11-22T00:00:00Z", "value": draw(SCALARS)}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    before = {"kind": "MetricValueList", "metadata": draw(ANYTHING)}
    after = {"x": draw(ANYTHING)} if draw(st.booleans()) else {}
    listed = draw(st.lists(items(), max_size=5) | ANYTHING)
    compact = draw(st.booleans())
    text = json.dumps(
        {**before, "items": listed, **after},
        separators=(",", ":") if compact else None,
        ensure_ascii=draw(st.booleans()),
    ).encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from([b"", b"}", b"]", b",", b'"', b"0"])) + text[at + 1 :]
    return text


def read(body: bytes) -> str:
    """The text form of the items, or "bad" if the body is not a list."""
    try:
        items = [item for batch in custom_metrics_api.decode_items(body) for item in batch]
    except BadInput:
        return "bad"
    return repr([item if isinstance(item, tuple) else msgspec.to_builtins(item) for item in items])


@given(bodies())
@example(b'{"metadata":{"items":[{"describedObject":{"name":"a"}}]},"items":[]}')
@example(b'{"items":[{"describedObject":{"name":"a"}}],"items":[]}')
@example(b'{"items":[{"describedObject":{"name":"a"}},{"describedObject":{"name":"b"}}]')
@example(b'{"items":[{"describedObject":{"name":"a"}},{"describedObject":{"name":"b"}}}]}')
@example(b'{"items":[{"describedObject":{"name":"a"},"x":[{},{"describedObject":0}]}]}')
def test_an_item_is_the_same_however_the_list_is_read(body: bytes) -> None:
    with mock.patch.object(custom_metrics_api, "split_items", return_value=()):
        whole = read(body)
    assert read(body) == whole
    with mock.patch.object(custom_metrics_api, "_BATCH_BYTES", 0):
        assert read(body) == whole


TEXTS = (
    st.integers(0, 10**19).map(str)
    | st.builds("{}{}".format, st.integers(0, 10**12), st.sampled_from("numkMGTPE"))
    | st.sampled_from(
        ["", "m", "1m2", "1mm", "-1", "+1", "0x1", "1,2", ",", " 1", "1e3", "1.5", "1Ki", "NaN", "é", "٣"]
    )
)


@st.composite
def node_values(draw: st.DrawFn) -> custom_metrics_api.Batch:
    """Items of three nodes, mostly with values in the usual form."""
    item = st.builds(
        custom_metrics_api.NodeValue,
        st.sampled_from("abc").map(custom_metrics_api._DescribedObject),
        TEXTS | st.none() | st.booleans() | st.integers(-9, 9),
        st.sampled_from([None, "", "2026-11-22T00:00:00Z", "2026-11-22T00:00:05Z", "today"]),
        st.none() | st.just(30.0),
        st.none() | st.just(90.0),
    )
    return draw(st.lists(item | st.just(Problem("items[0]", "bad", "an item")), max_size=5))


@given(st.lists(node_values(), max_size=2), st.sampled_from(["", "max", "sum"]))
@example([[custom_metrics_api.make_metric_value("a", "m", "9223372036855m", None)]], "")
def test_a_batch_gives_the_same_series_as_its_items_one_by_one(
    batches: list[custom_metrics_api.Batch], aggregate: str
) -> None:
    request = MetricRequest("m", aggregate=aggregate)
    builder = custom_metrics_api.SeriesBuilder()
    for batch in batches:
        builder.add_batch(batch)
    together = run_without_pauses(builder.series(request, "custom", 7.0))
    entries = [entry for batch in batches for entry in custom_metrics_api.node_samples(batch)]
    one_by_one = custom_metrics_api.build_series(request, "custom", 7.0, entries)
    assert dict(together.samples) == dict(one_by_one.samples)
    assert together.invalid == one_by_one.invalid
    assert together.differing == one_by_one.differing


@given(st.permutations("abcd"), st.permutations("abcd"), st.lists(st.sampled_from("abcde"), max_size=5))
@example([*"abcd"], [*"abcd"], [*"aacd"])
def test_the_order_and_number_of_nodes_do_not_depend_on_earlier_series(
    first: list[str], second: list[str], third: list[str]
) -> None:
    def build(nodes: list[str], at: float) -> Series:
        items = [
            custom_metrics_api.make_metric_value(node, "m", f"{number}m", "2026-11-22T00:00:00Z")
            for number, node in enumerate(nodes)
        ]
        entries = custom_metrics_api.node_samples(items)
        return custom_metrics_api.build_series(MetricRequest("m", aggregate="max"), "custom", at, entries)

    kept = build(first, 1.0)
    for nodes in (second, third):
        series = build(nodes, 2.0)
        expected = {node: max(at for at, other in enumerate(nodes) if other == node) for node in nodes}
        assert {node: sample.value for node, sample in series.samples.items()} == {
            node: value * 10**6 for node, value in expected.items()
        }
        assert list(series.samples) == sorted(expected)
    assert list(kept.samples) == sorted(first)


def test_a_list_as_go_writes_it_is_never_read_whole() -> None:
    listed = [
        {"describedObject": {"kind": "Node", "name": f"n-{number}"}, "value": "1"} for number in range(3)
    ]
    body = json.dumps({"kind": "MetricValueList", "items": listed}, separators=(",", ":")).encode()
    with mock.patch.object(custom_metrics_api, "_BATCH_BYTES", 0):
        assert list(custom_metrics_api.split_items(body, custom_metrics_api._BEGIN)) == [
            json.dumps([item], separators=(",", ":")).encode() for item in listed
        ]
