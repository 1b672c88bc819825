"""The output of `nodewise explain` for people."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from nodewise.agent import Scores, Verdict
from nodewise.cli.explain import explanation as explanations
from nodewise.cli.explain import rendering
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import NativeState, PodReadResult, PodState
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.engine import scheduling_attempt_explanation
from nodewise.engine.decision import Decision
from nodewise.engine.decision_json import DecisionPage, StaticDetails, StaticReason
from nodewise.engine.scheduling_attempt_explanation import Attempt
from tests.unit.engine.decision_notation import (
    AT,
    ShareDetails,
    decision,
    evidence,
    of,
    policies_verdict,
    prioritize_decision,
    verdict,
)
from tests.unit.engine.test_scheduling_attempt_explanation import scored

WAITS = PodState("u", "2026-11-21T09:00:00Z", "", "Pending", "default-scheduler", (), ("t/s",))
WAITING = PodReadResult(WAITS)


def create_explanation(
    *calls: Decision | None, lookup: PodReadResult = WAITING, tries: int = 1
) -> PodExplanation:
    page = DecisionPage(
        decisions=[],
        found=3,
        tries=tries,
        since="2026-11-21T09:41:10Z",
        kept=7,
        kept_since="2026-11-21T09:00:00Z",
    )
    responses = [ReplicaResponse("http://one", page)]
    return PodExplanation(
        "d/p", lookup, responses, scheduling_attempt_explanation.explain(Attempt(*calls)), AT + 12.3
    )


def printed_lines(
    capsys: pytest.CaptureFixture[str], pod_story: PodExplanation, form: str = "text", *, nodes: bool = False
) -> list[str]:
    rendering.PRINTERS[form](pod_story, every_node=nodes)
    return capsys.readouterr().out.splitlines()


def on_node(node: str) -> PodReadResult:
    return PodReadResult(WAITS._replace(node=node))


def gpu_decision(*texts: str, codes: str) -> Decision:
    """A filter decision of the gpu agent, with the details of each node and the rejected nodes."""
    rejected = np.array(codes.split(), np.int16)
    details = StaticDetails(texts, np.where(rejected > 0, 0.5, 1.0))
    return of(("gpu", Verdict(rejected, (StaticReason("will not fit: too little memory"),), details=details)))


def test_gpu_details_and_missing_memory_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    filtered = gpu_decision("card0 has 3G left, 5G wanted", "train: card1", "", codes="1 0 1")
    bound = msgspec.structs.replace(of(nodes="n2", verb="bind"), description="train: card1")
    assert printed_lines(capsys, create_explanation(filtered, None, None, bound))[3:] == [
        "NODE  SCORE  MEASURED  DETAILS                       REJECTED",
        "n2    -      -         train: card1                  -",
        "n1    -      -         card0 has 3G left, 5G wanted  will not fit: too little memory",
        "n3    -      -         -                             will not fit: too little memory",
        "",
        "kube-scheduler chose n2; bound, with train: card1",
    ]
    wide = printed_lines(capsys, create_explanation(filtered), "wide")
    assert (
        "n1    rejected  -      will not fit: too little memory; card0 has 3G left, 5G wanted  -" in wide[5]
    )


def test_group_lists_the_nodes_closest_to_passing(capsys: pytest.CaptureFixture[str]) -> None:
    (agent, verdict), *_ = gpu_decision(*[f"lacks {n}" for n in range(30)], codes="1 " * 30).verdicts
    assert verdict.details is not None
    far = StaticDetails([verdict.details.text(n) for n in range(30)], np.arange(30)[::-1] / 30)
    output = "\n".join(printed_lines(capsys, create_explanation(of((agent, replace(verdict, details=far))))))
    assert "will not fit: too little memory  n30: lacks 29; n29: lacks 28; n28: lacks 27; …" in output


def test_a_bind_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    refused = ("gpu", Verdict(np.ones(1, np.int16), (StaticReason("will not fit"),)))
    output = printed_lines(
        capsys, create_explanation(gpu_decision("a: card0", codes="0"), None, None, of(refused, verb="bind"))
    )
    assert "kube-scheduler chose n1, and the bind failed: will not fit" in output


def test_a_pod_that_waits(capsys: pytest.CaptureFixture[str]) -> None:
    state = PodReadResult(WAITS._replace(message="0/3 nodes are available"))
    assert printed_lines(capsys, create_explanation(decision(heat="81.5 95 -"), lookup=state, tries=14)) == [
        "d/p waits: 1 of the 3 nodes asked about passes",
        "last attempt 2026-11-21T10:00:00Z, 12s ago; 14 attempts since 2026-11-21T09:41:10Z",
        "kube-scheduler: 0/3 nodes are available",
        "",
        "NODE  SCORE  MEASURED              REJECTED",
        "n3    -      heat missing          -",
        "n1    -      heat 81.5 (2.5s old)  policy d/pol: heat GreaterThan 80",
        "n2    -      heat 95 (2.5s old)    policy d/pol: heat GreaterThan 80",
        "",
        "What would have changed it:",
        "  heat GreaterThan: 1 more node passes at 81.5 instead of 80, 2 at 95",
    ]


def test_the_message_of_kube_scheduler_is_printed_once_for_a_pod_of_native_mode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = PodReadResult(
        WAITS._replace(message="0/3 nodes are available"),
        native=NativeState(gated=True, requirements=(), not_covering=()),
    )
    decided = printed_lines(capsys, create_explanation(decision(heat="95"), lookup=state))
    undecided = printed_lines(capsys, PodExplanation("d/p", state, (), None, AT))
    for lines in (decided, undecided):
        assert lines.count("kube-scheduler: 0/3 nodes are available") == 1


def test_every_rule_in_rows_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    rank = replace(evidence("power", "300"), target=None, operator="LessThan")
    output = printed_lines(
        capsys, create_explanation(decision(heat="81.5 70"), scored({"n2": 10}, rank)), "wide"
    )
    assert output[3:6] == [
        "NODE  VERDICT   SCORE  RULE                    VALUE  AGE   REJECTS",
        "n2    passes    10     heat GreaterThan 80     70     2.5s  no",
        "                       power LessThan (ranks)  300    2.5s  -",
    ]
    assert output[6].split() == ["n1", "rejected", "-", "heat", "GreaterThan", "80", "81.5", "2.5s", "yes"]


MANY = decision(heat=" ".join(str(60 + number) for number in range(50)))


def test_many_nodes_are_grouped_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed_lines(capsys, create_explanation(MANY, scored({"n1": 10})))
    assert output[3].split() == ["NODES", "VERDICT", "BEST,", "OR", "CLOSEST", "TO", "PASSING"]
    assert output[4].startswith("21     pass ")
    assert "n1: score 10, heat 60 (2.5s old); n2: heat 61 (2.5s old); n3: heat 62 (2.5s old); …" in output[4]
    assert output[5].startswith(
        "29     policy d/pol: heat GreaterThan 80  n22: heat 81 (2.5s old); n23: heat 82"
    )
    expected = "  heat GreaterThan: 1 more node passes at 81 instead of 80, 10 at 90, 15 at 95, 29 at 110"
    assert output[-1] == expected


@pytest.mark.parametrize("form", ["text", "wide"])
def test_nodes_flag_lists_all_nodes(capsys: pytest.CaptureFixture[str], form: str) -> None:
    output = printed_lines(capsys, create_explanation(MANY), form, nodes=True)
    assert sum(line.startswith("n") for line in output) == 50


def test_wide_output_lists_the_best_and_the_closest_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed_lines(capsys, create_explanation(MANY), "wide")
    names = [line.split()[0] for line in output if line.startswith("n")]
    assert names == [f"n{number}" for number in (*range(1, 11), *range(22, 32))]
    assert "30 more nodes: --nodes shows all" in output


def failed_decision() -> Decision:
    plain = verdict(evidence("heat", "1 1 1", rejects_missing=False), joined=None)
    reasons = (
        StaticReason("nodewise: policy d/pol does not exist", failure=True, advice="create TASPolicy d/pol"),
    )
    return of(("t", replace(plain, codes=plain.codes + 1, reasons=reasons, evidence=())))


@pytest.mark.parametrize("form", ["text", "wide"])
def test_failure_of_all_nodes_is_one_line(capsys: pytest.CaptureFixture[str], form: str) -> None:
    output = printed_lines(capsys, create_explanation(failed_decision()), form)
    assert output[0] == "d/p waits: none of the 3 nodes asked about passes"
    assert output[4].startswith("3      nodewise: policy d/pol does not exist")
    assert output[-1] == "  create TASPolicy d/pol (3 nodes)"
    assert len([line for line in output if "does not exist" in line]) == 1


REMARKS = [
    pytest.param(on_node("n1"), {"n1": 10, "n2": 9}, "n1 passes and has the best score, 10", id="the best"),
    pytest.param(
        on_node("n2"),
        {"n1": 10, "n2": 9},
        "n2 passes with the score 9, others have up to 10",
        id="not the best",
    ),
    pytest.param(on_node("n1"), None, "n1 passes; it has no score", id="not scored"),
    pytest.param(on_node("n3"), None, "n3 was rejected and the pod is there all the same", id="rejected"),
    pytest.param(on_node("x"), None, "kube-scheduler did not ask about x then", id="not asked about"),
    pytest.param(
        PodReadResult(WAITS._replace(uid="new")),
        None,
        "this attempt was about an earlier pod",
        id="another pod",
    ),
]


@pytest.mark.parametrize(("lookup", "points", "expected"), REMARKS)
def test_why_the_pod_is_where_it_is(
    capsys: pytest.CaptureFixture[str], lookup: PodReadResult, points: dict[str, int] | None, expected: str
) -> None:
    calls = [decision(heat="70 71 90"), scored(points) if points else None]
    assert expected in printed_lines(capsys, create_explanation(*calls, lookup=lookup))[2]


PLACES = [
    pytest.param(
        PodReadResult(None), "d/p at its last attempt: all of the 2 nodes asked about pass", id="unknown"
    ),
    pytest.param(
        PodReadResult(None, gone=True),
        "d/p does not exist any more: all of the 2 nodes asked about pass",
        id="gone",
    ),
    pytest.param(on_node("n1"), "d/p is on n1: all of the 2 nodes asked about pass", id="on a node"),
]


@pytest.mark.parametrize(("lookup", "expected"), PLACES)
def test_where_it_is(capsys: pytest.CaptureFixture[str], lookup: PodReadResult, expected: str) -> None:
    assert printed_lines(capsys, create_explanation(decision(heat="70 71"), lookup=lookup))[0] == expected


def test_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    expected = "d/p waits: the one node asked about passes"
    assert printed_lines(capsys, create_explanation(decision(heat="70")))[0] == expected


def test_missing_pod_is_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    missing = PodReadResult(None, gone=True, missing='pod d/pp does not exist; did you mean "p"?')
    expected = ['pod d/pp does not exist; did you mean "p"?', "  0 replicas asked, none has a decision"]
    assert printed_lines(capsys, PodExplanation("d/pp", missing, (), None, 0.0)) == expected


def test_allocated_devices_are_shown_without_a_decision(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = on_node("n1")
    assert lookup.state is not None
    lookup = lookup._replace(state=lookup.state._replace(devices=("gpu: gpu-3, gpu-4",)))
    output = printed_lines(capsys, PodExplanation("d/p", lookup, (), None, 0.0))
    assert "  kube-scheduler allocated devices gpu: gpu-3, gpu-4" in output


def test_pod_that_waits_for_conditions_of_its_devices(capsys: pytest.CaptureFixture[str]) -> None:
    lookup = on_node("")
    assert lookup.state is not None
    waiting = lookup.state._replace(devices=("nic: f-1",), binding_conditions=("attached",))
    output = printed_lines(
        capsys, create_explanation(decision(heat="70 71"), lookup=lookup._replace(state=waiting))
    )
    expected = (
        "kube-scheduler allocated devices nic: f-1, and binds the pod when they have the condition attached"
    )
    assert expected in output


COOL, WIDE = "placement policy d/cool", "cluster placement policy wide"


def test_two_policies_that_together_reject_every_node(capsys: pytest.CaptureFixture[str]) -> None:
    verdict_ = policies_verdict(
        (COOL, [evidence("heat", "85 85 70", "above 80")]), (WIDE, [evidence("dust", "1 90 90", "above 80")])
    )
    output = printed_lines(capsys, create_explanation(of(("telemetry", verdict_))))
    assert output == [
        "d/p waits: none of the 3 nodes asked about passes",
        "last attempt 2026-11-21T10:00:00Z, 12s ago",
        "placement policy d/cool rejects 2 of the 3 nodes",
        "cluster placement policy wide rejects 2 of the 3 nodes",
        "no policy alone rejects every node",
        "",
        "NODE  SCORE  MEASURED                                REJECTED",
        "n1    -      heat 85 (2.5s old), dust 1 (2.5s old)   placement policy d/cool rejects it",
        "n3    -      heat 70 (2.5s old), dust 90 (2.5s old)  cluster placement policy wide rejects it",
        "n2    -      heat 85 (2.5s old), dust 90 (2.5s old)  placement policy d/cool rejects it",
        "",
        "What would have changed it:",
        "  heat above in placement policy d/cool: 1 more node passes at 85 instead of 80",
        "  dust above in cluster placement policy wide: 1 more node passes at 90 instead of 80",
        "  without placement policy d/cool: 1 more node passes",
        "  without cluster placement policy wide: 1 more node passes",
        "  1 node would need more than one of these changes",
    ]


POLICY_LINES = [
    pytest.param("85 90", "rejects all of the 2 nodes", id="all"),
    pytest.param("70 70", "rejects none of the 2 nodes", id="none"),
    pytest.param("85", "rejects it", id="the only one"),
    pytest.param("70", "does not reject it", id="not the only one"),
]


@pytest.mark.parametrize(("values", "expected"), POLICY_LINES)
def test_every_policy_of_the_pod_is_named(
    capsys: pytest.CaptureFixture[str], values: str, expected: str
) -> None:
    cool = policies_verdict((COOL, [evidence("heat", values, "above 80")]))
    output = printed_lines(capsys, create_explanation(of(("telemetry", cool))))
    assert output[2] == f"{COOL} {expected}"
    assert not any("without" in line or "alone" in line for line in output)


def test_a_policy_that_is_not_enforced_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    late = policies_verdict(
        (COOL, [evidence("heat", "85 70", "above 80")]),
        not_enforced={"placement policy d/late": "51 policies in namespace d, at most 50 are enforced"},
    )
    output = printed_lines(capsys, create_explanation(of(("telemetry", late))))
    assert output[3] == (
        "placement policy d/late selects the pod and is not enforced: 51 policies in namespace d, at most 50 are "
        "enforced"
    )


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([True, False], "1 node: n1"), ([False, False], "0 nodes")],
)
def test_a_policy_that_only_observes_is_named(
    capsys: pytest.CaptureFixture[str], mask: list[bool], expected: str
) -> None:
    trial = policies_verdict(
        (COOL, [evidence("heat", "85 70", "above 80")]), observing={"placement policy d/trial": mask}
    )
    output = printed_lines(capsys, create_explanation(of(("telemetry", trial))))
    assert (
        output[3]
        == f"placement policy d/trial only observes the pod (its mode or guard): would have rejected {expected}"
    )


def test_a_preference_has_an_order_and_a_weight(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [
        replace(evidence("power", "300", "below 0"), target=None, policy=COOL, weight=2.0),
        replace(evidence("free", "300", "above 0"), target=None, policy=COOL),
    ]
    output = "\n".join(
        printed_lines(capsys, create_explanation(decision(heat="70"), scored({"n1": 10}, *ranks)), "wide")
    )
    assert f"{COOL} ranks the nodes and rejects none" in output
    assert "power Ascending (ranks, weight 2)" in output
    assert "free Descending (ranks)" in output


ENDINGS = [
    pytest.param(
        of(("t", policies_verdict((COOL, [evidence("heat", "- 70", "above 80", rejects_missing=True)])))),
        ["heat: 1 more node passes with whenMissing: Allow in the rule"],
        id="without a value, of a placement policy",
    ),
    pytest.param(
        of(("t", verdict(evidence("disk", "2 2 1", "Equals 2")))),
        ["without the rule disk Equals 2: 2 more nodes pass"],
        id="equal to a number",
    ),
    pytest.param(
        of(("t", verdict(evidence("heat", "- 70", rejects_missing=True)))),
        ["heat: 1 more node passes with when_missing: pass in the rule"],
        id="without a value",
    ),
    pytest.param(
        of(("t", verdict(evidence("heat", "85 85"), evidence("dust", "90 90")))),
        ["2 nodes would need more than one of these changes"],
        id="several rules",
    ),
    pytest.param(
        of(
            (
                "t",
                verdict(evidence("heat", "85"), evidence("dust", "90"), joined="all", advice="one is enough"),
            )
        ),
        [
            "heat GreaterThan: 1 more node passes at 85 instead of 80",
            "dust GreaterThan: 1 more node passes at 90 instead of 80",
            "one is enough (1 node)",
        ],
        id="all of several rules",
    ),
    pytest.param(
        of(("t", replace(verdict(evidence("heat", "85 85")), evidence=(evidence("heat", "- -"),)))),
        ["a rule lost most of its values at once, and its last verdicts stay in effect: restore its metric"],
        id="held",
    ),
]


@pytest.mark.parametrize(("attempt", "expected"), ENDINGS)
def test_changes_that_let_more_nodes_pass(
    capsys: pytest.CaptureFixture[str], attempt: Decision, expected: list[str]
) -> None:
    output = printed_lines(capsys, create_explanation(attempt))
    assert output[output.index("What would have changed it:") + 1 :] == [f"  {line}" for line in expected]


def test_pods_that_could_be_evicted(capsys: pytest.CaptureFixture[str]) -> None:
    preempted = create_explanation(decision(heat="90 90"), None, decision(heat="90 70"))
    assert "of 2 nodes where pods could be evicted for it, 1 would pass then" in printed_lines(
        capsys, preempted
    )


def test_document_of_an_attempt() -> None:
    document = explanations.explanation_document(
        create_explanation(decision(heat="81.5 70"), scored({"n2": 10}))
    )
    attempt = document["attempt"]
    assert (document["pod"], document["tries"], document["why_none"]) == ("d/p", 1, None)
    assert (attempt["asked"], attempt["passing"], attempt["calls"]) == (2, 1, ["filter", "prioritize"])
    expected = [("n2", True, 10), ("n1", False, None)]
    assert [(node["node"], node["passes"], node["score"]) for node in attempt["nodes"]] == expected
    assert attempt["groups"][0]["nodes"] == ["n1"]
    assert [(float(relaxed["target"]), relaxed["nodes"]) for relaxed in attempt["changes"][0]["more"]] == [
        (81.5, 1)
    ]


def test_the_document_lists_nodes_where_evictions_do_not_help() -> None:
    """Reasons with equal texts are one group."""
    reasons = (
        StaticReason("gpu: full"),
        StaticReason("gpu: full", unresolvable=True),
        StaticReason("gpu: other"),
    )
    verdict = Verdict(np.array([1, 2, 3], np.int16), reasons)
    attempt = explanations.explanation_document(create_explanation(of(("gpu", verdict), nodes="a b c")))[
        "attempt"
    ]
    actual = {group["reason"]: (group["nodes"], group["unresolvable"]) for group in attempt["groups"]}
    assert actual == {"gpu: full": (["a", "b"], ["b"]), "gpu: other": (["c"], [])}


def test_parts_and_numbers_of_scores_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    filtered = of(
        (
            "a",
            Verdict(
                np.array([0, 1], np.int16), (StaticReason("a: no"),), details=ShareDetails((0.5, 0.1235))
            ),
        ),
        nodes="n1 n2",
    )
    score = prioritize_decision(
        ("a", Scores(np.array([9]), details=ShareDetails((0.25,)), label="first")),
        ("b", Scores(np.array([4]), label="second", weight=2.5)),
        nodes="n1",
    )
    assert printed_lines(capsys, create_explanation(filtered, score))[3:] == [
        "NODE  SCORE  MADE OF                 MEASURED  DETAILS       REJECTED",
        "n1    5      first 9, second 4 x2.5  -         share 0.25    -",
        "n2    -      -                       -         share 0.1235  a: no",
    ]
    rows = [
        line.split("  ") for line in printed_lines(capsys, create_explanation(filtered, score), "wide")[4:]
    ]
    assert [[cell.strip() for cell in row if cell][:4] for row in rows] == [
        ["n1", "passes", "5", "share 0.25"],
        ["first 9, second 4 x2.5", "-", "-", "-"],
        ["a rank=0; a cpu share=0.25 cores=0,1", "-", "-", "-"],
        ["n2", "rejected", "-", "a: no; share 0.1235"],
        ["a rank=1; a cpu share=0.1235 cores=0,1", "-", "-", "-"],
    ]
    [node, other] = explanations.explanation_document(create_explanation(filtered, score))["attempt"]["nodes"]
    assert node["parts"] == {"first": {"weight": 1.0, "score": 9}, "second": {"weight": 2.5, "score": 4}}
    assert node["numbers"]["a"]["cpu"]["share"] == 0.25
    assert "parts" not in other
