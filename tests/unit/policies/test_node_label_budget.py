"""The labels of all policies that fit on one node: limits of a namespace, and shares of namespaces."""

import pytest

from nodewise.policies import policy_budgets
from nodewise.policies.placement_policy import (
    AvoidRule,
    Comparison,
    LabelRule,
    Mode,
    Policy,
    PolicyKey,
    PolicyKind,
)
from nodewise.policies.policy_budgets import MAX_NODE_LABEL_BYTES
from nodewise.policies.verdict_labels import label_key

HOT = Comparison("temp", "above", 80)
UID = "00000000-0000-0000-0000-{:012}"
VERDICT_BYTES = policy_budgets.verdict_label_bytes(label_key(UID.format(0)))


def policy(
    number: int,
    namespace: str = "web",
    kind: PolicyKind = "PlacementPolicy",
    created: str = "",
    mode: Mode = "Enforce",
    labels: int = 0,
) -> Policy:
    """A policy that avoids nodes and names `labels` node labels of 1,024 bytes each."""
    rules = (
        LabelRule(
            (HOT,),
            (tuple((f"{namespace}{number}-{label}".ljust(1000, "x"), "v" * 24) for label in range(labels)),),
        ),
    )
    return Policy(
        PolicyKey(kind, namespace, f"p{number}"),
        created or f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
        mode=mode,
        avoid=(AvoidRule((HOT,)),),
        node_labels=rules if labels else (),
        uid=UID.format(number),
    )


def admitted(*policies: Policy, native_mode: bool = True) -> dict[str, list[Policy]]:
    """The policies by namespace, after the budget."""
    by_namespace: dict[str, list[Policy]] = {}
    for each in policies:
        by_namespace.setdefault(each.namespace, []).append(each)
    enforced = policy_budgets.enforce_node_label_budget(by_namespace, native_mode=native_mode)
    return dict(zip(by_namespace, enforced, strict=True))


def labelled_names(policies: list[Policy]) -> list[str]:
    return [each.name for each in policies if not each.no_verdict_label]


@pytest.mark.parametrize(
    ("kind", "namespace", "limit"), [("PlacementPolicy", "web", 10), ("ClusterPlacementPolicy", "", 20)]
)
def test_the_oldest_policies_of_a_namespace_have_labels(kind: PolicyKind, namespace: str, limit: int) -> None:
    policies = [policy(number, namespace, kind) for number in range(limit + 2)]
    result = admitted(*reversed(policies), policy(99, "db"))
    assert sorted(labelled_names(result[namespace])) == sorted(f"p{number}" for number in range(limit))
    assert labelled_names(result["db"]) == ["p99"]
    where = f"namespace {namespace}" if namespace else "the cluster"
    newest = max(result[namespace], key=lambda each: each.created)
    assert newest.no_verdict_label == (
        f"native mode does not enforce it: it is policy {limit + 2} of {where} that avoids nodes, at most {limit}"
        " have a node label, and older policies come first"
    )


def test_kinds_of_a_namespace_share_its_labels_and_policies_without_effect_need_none() -> None:
    policies = [policy(number, kind="TASPolicy" if number % 2 else "PlacementPolicy") for number in range(12)]
    shadows = [policy(number, mode="Shadow", created="2025-01-01T00:00:00Z") for number in range(20, 30)]
    result = admitted(*shadows, *policies)["web"]
    expected = [*(f"p{number}" for number in range(20, 30)), *(f"p{number}" for number in range(10))]
    assert labelled_names(result) == expected


def test_many_namespaces_share_the_bytes_of_a_node_by_turns() -> None:
    """With 150 namespaces of ten policies each, every namespace has its oldest policy enforced."""
    policies = [
        policy(10 * space + number, f"tenant-{space:03}") for space in range(150) for number in range(10)
    ]
    result = admitted(*policies, policy(1, "", "ClusterPlacementPolicy"))
    counts = [len(labelled_names(listed)) for name, listed in result.items() if name]
    assert sum(counts) == MAX_NODE_LABEL_BYTES // VERDICT_BYTES - 1
    assert set(counts) == {1, 2}
    assert counts == sorted(counts, reverse=True), "the older policies come first"
    assert labelled_names(result[""]) == ["p1"], "tenants displace no policy of the cluster"
    refused = result["tenant-149"][1].no_verdict_label
    assert refused == (
        "native mode does not enforce it: it is policy 2 of namespace tenant-149 that avoids nodes, and the 16384 bytes"
        f" per node that namespaces share equally have space for {VERDICT_BYTES} bytes of namespace tenant-149; older"
        " policies come first"
    )


def test_more_namespaces_than_labels_fit_leave_labels_to_the_oldest() -> None:
    policies = [policy(space, f"tenant-{space:03}") for space in range(300)]
    result = admitted(*policies)
    with_label = [name for name, listed in result.items() if labelled_names(listed)]
    assert with_label == [f"tenant-{space:03}" for space in range(MAX_NODE_LABEL_BYTES // VERDICT_BYTES)]


def test_labels_that_policies_name_and_labels_with_verdicts_share_the_bytes() -> None:
    naming = [policy(number, "naming", labels=16) for number in range(3)]
    deciding = [policy(100 + number, "deciding") for number in range(10)]
    result = admitted(*naming, *deciding)
    assert len(labelled_names(result["deciding"])) == 10, "a namespace with small requests gets all of them"
    assert len(labelled_names(result["naming"])) == 3, "verdicts come before labels that policies name"
    everything = [each for listed in result.values() for each in listed]
    assert 0 <= policy_budgets.free_bytes(everything) < 1024 + 13 * VERDICT_BYTES
    assert "of which" in result["naming"][2].over_budget


def test_without_native_mode_verdicts_need_no_space() -> None:
    result = admitted(*(policy(number) for number in range(30)), native_mode=False)
    assert len(labelled_names(result["web"])) == 30


def test_labels_of_waiting_pods_count_with_those_of_the_policies_of_their_namespace() -> None:
    wanted = [(label_key(UID.format(number)), frozenset(["web"])) for number in range(10)]
    admit = policy_budgets.admit_labels_of_waiting_pods
    assert admit(wanted, {}, MAX_NODE_LABEL_BYTES) == {key for key, _ in wanted}
    assert admit(wanted, {"web": 7}, MAX_NODE_LABEL_BYTES) == {key for key, _ in wanted[:3]}
    assert admit(wanted, {"web": 10, "db": 1}, MAX_NODE_LABEL_BYTES) == frozenset()
    assert admit(wanted, {}, 2 * VERDICT_BYTES) == {key for key, _ in wanted[:2]}


def test_labels_of_waiting_pods_are_admitted_by_turns_of_their_namespaces() -> None:
    many = [(label_key(UID.format(number)), frozenset(["busy"])) for number in range(10)]
    few = [(label_key(UID.format(99)), frozenset(["quiet"]))]
    admitted_keys = policy_budgets.admit_labels_of_waiting_pods([*many, *few], {}, 3 * VERDICT_BYTES)
    assert admitted_keys == {many[0][0], many[1][0], few[0][0]}


def test_a_label_that_pods_of_several_namespaces_need_counts_in_each() -> None:
    shared = (label_key(UID.format(1)), frozenset(["db", "web"]))
    own = [(label_key(UID.format(10 + number)), frozenset(["web"])) for number in range(10)]
    admitted_keys = policy_budgets.admit_labels_of_waiting_pods(
        [shared, *own], {"db": 10}, MAX_NODE_LABEL_BYTES
    )
    assert shared[0] in admitted_keys
    assert len(admitted_keys) == 10
