"""`GET /decisions`, and decoding its response."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from nodewise.agent import Evidence, Names, Scores, Verdict, is_unresolvable
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise.engine import decision_json
from nodewise.engine.decision import Decision, DecisionRing, PodRef
from nodewise.engine.decision_json import StaticDetails, StaticReason
from tests.unit.engine import decision_notation
from tests.unit.engine.decision_notation import COUNT, ShareDetails, decision, large, of, prioritize_decision


def body(ring: DecisionRing, **query: str) -> bytes:
    return cooperative_scheduling.run_without_pauses(decision_json.encode_page(ring, query))


def ring_of(*kept: Decision) -> DecisionRing:
    ring = DecisionRing()
    for item in kept:
        ring.add(item)
    return ring


def same(first: Decision, other: Decision) -> bool:
    """Whether two decisions have equal encodings and details."""
    return all(
        cooperative_scheduling.run_without_pauses(encode(first))
        == cooperative_scheduling.run_without_pauses(encode(other))
        for encode in (decision_json.encode_decision, decision_json.encode_arrays)
    )


SCORED = Decision(
    "prioritize",
    PodRef("d", "p", "u"),
    5.25,
    1,
    Names.of(["a", "b"]),
    scores=(
        ("telemetry", Scores(np.array([10, 0]), (replace(decision_notation.evidence("power", "3 -"), target=None),))),
    ),
)  # fmt: skip


DETAILED = decision_notation.decision(heat="81 70")
DETAILED = msgspec.structs.replace(
    DETAILED,
    verdicts=tuple(
        (
            agent,
            replace(
                verdict, details=decision_json.StaticDetails(["card0 is full", ""], np.array([0.25, 1.0]))
            ),
        )
        for agent, verdict in DETAILED.verdicts
    ),
)


POLICIES = decision_notation.of(
    (
        "telemetry",
        decision_notation.policies_verdict(
            ("placement policy d/cool", [decision_notation.evidence("heat", "81 70", "above 80", group=0)]),
            ("cluster placement policy wide", [decision_notation.evidence("dust", "1 2", "atLeast 2")]),
            not_enforced={"placement policy d/late": "51 policies, at most 50 are enforced"},
            observing={"placement policy d/trial": [False, True]},
        ),
    )
)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(POLICIES, id="several policies"),
        pytest.param(DETAILED, id="details"),
        pytest.param(decision_notation.decision(heat="81 70 - ! 90~"), id="every state"),
        pytest.param(
            decision_notation.decision(heat="81500m 1n 100E"), id="beyond 64 bits, and the smallest"
        ),
        pytest.param(SCORED, id="scores"),
        pytest.param(decision_notation.of(nodes="a b"), id="nobody has an opinion"),
        pytest.param(decision_notation.large(), id="many nodes"),
    ],
)
def test_decoded_decisions_equal_the_encoded_ones(written: Decision) -> None:
    _, listed = decision_json.decode_page(body(ring_of(written), form="arrays"))
    assert same(listed[0], written)
    assert listed[0].at == written.at
    assert [details.distances().tolist() for _, details in listed[0].details()] == [
        details.distances().tolist() for _, details in written.details()
    ]
    assert [verdict.joined for _, verdict in listed[0].verdicts] == [v.joined for _, v in written.verdicts]


def test_policies_are_read_back() -> None:
    _, (read,) = decision_json.decode_page(body(ring_of(POLICIES), form="arrays"))
    ((_, written),), ((_, verdict),) = POLICIES.verdicts, read.verdicts
    expected = [("placement policy d/cool", 0, 1.0), ("cluster placement policy wide", -1, 1.0)]
    assert [(rule.policy, rule.group, rule.weight) for rule in verdict.evidence] == expected
    assert [
        (part.policy, part.rejected.tolist(), part.joined, part.not_enforced) for part in verdict.policies
    ] == [(part.policy, part.rejected.tolist(), part.joined, part.not_enforced) for part in written.policies]


def test_a_decision_of_a_version_without_policies_is_read() -> None:
    older = (
        b'{"at":5.0,"verb":"filter","namespace":"d","pod":"p","uid":"u","view":1,"nodes":["a","b"],"verdicts":[{'
        b'"agent":"telemetry","joined":"all","codes":[1,0],"reasons":[{"words":"no","failure":false,"advice":""}],'
        b'"rules":[{"metric":"heat","operator":"GreaterThan","target_nano":80,"rejects_missing":false,'
        b'"values_nano":[81,70],"states":["fresh","fresh"],"ages_s":[2.5,null]}],"details":null}],"scores":[],'
        b'"told":""}'
    )
    read = decision_json.decode_arrays(older)
    ((_, verdict),) = read.verdicts
    assert (verdict.policies, verdict.evidence[0].policy, verdict.evidence[0].group) == ((), "", -1)
    # without policies, an older reader gets what it knows
    assert cooperative_scheduling.run_without_pauses(decision_json.encode_arrays(read)) == older


def test_a_reason_keeps_whether_evictions_can_cure_it() -> None:
    reasons = (
        StaticReason("full"),
        StaticReason("small", unresolvable=True),
        StaticReason("hot", failure=True),
    )
    verdict = Verdict(np.array([1, 2, 3, 0], np.int16), reasons)
    decision = Decision("filter", PodRef("d", "p"), 5.0, 1, Names.of(list("abcd")), (("gpu", verdict),))
    encoded = cooperative_scheduling.run_without_pauses(decision_json.encode_arrays(decision))
    read = decision_json.decode_arrays(encoded)
    assert read.unresolvable().tolist() == [False, True, False, False]
    assert encoded.count(b"unresolvable") == 1
    assert [is_unresolvable(reason) for reason in read.verdicts[0][1].reasons] == [False, True, False]


def at(seconds: float, name: str = "p", verb: Any = "filter") -> Decision:
    return Decision(verb, PodRef("d", name), seconds, 1, Names.of(["n"]))


def test_the_newest_decisions_come_first_with_counts() -> None:
    ring = ring_of(at(0, "other"), at(10), at(11, verb="prioritize"), at(20), at(30))
    page, listed = decision_json.decode_page(body(ring, namespace="d", pod="p", limit="2", form="arrays"))
    assert [item.at for item in listed] == [30, 20]
    assert (page.found, page.tries, page.since) == (4, 3, "1970-01-01T00:00:10Z")
    assert (page.kept, page.kept_since) == (5, "1970-01-01T00:00:00Z")


def test_a_page_ends_where_it_grows_large() -> None:
    ring = ring_of(*[decision_notation.large()] * 20)
    page, listed = decision_json.decode_page(body(ring, form="arrays"))
    assert 3 < len(listed) < 20 == page.found
    assert 1 <= len(json.loads(body(ring))["decisions"]) < 5


def test_nothing_is_kept() -> None:
    page = json.loads(body(DecisionRing(), pod="p"))
    assert page == {"decisions": [], "found": 0, "tries": 0, "since": None, "kept": 0, "kept_since": None}


def test_words_are_the_usual_form() -> None:
    page = json.loads(body(ring_of(decision_notation.decision(heat="81 70"))))
    assert page["decisions"][0]["feasible"] == ["n2"]


@pytest.mark.parametrize("limit", ["0", "x", "1001", "-1", "1.5", "", "²", "9" * 5000])
def test_a_limit_that_cannot_be_used(limit: str) -> None:
    with pytest.raises(BadInput, match="limit"):
        body(DecisionRing(), limit=limit)


def test_every_problem_of_a_query_is_named() -> None:
    with pytest.raises(BadInput, match=r"limit.*form.*words or arrays"):
        body(DecisionRing(), limit="0", form="poem")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"decisions"', b'"verdicts"', id="another form"),
        pytest.param(b'"codes":[1,0]', b'"codes":[1]', id="too few codes"),
        pytest.param(b'"codes":[1,0]', b'"codes":[1,2]', id="a code without a reason"),
        pytest.param(b'"states":["fresh"', b'"states":["frozen"', id="an unknown state"),
        pytest.param(b'"ages_s":[2.5', b'"ages_s":["old"', id="an age that is none"),
        pytest.param(b'"rejected":[true,false]', b'"rejected":[true]', id="too few nodes of a policy"),
        pytest.param(b"{", b"<", id="no JSON"),
    ],
)
def test_responses_of_another_form_are_rejected(old: bytes, new: bytes) -> None:
    page = body(ring_of(decision_notation.decision(heat="81 70"), POLICIES), form="arrays")
    assert old in page
    with pytest.raises(BadInput, match="decisions"):
        decision_json.decode_page(page.replace(old, new))


def words(answer: Decision) -> dict[str, object]:
    document: dict[str, object] = json.loads(
        cooperative_scheduling.run_without_pauses(decision_json.encode_decision(answer))
    )
    return document


def test_a_filter_answer() -> None:
    document = words(decision(heat="81 70 -"))
    assert list(document) == ["time", "verb", "pod", "uid", "view", "feasible", "rejected", "values"]
    assert document["time"] == "2026-11-21T10:00:00Z"
    assert document["feasible"] == ["n2", "n3"]
    assert document["rejected"] == {
        "n1": [{"agent": "telemetry", "reason": "policy d/pol: heat GreaterThan 80"}]
    }
    values = document["values"]
    assert isinstance(values, list)
    assert values[0] == {
        "node": "n1",
        "metric": "heat",
        "value": 81,
        "target": 80,
        "operator": "GreaterThan",
        "state": "fresh",
        "age_s": 2.5,
    }
    assert (values[2]["value"], values[2]["state"], values[2]["age_s"]) == (None, "missing", None)


def test_a_node_that_is_named_twice_is_one_member_of_each_object() -> None:
    details = StaticDetails(["full", "full"], np.zeros(2), [{"free": 0}, {"free": 0}])
    verdict = Verdict(np.ones(2, np.int16), (StaticReason("full"),), details=details)
    twice = Decision("filter", PodRef("d", "p", "u"), 0.0, 1, Names.of(["a", "a"]), (("gpu", verdict),))
    text = cooperative_scheduling.run_without_pauses(decision_json.encode_decision(twice))
    keys: list[str] = []
    json.loads(text, object_pairs_hook=lambda pairs: keys.extend(key for key, _ in pairs))
    assert keys.count("a") == 3


def test_policies_are_named_with_the_nodes_that_each_rejects() -> None:
    verdict = decision_notation.policies_verdict(
        ("placement policy d/cool", [decision_notation.evidence("heat", "81 70 90", "above 80")]),
        ("cluster placement policy wide", [decision_notation.evidence("dust", "1 2 3", "atLeast 3")]),
        not_enforced={"placement policy d/late": "51 policies"},
    )
    document = words(of(("telemetry", verdict)))
    assert document["policies"] == {
        "placement policy d/cool": {"agent": "telemetry", "rejected": ["n1", "n3"]},
        "cluster placement policy wide": {"agent": "telemetry", "rejected": ["n3"]},
        "placement policy d/late": {"agent": "telemetry", "rejected": [], "not_enforced": "51 policies"},
    }
    values = document["values"]
    assert isinstance(values, list)
    expected = ["placement policy d/cool", "cluster placement policy wide"]
    assert [value["policy"] for value in values[:2]] == expected


def test_a_prioritize_answer() -> None:
    ref, names = PodRef("d", "p", "u"), Names.of(["a", "b"])
    scored = Decision("prioritize", ref, 0.0, 1, names, scores=(("t", Scores(np.array([10, 9]))),))
    assert words(scored)["scores"] == {"a": 10, "b": 9}


def test_parts_add_up_to_the_whole_document() -> None:
    document = words(large())
    assert document["rejected"] == decision_json.rejection_reasons(large())
    assert json.dumps(document["values"]) == decision_json.encode_document(
        decision_json.measured_values(large())
    ).decode().replace(":", ": ").replace(",", ", ")
    assert len(list(decision_json.encode_decision(large()))) > COUNT / 100


def test_a_decision_without_an_opinion() -> None:
    plain = Decision("filter", PodRef("d", "p"), 0.0, 1, Names.of(["a"]))
    document = words(plain)
    assert (document["feasible"], document["rejected"], document["values"]) == (["a"], {}, [])


def test_no_failure_without_a_failed_agent() -> None:
    assert decision_json.failure_text(decision(heat="81 70 -")) is None


def test_values_without_a_target() -> None:
    rule = Evidence("m", "LessThan", None, np.array([5]), np.array([0], np.uint8), np.array([np.nan]))
    filtered = decision_notation.of(("t", Verdict(np.array([0], np.int16), (), (rule,))))
    assert decision_json.measured_values(filtered)[0]["target"] is None


def test_details_are_by_node_and_agent() -> None:
    lacks, gets = StaticDetails(["lacks 2", ""], np.ones(2)), StaticDetails(["c: card1"], np.ones(1))
    filtered = decision_notation.of(
        ("gpu", Verdict(np.array([1, 0], np.int16), (StaticReason("full"),), details=lacks))
    )
    assert words(filtered)["details"] == {"n1": {"gpu": "lacks 2"}}
    scores = (("gpu", Scores(np.array([10]), details=gets)),)
    scored = Decision("prioritize", PodRef("d", "p"), 1.0, 1, Names.of(["n2"]), scores=scores)
    document = decision_json.pod_document(filtered, scored, ["gpu"])
    assert document["details"] == {"n1": {"gpu": "lacks 2"}, "n2": {"gpu": "c: card1"}}
    assert filtered.size_bytes() >= decision_notation.of(nodes="n1 n2").size_bytes() + lacks.nbytes


NUMBERS = {"cpu": {"share": 0.5, "limit": None, "cores": [0, 1]}, "rank": 0}


def test_numbers_are_by_agent_and_node() -> None:
    details = ShareDetails((0.5, -1.0, float("nan")))
    rejected = of(("a", Verdict(np.array([0, 1, 0], np.int16), (StaticReason("no"),), details=details)))
    nan = {"cpu": NUMBERS["cpu"] | {"share": None}, "rank": 2}  # type: ignore[operator]
    assert words(rejected)["numbers"] == {"a": {"n1": NUMBERS, "n3": nan}}
    assert decision_json.numbers_by_agent(rejected) == words(rejected)["numbers"]


def test_many_numbers_are_made_in_parts() -> None:
    many = ShareDetails((0.5,) * COUNT)
    scored = prioritize_decision(
        ("a", Scores(np.zeros(COUNT, np.int64), details=many)), nodes=" ".join(map(str, range(COUNT)))
    )
    numbers = words(scored)["numbers"]
    assert numbers == decision_json.numbers_by_agent(scored)
    assert len(numbers["a"]) == COUNT  # type: ignore[index]
    assert len(list(decision_json.encode_decision(scored))) > COUNT / 10


def test_a_pods_numbers_are_those_of_filter_and_score() -> None:
    filtered = of(
        ("a", Verdict(np.array([0, 1], np.int16), (StaticReason("no"),), details=ShareDetails((0.5, 0.5)))),
        nodes="n1 n2",
    )
    scored = prioritize_decision(
        ("a", Scores(np.array([3]), details=ShareDetails((0.25,)))),
        ("b", Scores(np.array([9]), details=ShareDetails((0.5,)), label="rank", weight=3.0)),
        nodes="n1",
    )
    document = json.loads(
        decision_json.encode_document(decision_json.pod_document(filtered, scored, ["a", "b"]))
    )
    assert document["numbers"]["a"]["n1"]["cpu"]["share"] == 0.25
    assert document["numbers"]["a"]["n2"]["cpu"]["share"] == 0.5
    assert document["numbers"]["b"] == {"n1": NUMBERS}
    assert document["parts"] == {
        "a": {"agent": "a", "weight": 1.0, "scores": {"n1": 3}},
        "rank": {"agent": "b", "weight": 3.0, "scores": {"n1": 9}},
    }
    assert document["details"]["n1"] == {"a": "share 0.25", "b": "share 0.5"}


def test_a_score_that_is_all_there_is_has_no_parts_and_no_numbers() -> None:
    document = words(prioritize_decision(("t", Scores(np.array([3, 4])))))
    assert document.keys().isdisjoint({"parts", "numbers"})
    named = words(prioritize_decision(("t", Scores(np.array([3, 4]), label="load"))))
    assert named["parts"] == {"load": {"agent": "t", "weight": 1.0, "scores": {"n1": 3, "n2": 4}}}


def test_numbers_survive_encoding_as_arrays() -> None:
    scored = prioritize_decision(
        ("a", Scores(np.array([3, 4]), details=ShareDetails((0.5, -1.0)), label="l", weight=2.5))
    )
    again = decision_json.decode_arrays(
        cooperative_scheduling.run_without_pauses(decision_json.encode_arrays(scored))
    )
    assert decision_json.numbers_by_agent(again) == decision_json.numbers_by_agent(scored)
    assert decision_json.score_parts(again) == decision_json.score_parts(scored)
    plain = prioritize_decision(
        ("a", Scores(np.array([3, 4]), details=StaticDetails(["x", ""], np.zeros(2))))
    )
    once = cooperative_scheduling.run_without_pauses(decision_json.encode_arrays(plain))
    assert (
        cooperative_scheduling.run_without_pauses(
            decision_json.encode_arrays(decision_json.decode_arrays(once))
        )
        == once
    )
    assert decision_json.numbers_by_agent(decision_json.decode_arrays(once)) == {}
