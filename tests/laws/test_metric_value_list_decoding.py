"""Both decoders of a MetricValueList, item by item and as a whole, return the same items."""

import json
from typing import Any
from unittest import mock

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.base.errors import BadInput
from nodewise.metrics import custom_metrics_api

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
        items = list(custom_metrics_api.decode_items(body))
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
    with mock.patch.object(custom_metrics_api, "_split_items", return_value=()):
        whole = read(body)
    assert read(body) == whole


def test_a_list_as_go_writes_it_is_never_read_whole() -> None:
    listed = [
        {"describedObject": {"kind": "Node", "name": f"n-{number}"}, "value": "1"} for number in range(3)
    ]
    body = json.dumps({"kind": "MetricValueList", "items": listed}, separators=(",", ":")).encode()
    assert [bytes(item) for item in custom_metrics_api._split_items(body)] == [
        json.dumps(item, separators=(",", ":")).encode() for item in listed
    ]
