"""Limits of PlacementPolicies and ClusterPlacementPolicies."""

from typing import Any

import msgspec

from nodewise.policies import placement_policy_parser, taspolicy_parser
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import Policy, PolicyKey, PolicyKind
from nodewise.policies.policy_budgets import MAX_ENFORCED, NamespaceBudgets
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject

HOT = {"metric": "m", "above": 80}


def policy(name: str, kind: PolicyKind = "PlacementPolicy", created: str = "", **spec: Any) -> Policy:
    """A policy; all but ClusterPlacementPolicies are in the namespace `d`."""
    namespace = "" if kind == "ClusterPlacementPolicy" else "d"
    metadata = PolicyMetadata(name, namespace, creationTimestamp=created)
    if kind == "TASPolicy":
        obj = PolicyObject(metadata, msgspec.Raw(msgspec.json.encode({"strategies": spec})))
        return taspolicy_parser.parse_policy(obj)
    selectors = {"podSelector": {}} | ({"namespaceSelector": {}} if not namespace else {})
    obj = PolicyObject(metadata, msgspec.Raw(msgspec.json.encode(selectors | spec)))
    return placement_policy_parser.parse_policy(obj, kind)


def enforce(*policies: Policy, **options: Any) -> dict[PolicyKey, Policy]:
    return NamespaceBudgets(TelemetryOptions(**options)).enforce(
        {policy.key: policy for policy in policies}, native_mode=False
    )


def test_at_most_50_policies_of_a_namespace_and_of_the_cluster_are_enforced_the_oldest_first() -> None:
    named = [policy(f"p{number:02}", created="1", avoid=[HOT]) for number in range(MAX_ENFORCED)]
    oldest = policy("oldest", created="0", avoid=[HOT], prefer=[{"metric": "m", "order": "Ascending"}])
    wide = [
        policy(f"w{number:02}", "ClusterPlacementPolicy", avoid=[HOT]) for number in range(MAX_ENFORCED + 2)
    ]
    others = [
        policy(f"t{number}", "TASPolicy", dontschedule={"rules": [{"metricname": "m", "operator": "Equals"}]})
        for number in range(MAX_ENFORCED + 1)
    ]
    enforced = enforce(*named, oldest, *wide, *others)
    beyond = {key.name: policy.not_enforced for key, policy in enforced.items() if policy.not_enforced}
    cluster = (
        "the cluster has 52 ClusterPlacementPolicies; at most 50 are enforced, and older policies come first"
    )
    assert beyond == {
        "p49": "namespace d has 51 PlacementPolicies; at most 50 are enforced, and older policies come first",
        "w50": cluster,
        "w51": cluster,
    }
    excess = enforced[named[-1].key]
    assert (excess.avoid, excess.prefer) == ((), ()), "it has no effect"
    assert excess.selection is not None, "decisions about its pods name it"
    assert enforced[oldest.key] == oldest


def test_policies_in_the_mode_shadow_come_last() -> None:
    observing = policy("old", created="0", avoid=[HOT], mode="Shadow")
    enforced = enforce(observing, policy("new", created="1", avoid=[HOT]), rules_per_namespace=1)
    assert [bool(each.over_budget) for each in enforced.values()] == [True, False]


def test_policies_that_are_not_enforced_count_for_no_budget() -> None:
    first = [policy(f"p{number:02}", created="1", avoid=[HOT]) for number in range(MAX_ENFORCED)]
    last = policy("last", created="2", avoid=[HOT | {"above": number} for number in range(100)])
    enforced = enforce(*first, last, rules_per_namespace=MAX_ENFORCED)
    assert not any(policy.over_budget for policy in enforced.values())


def test_policies_of_kube_system_and_of_nodewises_own_namespace_are_not_enforced() -> None:
    listed = [policy("pol", avoid=[HOT])]
    [enforced] = enforce(*listed, own_namespace="d").values()
    assert enforced.not_enforced == "pods of namespace d are not selected by policies"
    assert enforced.avoid == ()
    system = msgspec.structs.replace(listed[0], key=PolicyKey("PlacementPolicy", "kube-system", "pol"))
    [enforced] = enforce(system).values()
    assert "kube-system" in enforced.not_enforced


def test_both_kinds_of_a_namespace_share_its_budgets() -> None:
    rules = [{"metricname": "m", "operator": "Equals", "target": number} for number in range(3)]
    old = policy("old", "TASPolicy", created="1", dontschedule={"rules": rules})
    new = policy("new", created="2", avoid=[HOT, HOT | {"above": 1}])
    enforced = enforce(old, new, rules_per_namespace=4)
    assert enforced[old.key] == old
    [*_, part] = enforced[new.key].avoided()
    assert part.unusable == (
        "with it namespace d needs 5 rules; at most 4 (--rules-per-namespace), and older policies come first"
    )


def test_policies_of_the_cluster_have_no_budget_of_rules_and_labels_but_share_the_space_on_a_node() -> None:
    labels = {f"gpu.nodewise.io/l{number}": "x" for number in range(16)}
    wide = [
        policy(
            f"w{number}",
            "ClusterPlacementPolicy",
            avoid=[HOT],
            nodeLabels=[HOT | {"labels": {f"a{number}.{key}": "x" for key in labels}}],
        )
        for number in range(5)
    ]
    assert list(enforce(*wide, rules_per_namespace=1).values()) == wide
    long = [
        policy(
            f"w{number}",
            "ClusterPlacementPolicy",
            nodeLabels=[HOT | {"labels": {f"{'a' * 200}{number}.{key}": "x" * 63 for key in labels}}],
        )
        for number in range(5)
    ]
    message = enforce(*long)[long[-1].key].over_budget
    assert message.startswith("the ClusterPlacementPolicies request "), message
    assert "16384 bytes per node" in message
