# ruff: noqa: E501 - the rows of a table
"""The wire format: decoded requests, and responses byte for byte where kube-scheduler reads them."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from nodewise.agent import Names, NodeIndex, Scores, Verdict
from nodewise.base.errors import BadInput
from nodewise.engine.decision import Decision, PodRef
from nodewise.extender import wire_format
from nodewise.extender.wire_format import CandidateRequest, MetaVictims, PreemptionRequest
from nodewise.kube.struct_type_merge import merge

READER = wire_format.RequestDecoder(merge("Pod"))


class _Status(msgspec.Struct, frozen=True):
    allocatable: dict[str, str] | None = None


class _NodeFields(msgspec.Struct, frozen=True):
    status: _Status = _Status()


NODES: Any = wire_format.NodeDecoder(merge("Node", _NodeFields))
POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u1"}}


def body(**fields: Any) -> bytes:
    return json.dumps({"Pod": POD} | fields).encode()


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}} | more


def read(request: bytes, known: str = "a b") -> CandidateRequest[Any]:
    return READER.decode_candidates(request, NodeIndex(known.split()))


class TestReading:
    def test_names(self) -> None:
        candidacy = read(body(Nodes=None, NodeNames=["b", "a"]))
        expected = (["b", "a"], None, "p")
        assert (list(candidacy.names), candidacy.nodes, candidacy.pod.metadata.name) == expected

    def test_names_as_go_writes_them(self) -> None:
        candidacy = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["b","a"]}')
        assert candidacy.names.numbers.tolist() == [1, 0]

    def test_names_of_nodes_that_are_not_known(self) -> None:
        candidacy = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["b","x","a"]}')
        assert (list(candidacy.names), candidacy.names.numbers.tolist()) == (["b", "x", "a"], [1, 2, 0])

    def test_whole_nodes_keep_their_bytes(self) -> None:
        raw = b'{"metadata": {"name":"a", "x": "<&>"},  "spec":{"unknownField":1}}'
        candidacy = read(b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[' + raw + b"]}}")
        assert list(candidacy.names) == ["a"]
        assert candidacy.nodes is not None
        assert bytes(candidacy.nodes[0]) == raw

    @pytest.mark.parametrize(
        ("raw", "name"),
        [
            (b'{"metadata":{"name":"a","uid":"u"},"spec":{"x":"\xc3\xbc"}}', "a"),
            (b'{"metadata":{"name":"%b"}}' % (b"n" * 300), "n" * 300),
            (b'{"metadata":{"name":"a\\u0062"}}', "ab"),
            (b'{"metadata":{"name":"\xc3\xbc"}}', "ü"),
            (b'{"metadata":{"namespace":"","name":"a"}}', "a"),
            (b'{"kind":"Node","metadata":{"name":"a"}}', "a"),
        ],
    )
    def test_names_of_whole_nodes(self, raw: bytes, name: str) -> None:
        candidacy = read(b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[' + raw + b"]}}")
        assert list(candidacy.names) == [name]

    @pytest.mark.parametrize("items", [[], None])
    def test_no_nodes_are_no_error(self, items: Any) -> None:
        assert list(read(body(Nodes={"items": items})).names) == []

    def test_keys_in_other_case_are_read_as_go_reads_them(self) -> None:
        text = json.dumps({"pod": POD, "nodes": {"ITEMS": [node("a")]}}).encode()
        assert list(read(text).names) == ["a"]

    def test_bytes_after_the_value_are_not_read(self) -> None:
        assert list(read(body(NodeNames=["a"]) + b" trailing").names) == ["a"]

    def test_of_two_equal_keys_the_last_counts(self) -> None:
        candidacy = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a"],"NodeNames":["b"]}')
        assert list(candidacy.names) == ["b"]

    def test_victims_by_uid(self) -> None:
        victims = {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 2}}
        read = READER.decode_preemption(body(NodeNameToVictims=None, NodeNameToMetaVictims=victims))
        assert msgspec.to_builtins(read.victims) == victims

    def test_whole_victims_become_uids(self) -> None:
        victims = {"a": {"Pods": [{"metadata": {"uid": "v"}, "spec": {}}]}, "b": None}
        read = READER.decode_preemption(body(NodeNameToVictims=victims))
        assert msgspec.to_builtins(read.victims) == {
            "a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0},
            "b": {"Pods": [], "NumPDBViolations": 0},
        }


DEEP = b"[" * 200_000
BAD = {
    "no JSON": (b"garbage", "body"),
    "nothing": (b"", "body"),
    "cut off": (body(NodeNames=["a"])[:-4], "body"),
    "an array": (b"[]", "body"),
    "null": (b"null", "body"),
    "an empty object": (b"{}", "Pod"),
    "no pod": (json.dumps({"Pod": None, "NodeNames": ["a"]}).encode(), "Pod"),
    "a pod that is text": (json.dumps({"Pod": "p", "NodeNames": []}).encode(), "Pod"),
    "a name that is a number": (body(NodeNames=["a", 3]), "NodeNames[1]"),
    "neither nodes nor names": (body(), "Nodes"),
    "both null": (body(Nodes=None, NodeNames=None), "Nodes"),
    "a node without a name": (body(Nodes={"items": [node("a"), {"metadata": {}}]}), "Nodes.items[1].metadata"),
    "a node that is text": (body(Nodes={"items": ["a"]}), "Nodes.items[0]"),
    "labels that are a list": (json.dumps({"Pod": {"metadata": {"name": 7}}, "NodeNames": []}).encode(), "Pod.metadata.name"),
    "deep nesting": (b'{"Pod":' + DEEP, "Pod"),
    "deep nesting in what nobody reads": (b'{"Pod":{"spec":' + DEEP + b"]" * 200_000 + b'},"NodeNames":[]}', "body"),
    "bytes that are no UTF-8": (b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":[]}', "body"),
}  # fmt: skip


@pytest.mark.parametrize(("request_body", "field"), BAD.values(), ids=BAD)
def test_bad_input_names_the_field(request_body: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(request_body)
    assert [problem.field for problem in caught.value.problems] == [field], str(caught.value)


def test_a_preemption_without_victims_is_bad_input() -> None:
    with pytest.raises(BadInput, match="NodeNameToVictims: null or absent"):
        READER.decode_preemption(body())


class TextReason(NamedTuple):
    why: str
    is_unresolvable: bool = False
    is_failure = False

    def text(self) -> str:
        return self.why


def _reason(text: str) -> TextReason:
    """A reason; `!` at the beginning of its text: no eviction helps."""
    return TextReason(text.removeprefix("!"), text.startswith("!"))


def decision(names: str, verdicts: Any = (), scores: Any = ()) -> Decision:
    listed = Names.of(names.split())
    return Decision(
        "filter",
        PodRef("d", "p"),
        0.0,
        1,
        listed,
        tuple(
            (agent, Verdict(np.array(codes, np.int16), tuple(map(_reason, whys))))
            for agent, codes, whys in verdicts
        ),
        tuple((agent, Scores(np.array(points))) for agent, points in scores),
    )


NAMES: Any = CandidateRequest(None, Names.of([]), None)


def filtered(request: Any, answer: Decision) -> bytes:
    return b"".join(wire_format.filter_response(request, answer))


class TestAnswers:
    def test_names_for_names(self) -> None:
        response = filtered(NAMES, decision("a b", [("t", [0, 1], ["hot"])]))
        assert response.replace(b" ", b"") == (
            b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"hot"},'
            b'"FailedAndUnresolvableNodes":null,"Error":""}\n'
        )

    def test_no_verdicts_reject_no_node(self) -> None:
        response = filtered(NAMES, decision("a b"))
        assert json.loads(response)["NodeNames"] == ["a", "b"]
        assert json.loads(response)["FailedNodes"] is None

    def test_all_are_rejected(self) -> None:
        response = json.loads(filtered(NAMES, decision("a b", [("t", [2, 1], ["x", 'y "z"'])])))
        assert response["NodeNames"] == []
        assert response["FailedNodes"] == {"a": 'y "z"', "b": "x"}

    def test_whole_nodes_for_whole_nodes(self) -> None:
        raws = [msgspec.Raw(json.dumps(node(name)).encode()) for name in "abc"]
        request = CandidateRequest(None, Names.of(list("abc")), raws)
        response = filtered(request, decision("a b c", [("t", [0, 1, 0], ["x"])]))
        assert json.loads(response)["Nodes"]["items"] == [node("a"), node("c")]
        assert json.loads(response)["NodeNames"] is None
        assert bytes(raws[0]) in response

    def test_the_first_agent_that_rejects_gives_the_reason(self) -> None:
        response = filtered(NAMES, decision("a b", [("t", [1, 0], ["hot"]), ("g", [1, 1], ["full"])]))
        assert json.loads(response)["FailedNodes"] == {"a": "hot", "b": "full"}

    def test_nodes_that_no_eviction_helps_are_in_their_own_map(self) -> None:
        verdicts = [("t", [1, 0, 0, 2], ["!hot", "warm"]), ("g", [1, 1, 2, 2], ["full", "!small"])]
        response = json.loads(filtered(NAMES, decision("a b c d", verdicts)))
        assert response["FailedNodes"] == {"b": "full"}
        # d is resolvable for the first agent, whose reason is shown, and not for the second one
        assert response["FailedAndUnresolvableNodes"] == {"a": "hot", "c": "small", "d": "warm"}

    def test_the_map_of_unresolvable_nodes_is_null_without_any(self) -> None:
        response = json.loads(filtered(NAMES, decision("a b", [("t", [0, 1], ["full"])])))
        assert (response["FailedNodes"], response["FailedAndUnresolvableNodes"]) == ({"b": "full"}, None)

    def test_scores(self) -> None:
        response = b"".join(wire_format.prioritize_response(decision("a b", scores=[("t", [10, 0])])))
        assert response.replace(b" ", b"") == b'[{"Host":"a","Score":10},{"Host":"b","Score":0}]\n'

    def test_scores_of_several_agents_are_averaged(self) -> None:
        scored = decision("a b", scores=[("t", [10, 0]), ("g", [5, 1])])
        response = b"".join(wire_format.prioritize_response(scored))
        assert [score["Score"] for score in json.loads(response)] == [8, 0]

    def test_no_candidates(self) -> None:
        assert b"".join(wire_format.prioritize_response(decision(""))) == b"[]\n"
        assert json.loads(filtered(NAMES, decision("", [("t", [], ["x"])])))["FailedNodes"] == {}

    def test_strange_names_survive(self) -> None:
        strange = ['a","b', "\\", '"', "ü\u2028", ""]
        scored = Decision("prioritize", PodRef("", ""), 0.0, 1, Names.of(strange))
        assert [
            score["Host"] for score in json.loads(b"".join(wire_format.prioritize_response(scored)))
        ] == strange

    def test_preempt_leaves_the_nodes_that_are_kept(self) -> None:
        request: Any = PreemptionRequest(None, {"a": MetaVictims([], 1), "b": MetaVictims()})
        response = wire_format.preempt_response(request, decision("a b", [("t", [0, 1], ["x"])]))
        assert json.loads(response) == {"NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 1}}}


WHOLE = {"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "8"}}}
PADDING = 70_000


def _in_case(
    value: Any, change: Callable[[str], str], keep: frozenset[str] = frozenset({"allocatable"})
) -> Any:
    """The value with keys in another case. Keys below `allocatable` are unchanged, because resources are not fields."""
    if isinstance(value, list):
        return [_in_case(item, change, keep) for item in value]
    if isinstance(value, dict):
        return {
            change(key): item if key in keep else _in_case(item, change, keep) for key, item in value.items()
        }
    return value


SIZES = {"small": 1, "beyond 64 KiB": PADDING}
CASES = {"lower": str.lower, "upper": str.upper, "swapped": str.swapcase, "exact": str}
BODIES = {
    "names": lambda size: {"Pod": POD, "NodeNames": ["a", "n" * size]},
    "whole nodes": lambda size: {"Pod": POD, "Nodes": {"items": [WHOLE, {"metadata": {"name": "n" * size}}]}},
}


class TestSecondReading:
    """Large bodies are decoded like small ones, in bounded time and memory."""

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    @pytest.mark.parametrize("made", BODIES.values(), ids=BODIES)
    @pytest.mark.parametrize("trailing", [b"", b" trailing", b"{}", b"\x00"])
    def test_keys_in_any_case_and_trailing_bytes_are_read(
        self, size: int, case: Callable[[str], str], made: Callable[[int], Any], trailing: bytes
    ) -> None:
        request = json.dumps(_in_case(made(size), case)).encode() + trailing
        expected = read(json.dumps(made(size)).encode())
        candidacy = read(request)
        assert (candidacy.pod, list(candidacy.names)) == (expected.pod, list(expected.names))
        assert list(candidacy.names) == ["a", "n" * size]

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_a_preempt_request_too(self, size: int) -> None:
        fields = {"pod": POD, "nodenametometavictims": {"n" * size: {"Pods": [{"UID": "u"}]}}}
        preemption = READER.decode_preemption(json.dumps(fields).encode() + b" trailing")
        assert preemption.uids() == {"n" * size: frozenset({"u"})}

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_whole_nodes_are_read_in_any_case(self, size: int) -> None:
        nodes = [_in_case(WHOLE, str.upper), {"metadata": {"name": "n" * size}}]
        decoded = NODES.nodes(json.dumps({"NODES": {"ITEMS": nodes}, "POD": POD}).encode())
        assert decoded is not None
        assert [node.metadata.name for node in decoded] == ["a", "n" * size]
        assert decoded[0].status.allocatable == {"cpu": "8"}

    @pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)], ids=["at the limit", "beyond it"])
    def test_the_longest_body(self, monkeypatch: pytest.MonkeyPatch, more: int, is_read: bool) -> None:
        request = json.dumps({"pod": POD, "nodeNames": ["n" * PADDING]}).encode()
        monkeypatch.setattr(wire_format, "MOST_BYTES", len(request) - more)
        _is_read_or_refused(request, "body", is_read)

    @pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)], ids=["at the limit", "beyond it"])
    def test_the_most_values(self, monkeypatch: pytest.MonkeyPatch, more: int, is_read: bool) -> None:
        request = json.dumps({"pod": POD, "nodeNames": ["a"] * 2**18}).encode()
        monkeypatch.setattr(wire_format, "MOST_VALUES", request.count(b",") - more)
        _is_read_or_refused(request, "body", is_read)

    @pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)], ids=["at the limit", "beyond it"])
    def test_the_most_whole_nodes_in_other_case(self, more: int, is_read: bool) -> None:
        nodes = [{"Metadata": {"Name": "a"}}] * (wire_format.MOST_NODES + more)
        request = json.dumps({"Pod": POD, "Nodes": {"items": nodes}}).encode()
        _is_read_or_refused(request, "Nodes.items", is_read)
        if not is_read:
            with pytest.raises(BadInput, match="16385 nodes without"):
                NODES.nodes(request)

    def test_an_object_of_many_keys_stays_as_it_is(self) -> None:
        fields = {f"key-{number}": 0 for number in range(wire_format.MOST_KEYS)} | {
            "pod": POD,
            "nodeNames": ["a"],
        }
        with pytest.raises(BadInput, match="Pod: null or absent"):
            read(json.dumps(fields).encode())

    def test_a_sidecar_is_one_in_any_case(self) -> None:
        spec = {"InitContainers": [{"Name": "log", "RestartPolicy": "Always"}]}
        request = json.dumps({"pod": {"metadata": {"name": "p"}, "spec": spec}}).encode()
        renamed = wire_format.normalize_request_json(request)
        assert renamed is not None
        (container,) = json.loads(renamed)["Pod"]["spec"]["initContainers"]
        assert container == {"name": "log", "restartPolicy": "Always"}

    def test_lists_in_lists_are_not_copied_level_by_level(self) -> None:
        levels = 300
        nested = b"[" * levels + b'"' + b"x" * 2**16 + b'"' + b"]" * levels
        request = b'{"pod":{"metadata":{"name":"p"},"spec":{"containers":' + nested + b"}}}"
        tracemalloc.start()
        try:
            wire_format.normalize_request_json(request)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 20 * len(request)

    def test_many_values_and_trailing_bytes_are_looked_at_as_without_these(self) -> None:
        request = _filled(b'"x":[', b"0,", 2**21, b'0],"NodeNames":["a"]}') + b" trailing"
        assert list(read(request).names) == ["a"]


def _is_read_or_refused(request: bytes, field: str, is_read: bool) -> None:
    if is_read:
        assert len(read(request).names)
        return
    with pytest.raises(BadInput) as caught:
        read(request)
    assert [problem.field for problem in caught.value.problems] == [field]


def _filled(before: bytes, unit: bytes, times: int, after: bytes) -> bytes:
    return b'{"Pod":{"metadata":{"name":"p"}},' + before + unit * times + after


LARGE = {
    "values that nobody reads": (_filled(b'"x":[', b"0,", 2**21, b"0]}"), "body"),
    "names": (_filled(b'"NodeNames":[', b'"",', 2**21, b'""]}'), "NodeNames"),
    "what is no name": (_filled(b'"NodeNames":[', b"0,", 2**21 + 1, b"0]}"), "NodeNames"),
    "nodes": (_filled(b'"Nodes":{"items":[', b'{"metadata":{"name":"a"}},', 2**21, b'{"metadata":{"name":"a"}}]}}'), "Nodes.items"),
    "what is no node": (_filled(b'"Nodes":{"items":[', b"0,", 2**21, b"0]}}"), "Nodes.items[0]"),
    "somewhat fewer names": (_filled(b'"NodeNames":[', b'"",', 2**18, b'""]}'), "NodeNames"),
    "somewhat fewer nodes": (_filled(b'"Nodes":{"items":[', b'{"metadata":{"name":"a"}},', 2**18, b'{"metadata":{"name":"a"}}]}}'), "Nodes.items"),
    "a pod": (_filled(b'"NodeNames":[],"Pod":{"metadata":{"name":"p","labels":{', b'"a":"",', 2**21, b'"b":""}}}}'), "Pod"),
}  # fmt: skip


@pytest.mark.parametrize(("request_body", "field"), LARGE.values(), ids=LARGE)
def test_more_than_any_cluster_has_is_refused_before_it_is_built(request_body: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(request_body)
    assert [problem.field for problem in caught.value.problems] == [field], str(caught.value)


def test_more_victims_than_any_cluster_has_are_refused() -> None:
    with pytest.raises(BadInput, match="body: 4194305 values; expected at most 4194304"):
        READER.decode_preemption(_filled(b'"NodeNameToMetaVictims":{"a":{"Pods":[', b"{},", 2**22, b"{}]}}}"))


class TestBinding:
    GIVEN = b'{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"a"}\n'

    def test_the_pod_and_its_node(self) -> None:
        args = wire_format.decode_binding(self.GIVEN)
        assert (args.pod_namespace, args.pod_name, args.pod_uid, args.node) == ("d", "p", "u", "a")

    def test_keys_in_other_case_and_trailing_bytes_are_read_as_go_reads_them(self) -> None:
        assert wire_format.decode_binding(self.GIVEN.lower() + b"x") == wire_format.decode_binding(self.GIVEN)

    def test_all_that_is_missing_is_named(self) -> None:
        with pytest.raises(BadInput) as caught:
            wire_format.decode_binding(b'{"PodName":"p","PodUID":""}')
        assert [problem.field for problem in caught.value.problems] == ["PodNamespace", "PodUID", "Node"]

    @pytest.mark.parametrize("request_body", [b"", b"foo", b"[]", b'{"PodName":1}', b"\xff", b"[" * 10**6])
    def test_an_invalid_request_is_bad_input(self, request_body: bytes) -> None:
        with pytest.raises(BadInput):
            wire_format.decode_binding(request_body)

    @pytest.mark.parametrize("error", ["", "will not fit", 'pod "p" not found'])
    def test_the_answer_as_go_reads_it(self, error: str) -> None:
        answer = wire_format.bind_response(error)
        assert json.loads(answer) == {"Error": error}
        assert answer.endswith(b"\n")


class TestNamesThatAreNotDecoded:
    """A list of known names at the end of a request is compared with the index, not decoded."""

    @pytest.mark.parametrize(
        "body",
        [
            '{"Pod":{"metadata":{"name":"p"}},"x\\"NodeNames":["a","b"]}',
            '{"Pod":{"metadata":{"name":"p","NodeNames":["a","b"]}',
            '{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a"],"NodeNames":["a","b"]',
            '{"Pod":{"metadata":{"name":"p"}} "NodeNames":["a","b"]}',
            '{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a",]}',
        ],
    )
    def test_lists_elsewhere_are_refused(self, body: str) -> None:
        with pytest.raises(BadInput):
            READER.decode_candidates(body.encode(), NodeIndex(["a", "b"]))

    @pytest.mark.parametrize(
        ("body", "names"),
        [
            ('{"Pod":{"metadata":{"name":"p"},"NodeNames":["a"]},"NodeNames":["b"]}', ["b"]),
            ('{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a"],"NodeNames":["b"]}', ["b"]),
            ('{"NodeNames":["b"],"Pod":{"metadata":{"name":"p"}},"Other":["a"]}', ["b"]),
            ('{"Pod":{"metadata":{"name":"\\"NodeNames\\":[\\"a\\"]}"}},"NodeNames":["b","a"]}', ["b", "a"]),
            ('{"Pod":{"metadata":{"name":"p"}}, "NodeNames": ["b", "c"]}', ["b", "c"]),
            ('{"Pod":{"metadata":{"name":"p"}},"NodeNames":  ["b"],"\\"NodeNames":["a"]}', ["b"]),
        ],
    )
    def test_the_last_list_of_the_request_counts(self, body: str, names: list[str]) -> None:
        request = READER.decode_candidates(body.encode(), NodeIndex(["a", "b"]))
        assert request.names.tolist() == names

    def test_too_many_known_names_are_refused_before_they_take_memory(self) -> None:
        listed = _filled(b'"Pod":{"metadata":{"name":"p"}},"NodeNames":[', b'"a",', 2**23, b'"a"]}')
        index = NodeIndex(["a"])
        index.prepare()
        tracemalloc.start()
        try:
            with pytest.raises(BadInput) as caught:
                READER.decode_candidates(listed, index)
            most_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [problem.field for problem in caught.value.problems] == ["NodeNames"]
        assert most_bytes < 2 * len(listed)
