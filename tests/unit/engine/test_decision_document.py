"""Decisions as documents."""

import json

import numpy as np

from nodewise.agent import Evidence, Names, Scores, Verdict
from nodewise.base import cooperative_scheduling
from nodewise.engine import decision_json
from nodewise.engine.decision import Decision, PodRef
from nodewise.engine.decision_json import StaticDetails, StaticReason
from tests.unit.engine import decision_notation
from tests.unit.engine.decision_notation import COUNT, ShareDetails, decision, large, of, prioritize_decision


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
    assert [value["policy"] for value in values[:2]] == [
        "placement policy d/cool",
        "cluster placement policy wide",
    ]


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
