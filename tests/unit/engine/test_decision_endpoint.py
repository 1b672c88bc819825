"""`GET /decisions`, and decoding its response."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from nodewise.agent import Names, Scores, Verdict, is_unresolvable
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise.engine import decision_json
from nodewise.engine.decision import Decision, DecisionRing, PodRef
from nodewise.engine.decision_json import StaticReason
from tests.unit.engine import decision_notation


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
    assert [(rule.policy, rule.group, rule.weight) for rule in verdict.evidence] == [
        ("placement policy d/cool", 0, 1.0),
        ("cluster placement policy wide", -1, 1.0),
    ]
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
