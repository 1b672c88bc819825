"""Node labels with verdicts: which value each node has, which policies have a label, and agreement with `decide`."""

import itertools

import msgspec
import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.metrics.node_index import NodeIndex
from nodewise.policies import node_labels, verdict_labels
from nodewise.policies.placement_policy import (
    AvoidRule,
    Comparison,
    Enforcement,
    Policy,
    PolicyKey,
    PolicyKind,
    unusable_rule,
)
from nodewise.policies.verdict_labels import LabelledPolicy, label_key

NODES = NodeIndex(["n1", "n2", "n3"])
ALLOW = Comparison("temp", "above", 80)
REJECT = Comparison("temp", "above", 80, when_missing="reject")


def policy(
    uid: str,
    *rules: AvoidRule,
    kind: PolicyKind = "PlacementPolicy",
    namespace: str = "web",
    created: str = "2026-01-01T00:00:00Z",
    rejected: str = "",
    awaits_metrics: bool = False,
    enforcement: Enforcement = "Required",
) -> LabelledPolicy:
    """A policy that rejects the nodes whose numbers are in `rejected`."""
    codes = np.array([name[1:] in rejected for name in ("n1", "n2", "n3", "n?")], np.int16)
    key, avoid = PolicyKey(kind, namespace, uid), rules or (AvoidRule((ALLOW,)),)
    made = Policy(key, created, avoid=avoid, enforcement=enforcement, uid=uid)
    return LabelledPolicy(made, codes, awaits_metrics)


def labels_of(
    *policies: LabelledPolicy,
    required_ok: frozenset[tuple[str, str]] = frozenset(),
    accepting: frozenset[str] = frozenset(),
    held: frozenset[str] = frozenset(),
    owned: dict[str, dict[str, str]] | None = None,
) -> dict[str, dict[str, str]]:
    """The labels of each node."""
    columns = cooperative_scheduling.run_without_pauses(
        verdict_labels.verdict_labels(policies, len(NODES) + 1, required_ok, accepting)
    )
    return cooperative_scheduling.run_without_pauses(
        node_labels.desired_labels(columns, NODES, owned or {}, held)
    )


A = label_key("a")


@pytest.mark.parametrize(
    ("rules", "has_ok"),
    [
        ([AvoidRule((ALLOW,))], False),
        ([AvoidRule((REJECT,))], True),
        ([AvoidRule((ALLOW,)), AvoidRule((REJECT,))], True),
        ([AvoidRule((ALLOW, REJECT))], False),
        ([AvoidRule((REJECT, REJECT))], True),
        ([unusable_rule("it cannot be read")], False),
    ],
)
def test_accepted_nodes_are_ok_only_where_pods_require_it(rules: list[AvoidRule], has_ok: bool) -> None:
    ok = {A: "ok"}
    expected = {"n2": {A: "violating"}} | ({"n1": ok, "n3": ok} if has_ok else {})
    assert labels_of(policy("a", *rules, rejected="2")) == expected


def test_a_policy_that_rejects_no_node_now_lets_pods_pass_that_were_created_before() -> None:
    """Such as a policy that was edited to the mode Shadow."""
    labelled = policy("a")._replace(codes=None)
    assert labels_of(labelled, owned={"n2": {A: "violating"}}) == {}
    assert labels_of(labelled, accepting=frozenset([A])) == {name: {A: "ok"} for name in ("n1", "n2", "n3")}


def test_no_pod_requires_ok_of_a_policy_that_is_only_preferred() -> None:
    labelled = policy("a", AvoidRule((REJECT,)), rejected="2", enforcement="Preferred")
    assert labels_of(labelled) == {"n2": {A: "violating"}}
    assert labels_of(labelled, required_ok=frozenset([("web", A)]))["n1"] == {A: "ok"}, (
        "pods from before an edit"
    )


def test_pods_that_were_created_before_an_edit_keep_their_label() -> None:
    """The policy rejected nodes without a value when a waiting pod was created, and accepts them now."""
    labelled = policy("a", rejected="2")
    expected = {"n1": {A: "ok"}, "n2": {A: "violating"}, "n3": {A: "ok"}}
    assert labels_of(labelled, required_ok=frozenset([("web", A)])) == expected


def test_pods_of_another_namespace_cause_no_labels() -> None:
    """A pod can name the key of any policy in its affinity."""
    required = frozenset([("db", A), ("", A)])
    assert labels_of(policy("a", rejected="2"), required_ok=required) == {"n2": {A: "violating"}}
    of_cluster = policy("a", kind="ClusterPlacementPolicy", namespace="", rejected="23")
    assert labels_of(of_cluster, required_ok=required)["n1"] == {A: "ok"}


@pytest.mark.parametrize("awaited", [True, False])
def test_labels_stay_until_metrics_have_been_fetched_after_a_start(awaited: bool) -> None:
    """Until then, the verdict rejects every node."""
    owned = {"n1": {A: "violating"}}
    labelled = policy("a", rejected="123", awaits_metrics=awaited)
    every = {name: {A: "violating"} for name in ("n1", "n2", "n3")}
    assert labels_of(labelled, owned=owned) == (owned if awaited else every)


def test_labels_of_a_deleted_policy_stay_for_pods_that_wait() -> None:
    owned = {"n1": {A: "violating"}, "n3": {A: "ok"}}
    assert labels_of(held=frozenset([A]), owned=owned) == owned
    assert labels_of(owned=owned) == {}


def test_a_policy_beyond_the_budget_has_no_label() -> None:
    labelled = policy("a", rejected="2")
    beyond = labelled._replace(policy=msgspec.structs.replace(labelled.policy, no_verdict_label="no space"))
    assert labels_of(beyond, required_ok=frozenset([("web", A)])) == {}


@pytest.mark.parametrize("rejected", ["".join(r) for n in range(4) for r in itertools.combinations("123", n)])
@pytest.mark.parametrize("rule", [ALLOW, REJECT])
@pytest.mark.parametrize("was_strict", [True, False])
def test_a_pods_requirement_selects_the_nodes_that_the_policy_accepts(
    rejected: str, rule: Comparison, was_strict: bool
) -> None:
    """Whatever the policy was when the pod was created."""
    labels = labels_of(
        policy("a", AvoidRule((rule,)), rejected=rejected),
        required_ok=frozenset([("web", A)] if was_strict else []),
    )
    values = {number: labels.get(f"n{number}", {}).get(A) for number in "123"}
    accepted = {n for n, value in values.items() if (value == "ok" if was_strict else value != "violating")}
    assert accepted == set("123") - set(rejected)
