"""Node labels with verdicts: which value each node has, which policies have a label, and agreement with `decide`."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from nodewise import cooperative_scheduling
from nodewise.agents.telemetry import node_labels, verdict_labels
from nodewise.agents.telemetry.placement_policy import (
    AvoidRule,
    Comparison,
    Enforcement,
    Policy,
    PolicyKey,
    PolicyKind,
    unusable_rule,
)
from nodewise.agents.telemetry.verdict_labels import LabelledPolicy, VerdictLabels, label_key
from nodewise.metrics.node_index import NodeIndex

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


def labels_for(
    policies: Iterable[LabelledPolicy],
    required_ok: frozenset[tuple[str, str]] = frozenset(),
) -> VerdictLabels:
    return cooperative_scheduling.run_without_pauses(
        verdict_labels.verdict_labels(policies, len(NODES) + 1, required_ok)
    )


def labels_of(
    *policies: LabelledPolicy,
    required_ok: frozenset[tuple[str, str]] = frozenset(),
    held: frozenset[str] = frozenset(),
    owned: dict[str, dict[str, str]] | None = None,
) -> dict[str, dict[str, str]]:
    """The labels of each node."""
    labels = labels_for(policies, required_ok)
    return cooperative_scheduling.run_without_pauses(
        node_labels.desired_labels(labels.columns, NODES, owned or {}, held)
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
    assert labels_of(labelled, required_ok=frozenset([("web", A)])) == {
        name: {A: "ok"} for name in ("n1", "n2", "n3")
    }


def test_no_pod_requires_ok_of_a_policy_that_is_only_preferred() -> None:
    labelled = policy("a", AvoidRule((REJECT,)), rejected="2", enforcement="Preferred")
    assert labels_of(labelled) == {"n2": {A: "violating"}}
    assert labels_of(labelled, required_ok=frozenset([("web", A)]))["n1"] == {A: "ok"}, (
        "pods from before an edit"
    )


def test_pods_that_were_created_before_an_edit_keep_their_label() -> None:
    """The policy rejected nodes without a value when a waiting pod was created, and accepts them now."""
    labelled = policy("a", rejected="2")
    assert labels_of(labelled, required_ok=frozenset([("web", A)])) == {
        "n1": {A: "ok"},
        "n2": {A: "violating"},
        "n3": {A: "ok"},
    }


def test_pods_of_another_namespace_cause_no_labels() -> None:
    """A pod can name the key of any policy in its affinity."""
    required = frozenset([("db", A), ("", A)])
    assert labels_of(policy("a", rejected="2"), required_ok=required) == {"n2": {A: "violating"}}
    assert labels_of(policy("a")._replace(codes=None), required_ok=required) == {}
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


@pytest.mark.parametrize(
    ("kind", "namespace", "limit"), [("PlacementPolicy", "web", 10), ("ClusterPlacementPolicy", "", 20)]
)
def test_the_oldest_policies_have_labels(kind: PolicyKind, namespace: str, limit: int) -> None:
    newest_first = [
        policy(str(number), kind=kind, namespace=namespace, created=f"2026-01-01T00:00:{59 - number}Z")
        for number in range(limit + 2)
    ]
    other = policy("other", namespace="db", created="2026-02-01T00:00:00Z")
    labels = labels_for([*newest_first, other])
    assert labels.columns.keys() == {label_key(str(n)) for n in range(2, limit + 2)} | {label_key("other")}
    assert labels.excess.keys() == {"0", "1"}
    where = f"namespace {namespace}" if namespace else "the cluster"
    assert labels.excess["1"] == (
        f"native mode does not enforce it: it is policy {limit + 1} of {where} that avoids nodes, at most {limit}"
        " have a node label, and older policies come first"
    )


def test_kinds_of_a_namespace_share_its_labels_and_policies_without_rules_need_none() -> None:
    named = [policy(f"t{number}", kind="TASPolicy") for number in range(6)]
    selecting = [policy(f"p{number}") for number in range(6)]
    ranking = policy("ranking", created="2025-01-01T00:00:00Z")._replace(codes=None)
    labels = labels_for([ranking, *named, *selecting])
    assert (len(labels.columns), len(labels.excess)) == (10, 2)


def test_a_policy_is_labelled_when_no_write_is_pending() -> None:
    assert verdict_labels.is_labelled(policy("a"), frozenset(["other"]))
    assert not verdict_labels.is_labelled(policy("a"), frozenset([A]))
    assert not verdict_labels.is_labelled(policy("a"), None)
    assert not verdict_labels.is_labelled(policy("a", awaits_metrics=True), frozenset())


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
