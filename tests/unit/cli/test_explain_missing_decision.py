"""Causes of a missing decision, the most likely one first."""

from typing import Any

import pytest

from nodewise.cli.explain import explanation
from nodewise.cli.explain.pod_state import PodReadResult, PodState, SelectingPolicy
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.engine.decision_json import DecisionPage

CREATED = "2026-11-21T10:00:00Z"
BEFORE, AFTER = "2026-11-21T09:00:00Z", "2026-11-21T11:00:00Z"


def state(**fields: Any) -> PodReadResult:
    base = PodState("u", CREATED, "", "Pending", "default-scheduler", (), ("telemetry/scheduling",))
    return PodReadResult(base._replace(**{"policy": "web"} | fields))


def selected(*policies: SelectingPolicy, **fields: Any) -> PodReadResult:
    """A pod that policies select."""
    return state(**{"policy": None} | fields)._replace(policies=policies)


COOL = SelectingPolicy("placement policy web/cool", BEFORE)
NEWER = SelectingPolicy("cluster placement policy wide", AFTER)
LATE = SelectingPolicy("placement policy web/late", BEFORE, "51 policies, at most 50 are enforced")


def response(kept: int = 5, since: str | None = BEFORE) -> ReplicaResponse:
    return ReplicaResponse(
        "http://one",
        DecisionPage(decisions=[], found=0, tries=0, since=None, kept=kept, kept_since=since),
    )


CASES = [
    pytest.param(state(), [response()], ["no scheduler has reported on it"], id="nobody looked yet"),
    pytest.param(
        state(asks=(), policy=None), [response()],
        ["this pod references no policy", "no extended resource", "no scheduler"], id="no policy, no managed resource",
    ),
    pytest.param(
        state(asks=(), policy=None, has_claims=True), [response()],
        ["this pod references no policy", "its ResourceClaims are no extended", "no scheduler"], id="claims only",
    ),
    pytest.param(
        state(node="a"), [response(kept=1, since=AFTER)], ["http://one keeps 1 decision, the"], id="one decision",
    ),
    pytest.param(
        state(asks=(), policy=None)._replace(policies_error="forbidden"), [response()],
        ["no extended resource", "no scheduler"], id="policies are not known",
    ),
    pytest.param(
        state(policy="wbe", node="a")._replace(missing_policy='TASPolicy d/wbe does not exist; did you mean "web"?'),
        [response()], ['names a policy that does not exist: TASPolicy d/wbe does not exist; did you mean "web"?'],
        id="a policy that does not exist",
    ),
    pytest.param(
        state(gates=("quota",), message="gated"),
        [response()], ["scheduling gates (quota)"], id="gated, and nothing else"
    ),
    pytest.param(
        state(scheduler="mine"), [response()], ["its scheduler is mine", "no scheduler"], id="another scheduler"
    ),
    pytest.param(
        state(message="0/3 nodes: Insufficient cpu"), [response()], ["Insufficient cpu"],
        id="its own rules left no node",
    ),
    pytest.param(
        state(asks=(), policy="web", node="a"), [response()], ["add the limit telemetry/scheduling: 1"],
        id="a policy and no request",
    ),
    pytest.param(
        state(misspelt="telemetry-polcy", node="a", policy=None), [response()],
        ["it has the label telemetry-polcy and no label"],
        id="a misspelt label",
    ),
    pytest.param(state(node="a"), [response()], ["has not asked about it"], id="placed without a word"),
    pytest.param(
        selected(NEWER, asks=(), node="a"), [response()],
        ["wide selects it, and it does not request telemetry/scheduling"],
        id="created before the policy",
    ),
    pytest.param(
        selected(COOL, NEWER, asks=(), node="a"), [response()],
        ["placement policy web/cool, cluster placement policy wide select it, and it does not request"],
        id="several policies, and nothing adds the request",
    ),
    pytest.param(
        selected(COOL, asks=(), node="a"), [response()], ["configure manifests extender-pods"],
        id="nothing adds the request",
    ),
    pytest.param(selected(COOL, node="a"), [response()], ["has not asked about it"], id="selected, and requests it"),
    pytest.param(
        selected(LATE, node="a"), [response()],
        ["placement policy web/late selects it and is not enforced: 51 policies, at most 50"],
        id="not enforced",
    ),
    pytest.param(
        state(node="a"), [response(since=AFTER)], ["http://one keeps 5 decisions"], id="the ring is too small"
    ),
    pytest.param(state(node="a"), [response(0, None)], ["decided nothing at all"], id="nobody ever asks"),
    pytest.param(
        state(node="a"),
        [response(), ReplicaResponse("http://two", None, (), "down")],
        ["http://two did not respond"],
        id="the decision may be elsewhere",
    ),
    pytest.param(
        PodReadResult(None, gone=True, missing="namespace wbe does not exist"), [response(since=None)],
        ["no such pod now: namespace wbe does not exist"], id="no such pod",
    ),
    pytest.param(
        PodReadResult(None), [response()], ["kube-scheduler asks only", "http://one keeps"],
        id="nothing is known of the pod",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lookup", "responses", "expected"), CASES)
def test_causes(lookup: PodReadResult, responses: list[ReplicaResponse], expected: list[str]) -> None:
    causes = explanation.find_missing_decision_causes(lookup, responses)
    assert len(causes) == len(expected)
    assert all(words in cause for words, cause in zip(expected, causes, strict=True))


@pytest.mark.parametrize(
    ("lookup", "never"),
    [
        (PodReadResult(None, gone=True), True),
        (PodReadResult(None, error="forbidden"), False),
        (state(policy=None, asks=()), True),
        (state(policy=None, asks=("gpu.intel.com/i915",)), False),
        (state(policy=None, asks=())._replace(policies_error="forbidden"), False),
        (selected(COOL, asks=()), False),
        (state(asks=()), False),
    ],
)
def test_pods_that_no_replica_decides(lookup: PodReadResult, never: bool) -> None:
    assert explanation.is_never_decided(lookup) == never


def test_a_pod_that_was_created_before_the_policy_is_created_again() -> None:
    assert explanation.selection_problem(selected(NEWER, asks=())) == (
        "cluster placement policy wide selects it, and it does not request telemetry/scheduling, so kube-scheduler "
        "does not ask nodewise about it, unless its entry has no managedResources; it is newer than the pod: create "
        "the pod again"
    )


def test_policies_of_the_last_decision_need_no_request() -> None:
    lookup = selected(COOL, NEWER, asks=())
    assert "wide selects it" in explanation.selection_problem(lookup, {COOL.policy})
    assert explanation.selection_problem(lookup, {COOL.policy, NEWER.policy}) == ""
