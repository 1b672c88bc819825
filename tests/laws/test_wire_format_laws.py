"""The decoder accepts or refuses any input without a crash, and responses contain exactly the given values."""

import contextlib
import json
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.agent import NodeIndex, Scores, Verdict
from nodewise.base.errors import BadInput
from nodewise.engine.decision import Decision, PodRef
from nodewise.extender import wire_format
from nodewise.extender.wire_format import CandidateRequest
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import node_index

READER = wire_format.RequestDecoder(merge("Pod"))
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


class ReasonedVerdict(NamedTuple):
    why: str
    is_failure = False

    def text(self) -> str:
        return self.why

    def remedy(self) -> str:
        return ""


def survives(body: bytes) -> None:
    with contextlib.suppress(BadInput):
        READER.decode_candidates(body, NodeIndex(["a", "b"]))
    with contextlib.suppress(BadInput):
        READER.decode_preemption(body)


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


@example(['",', ""], [])
@example(["a\\", "b"], ["b"])
@given(st.lists(st.text(), unique=True), st.lists(st.text(max_size=3), max_size=3))
def test_names_go_through_as_they_came(names: list[str], more: list[str]) -> None:
    body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": names}, ensure_ascii=True).encode()
    for known in (more, names[1:] + more, names + more):
        try:
            request = READER.decode_candidates(body, NodeIndex(known))
        except BadInput:
            assert any("\ud800" <= char <= "\udfff" for name in names for char in name)
            return
        decision = Decision("filter", PodRef("", ""), 0.0, 1, request.names)
        assert json.loads(b"".join(wire_format.filter_response(request, decision)))["NodeNames"] == names
        assert [
            priority["Host"] for priority in json.loads(b"".join(wire_format.prioritize_response(decision)))
        ] == names


ALIKE = st.text('ab-.é\\"', max_size=20)


SHORT_BYTES = st.sampled_from([0, 2**13])
"""Up to which length a list is looked up in a dict."""


@given(st.lists(ALIKE, min_size=1, unique=True), st.lists(ALIKE), SHORT_BYTES, st.data())
def test_a_name_table_finds_the_same_entries_as_a_dict(
    known: list[str], others: list[str], short_bytes: int, data: st.DataObject
) -> None:
    index = NodeIndex(known)
    names = data.draw(st.lists(st.sampled_from(known + others)))
    listed = msgspec.json.encode(names)
    with mock.patch.object(node_index, "_SHORT_BYTES", short_bytes):
        candidates = index.read(listed)
    assert candidates.numbers.tolist() == index.numbers(names).tolist()
    assert candidates.tolist() == names
    if (
        index.table is not None
        and not set(names) - set(known)
        and not any('"' in n or "\\" in n for n in names)
    ):
        assert index.table.read(listed) is not None
    assert index.read(json.dumps(names).encode()).tolist() == names


@given(
    st.lists(st.text("ab-é[]: ", max_size=12), min_size=1, unique=True),
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 2), st.text('[]", \0\n\\ab', max_size=2)), max_size=2
    ),
    st.booleans(),
    SHORT_BYTES,
    st.data(),
)
def test_a_name_table_finds_only_the_names_that_a_json_decoder_reads(
    known: list[str],
    changes: list[tuple[int, int, str]],
    spaced: bool,
    short_bytes: int,
    data: st.DataObject,
) -> None:
    index = NodeIndex(known)
    names = data.draw(st.lists(st.sampled_from(known), max_size=9))
    listed = json.dumps(names, ensure_ascii=False, separators=None if spaced else (",", ":"))
    for position, removed, put in changes:
        at = position % len(listed)
        listed = (listed[:at] + put + listed[at + removed :]) or "["
    with mock.patch.multiple(node_index, _PART_BYTES=24, _SHORT_BYTES=short_bytes):
        candidates = index.find(listed.encode())
    if candidates is not None:
        assert candidates.tolist() == json.loads(listed)


@given(st.lists(ALIKE, unique=True, min_size=1), st.data())
def test_responses_have_the_decision_of_each_name(names: list[str], data: st.DataObject) -> None:
    whys = data.draw(st.lists(st.text(), min_size=1, max_size=3))
    some = st.lists(st.integers(0, len(whys)), min_size=len(names), max_size=len(names))
    codes, points = data.draw(some), [number % 11 for number in range(len(names))]
    verdict = Verdict(np.array(codes, np.int16), tuple(ReasonedVerdict(why) for why in whys))
    request = CandidateRequest(None, NodeIndex(["zz", *names]).named(names), None)
    decision = Decision(
        "filter", PodRef("", ""), 0.0, 1, request.names, (("t", verdict),), (("t", Scores(np.array(points))),)
    )
    response_body = json.loads(b"".join(wire_format.filter_response(request, decision)))
    assert response_body["NodeNames"] == [name for name, code in zip(names, codes, strict=True) if not code]
    assert response_body["FailedNodes"] == {
        name: whys[code - 1] for name, code in zip(names, codes, strict=True) if code
    }
    liked = json.loads(b"".join(wire_format.prioritize_response(decision)))
    assert [(priority["Host"], priority["Score"]) for priority in liked] == list(
        zip(names, points, strict=True)
    )
