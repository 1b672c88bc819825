"""The decoder lives through everything, and answers are what the values say."""

import contextlib
import json
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.errors import BadInput
from nodewise.extender import wire
from nodewise.extender.decision import Decision, PodRef
from nodewise.kube.fields import merge

READER = wire.Reader(merge("Pod"))
KEYS = [
    "Pod",
    "pod",
    "Nodes",
    "NodeNames",
    "nodenames",
    "items",
    "metadata",
    "name",
    "namespace",
    "labels",
    "spec",
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)


def survives(body: bytes) -> None:
    with contextlib.suppress(BadInput):
        READER.candidacy(body)
    with contextlib.suppress(BadInput):
        READER.preemption(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    survives(body)


@given(ANY)
def test_any_json_is_read_or_refused(value: Any) -> None:
    survives(json.dumps(value).encode())


@given(ANY, st.integers(0, 200), st.binary(max_size=3))
def test_json_that_was_cut_and_mangled_is_read_or_refused(value: Any, at: int, put: bytes) -> None:
    body = json.dumps({"Pod": value, "NodeNames": ["a"]}).encode()
    survives(body[:at] + put + body[at + 1 :])


@example(['",', ""])
@example(["a\\", "b"])
@given(st.lists(st.text(), unique=True))
def test_names_go_through_as_they_came(names: list[str]) -> None:
    body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": names}, ensure_ascii=True).encode()
    try:
        request = READER.candidacy(body)
    except BadInput:
        assert any("\ud800" <= char <= "\udfff" for name in names for char in name)
        return
    listed = np.array([*request.names, None], object)[:-1]
    decision = Decision("filter", PodRef("", ""), 0.0, 1, listed)
    assert json.loads(wire.filter_answer(request, decision))["NodeNames"] == names
    assert [one["Host"] for one in json.loads(wire.prioritize_answer(decision))] == names
