# ruff: noqa: E501 - the rows of a table
"""Requests and answers, byte for byte where kube-scheduler looks."""

import json
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from nodewise import turns
from nodewise.agent import Names, NodeIndex, Scores, Verdict
from nodewise.errors import BadInput
from nodewise.extender import wire
from nodewise.extender.decision import Decision, PodRef
from nodewise.extender.wire import Candidacy, MetaVictims, Preemption
from nodewise.kube.fields import merge

READER = wire.Reader(merge("Pod"))
POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u1"}}


def body(**fields: Any) -> bytes:
    return json.dumps({"Pod": POD} | fields).encode()


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}} | more


def read(given: bytes, known: str = "a b") -> Candidacy[Any]:
    return turns.result(READER.candidacy(given, NodeIndex(known.split())))


class TestReading:
    def test_names(self) -> None:
        found = read(body(Nodes=None, NodeNames=["b", "a"]))
        assert (list(found.names), found.nodes, found.pod.metadata.name) == (["b", "a"], None, "p")

    def test_names_as_go_writes_them(self) -> None:
        found = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["b","a"]}')
        assert found.names.numbers.tolist() == [1, 0]

    def test_names_of_nodes_that_are_not_known(self) -> None:
        found = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["b","x","a"]}')
        assert (list(found.names), found.names.numbers.tolist()) == (["b", "x", "a"], [1, 2, 0])

    def test_whole_nodes_keep_their_bytes(self) -> None:
        raw = b'{"metadata": {"name":"a", "x": "<&>"},  "spec":{"unknownField":1}}'
        found = read(b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[' + raw + b"]}}")
        assert list(found.names) == ["a"]
        assert found.nodes is not None
        assert bytes(found.nodes[0]) == raw

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
        found = read(b'{"Pod":{"metadata":{"name":"p"}},"Nodes":{"items":[' + raw + b"]}}")
        assert list(found.names) == [name]

    @pytest.mark.parametrize("items", [[], None])
    def test_no_nodes_are_no_error(self, items: Any) -> None:
        assert list(read(body(Nodes={"items": items})).names) == []

    def test_keys_in_other_case_are_read_as_go_reads_them(self) -> None:
        text = json.dumps({"pod": POD, "nodes": {"ITEMS": [node("a")]}}).encode()
        assert list(read(text).names) == ["a"]

    def test_bytes_after_the_value_are_not_read(self) -> None:
        assert list(read(body(NodeNames=["a"]) + b" trailing").names) == ["a"]

    def test_of_two_equal_keys_the_last_counts(self) -> None:
        found = read(b'{"Pod":{"metadata":{"name":"p"}},"NodeNames":["a"],"NodeNames":["b"]}')
        assert list(found.names) == ["b"]

    def test_victims_by_uid(self) -> None:
        victims = {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 2}}
        read = READER.preemption(body(NodeNameToVictims=None, NodeNameToMetaVictims=victims))
        assert msgspec.to_builtins(read.victims) == victims

    def test_whole_victims_become_uids(self) -> None:
        victims = {"a": {"Pods": [{"metadata": {"uid": "v"}, "spec": {}}]}, "b": None}
        read = READER.preemption(body(NodeNameToVictims=victims))
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


@pytest.mark.parametrize(("given", "field"), BAD.values(), ids=BAD)
def test_bad_input_names_the_field(given: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(given)
    assert [problem.field for problem in caught.value.problems] == [field], str(caught.value)


def test_a_preemption_without_victims_is_bad_input() -> None:
    with pytest.raises(BadInput, match="NodeNameToVictims: null or absent"):
        READER.preemption(body())


class Because(NamedTuple):
    why: str
    is_failure = False

    def text(self) -> str:
        return self.why


def decision(names: str, verdicts: Any = (), scores: Any = ()) -> Decision:
    listed = Names.of(names.split())
    return Decision(
        "filter",
        PodRef("d", "p"),
        0.0,
        1,
        listed,
        tuple(
            (agent, Verdict(np.array(codes, np.int16), tuple(map(Because, whys))))
            for agent, codes, whys in verdicts
        ),
        tuple((agent, Scores(np.array(points))) for agent, points in scores),
    )


NAMES: Any = Candidacy(None, Names.of([]), None)


def filtered(request: Any, given: Decision) -> bytes:
    return b"".join(wire.filter_answer(request, given))


class TestAnswers:
    def test_names_for_names(self) -> None:
        found = filtered(NAMES, decision("a b", [("t", [0, 1], ["hot"])]))
        assert found.replace(b" ", b"") == (
            b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"hot"},'
            b'"FailedAndUnresolvableNodes":null,"Error":""}\n'
        )

    def test_nobody_had_anything_to_say(self) -> None:
        found = filtered(NAMES, decision("a b"))
        assert json.loads(found)["NodeNames"] == ["a", "b"]
        assert json.loads(found)["FailedNodes"] is None

    def test_all_are_rejected(self) -> None:
        found = json.loads(filtered(NAMES, decision("a b", [("t", [2, 1], ["x", 'y "z"'])])))
        assert found["NodeNames"] == []
        assert found["FailedNodes"] == {"a": 'y "z"', "b": "x"}

    def test_whole_nodes_for_whole_nodes(self) -> None:
        raws = [msgspec.Raw(json.dumps(node(name)).encode()) for name in "abc"]
        request = Candidacy(None, Names.of(list("abc")), raws)
        found = filtered(request, decision("a b c", [("t", [0, 1, 0], ["x"])]))
        assert json.loads(found)["Nodes"]["items"] == [node("a"), node("c")]
        assert json.loads(found)["NodeNames"] is None
        assert bytes(raws[0]) in found

    def test_the_first_agent_that_rejects_gives_the_reason(self) -> None:
        found = filtered(NAMES, decision("a b", [("t", [1, 0], ["hot"]), ("g", [1, 1], ["full"])]))
        assert json.loads(found)["FailedNodes"] == {"a": "hot", "b": "full"}

    def test_scores(self) -> None:
        found = wire.prioritize_answer(decision("a b", scores=[("t", [10, 0])]))
        assert found.replace(b" ", b"") == b'[{"Host":"a","Score":10},{"Host":"b","Score":0}]\n'

    def test_scores_of_several_agents_are_averaged(self) -> None:
        found = wire.prioritize_answer(decision("a b", scores=[("t", [10, 0]), ("g", [5, 1])]))
        assert [one["Score"] for one in json.loads(found)] == [8, 0]

    def test_no_candidates(self) -> None:
        assert wire.prioritize_answer(decision("")) == b"[]\n"
        assert json.loads(filtered(NAMES, decision("", [("t", [], ["x"])])))["FailedNodes"] == {}

    def test_strange_names_survive(self) -> None:
        strange = ['a","b', "\\", '"', "ü\u2028", ""]
        given = Decision("prioritize", PodRef("", ""), 0.0, 1, Names.of(strange))
        assert [one["Host"] for one in json.loads(wire.prioritize_answer(given))] == strange

    def test_preempt_leaves_the_nodes_that_are_kept(self) -> None:
        request: Any = Preemption(None, {"a": MetaVictims([], 1), "b": MetaVictims()})
        found = wire.preempt_answer(request, decision("a b", [("t", [0, 1], ["x"])]))
        assert json.loads(found) == {"NodeNameToMetaVictims": {"a": {"Pods": [], "NumPDBViolations": 1}}}


class TestSlowReading:
    """It is for what people write by hand; nobody can make it take long."""

    @pytest.mark.parametrize(
        "given",
        [
            json.dumps({"pod": POD, "nodeNames": ["n" * 70_000]}).encode(),
            body(NodeNames=["n" * 70_000]) + b" trailing",
            json.dumps({"Pod": POD, "Nodes": {"items": [{"Metadata": {"Name": "n" * 70_000}}]}}).encode(),
        ],
        ids=["keys in other case", "trailing bytes", "a node's keys in other case"],
    )
    def test_a_larger_body_is_not_read_slowly(self, given: bytes) -> None:
        with pytest.raises(BadInput):
            read(given)


def _filled(before: bytes, unit: bytes, times: int, after: bytes) -> bytes:
    return b'{"Pod":{"metadata":{"name":"p"}},' + before + unit * times + after


LARGE = {
    "values that nobody reads": (_filled(b'"x":[', b"0,", 2**21, b"0]}"), "Nodes"),
    "names": (_filled(b'"NodeNames":[', b'"",', 2**21, b'""]}'), "NodeNames"),
    "what is no name": (_filled(b'"NodeNames":[', b"0,", 2**21 + 1, b"0]}"), "NodeNames"),
    "nodes": (_filled(b'"Nodes":{"items":[', b'{"metadata":{"name":"a"}},', 2**21, b'{"metadata":{"name":"a"}}]}}'), "Nodes.items"),
    "what is no node": (_filled(b'"Nodes":{"items":[', b"0,", 2**21, b"0]}}"), "Nodes.items[0]"),
    "somewhat fewer names": (_filled(b'"NodeNames":[', b'"",', 2**18, b'""]}'), "NodeNames"),
    "somewhat fewer nodes": (_filled(b'"Nodes":{"items":[', b'{"metadata":{"name":"a"}},', 2**18, b'{"metadata":{"name":"a"}}]}}'), "Nodes.items"),
    "a pod": (_filled(b'"NodeNames":[],"Pod":{"metadata":{"name":"p","labels":{', b'"a":"",', 2**21, b'"b":""}}}}'), "Pod"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "field"), LARGE.values(), ids=LARGE)
def test_more_than_any_cluster_has_is_refused_before_it_is_built(given: bytes, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(given)
    assert [problem.field for problem in caught.value.problems] == [field], str(caught.value)


def test_more_victims_than_any_cluster_has_are_refused() -> None:
    with pytest.raises(BadInput, match="body: 4194305 values; wanted at most 4194304"):
        READER.preemption(_filled(b'"NodeNameToMetaVictims":{"a":{"Pods":[', b"{},", 2**22, b"{}]}}}"))


class TestBinding:
    GIVEN = b'{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"a"}\n'

    def test_the_pod_and_its_node(self) -> None:
        found = wire.binding(self.GIVEN)
        assert (found.pod_namespace, found.pod_name, found.pod_uid, found.node) == ("d", "p", "u", "a")

    def test_keys_in_other_case_and_trailing_bytes_are_read_as_go_reads_them(self) -> None:
        assert wire.binding(self.GIVEN.lower() + b"x") == wire.binding(self.GIVEN)

    def test_all_that_is_missing_is_named(self) -> None:
        with pytest.raises(BadInput) as caught:
            wire.binding(b'{"PodName":"p","PodUID":""}')
        assert [problem.field for problem in caught.value.problems] == ["PodNamespace", "PodUID", "Node"]

    @pytest.mark.parametrize("given", [b"", b"foo", b"[]", b'{"PodName":1}', b"\xff", b"[" * 10**6])
    def test_what_is_no_request_is_bad_input(self, given: bytes) -> None:
        with pytest.raises(BadInput):
            wire.binding(given)

    @pytest.mark.parametrize("error", ["", "will not fit", 'pod "p" not found'])
    def test_the_answer_as_go_reads_it(self, error: str) -> None:
        answer = wire.bind_answer(error)
        assert json.loads(answer) == {"Error": error}
        assert answer.endswith(b"\n")
