"""Shares of namespaces in the labels of a node: `policy_budgets.enforce_node_label_budget`."""

from hypothesis import given
from hypothesis import strategies as st

from nodewise.policies import policy_budgets
from nodewise.policies.placement_policy import AvoidRule, Comparison, LabelRule, Policy, PolicyKey
from nodewise.policies.policy_budgets import MAX_NAMESPACE_KEYS, MAX_NODE_LABEL_BYTES
from nodewise.policies.verdict_labels import label_key

HOT = Comparison("temp", "above", 80)
SIZES = st.lists(st.integers(20, 400), max_size=12)
"""The bytes of the labels that a policy names."""
TENANTS = st.lists(st.lists(st.tuples(st.booleans(), SIZES), max_size=12), min_size=1, max_size=30)
"""By namespace, its policies: whether each avoids nodes, and its labels."""
LARGEST = 400


def _policies(tenants: list[list[tuple[bool, list[int]]]]) -> dict[str, list[Policy]]:
    by_namespace: dict[str, list[Policy]] = {}
    for space, listed in enumerate(tenants):
        for number, (avoids, sizes) in enumerate(listed):
            labels = tuple(
                (f"{space}-{number}-{each}".ljust(size - 1, "x"), "v") for each, size in enumerate(sizes)
            )
            policy = Policy(
                PolicyKey("PlacementPolicy", f"t{space}", f"p{number}"),
                f"{number:03}",
                avoid=(AvoidRule((HOT,)),) if avoids else (),
                node_labels=(LabelRule((HOT,), (labels,)),) if labels else (),
                uid=f"{space:018}{number:018}",
            )
            by_namespace.setdefault(policy.namespace, []).append(policy)
    return by_namespace


def _bytes(policies: list[Policy]) -> int:
    return MAX_NODE_LABEL_BYTES - policy_budgets.free_bytes(policies)


@given(TENANTS)
def test_the_admitted_labels_fit_on_a_node(tenants: list[list[tuple[bool, list[int]]]]) -> None:
    enforced = list(policy_budgets.enforce_node_label_budget(_policies(tenants), native_mode=True))
    assert _bytes([policy for listed in enforced for policy in listed]) <= MAX_NODE_LABEL_BYTES
    for listed in enforced:
        labels = [
            policy
            for policy in listed
            if policy_budgets.has_verdict_label(policy) and not policy.no_verdict_label
        ]
        assert len(labels) <= MAX_NAMESPACE_KEYS


@given(TENANTS)
def test_a_namespace_that_requests_no_more_than_an_equal_share_gets_all_of_it(
    tenants: list[list[tuple[bool, list[int]]]],
) -> None:
    """Whatever the others request."""
    requested = _policies(tenants)
    enforced = dict(
        zip(requested, policy_budgets.enforce_node_label_budget(requested, native_mode=True), strict=True)
    )
    for namespace, policies in requested.items():
        share = MAX_NODE_LABEL_BYTES // len(requested) - LARGEST
        verdicts = sum(policy_budgets.has_verdict_label(policy) for policy in policies)
        if _bytes(policies) <= share and verdicts <= MAX_NAMESPACE_KEYS:
            assert enforced[namespace] == policies


@given(TENANTS)
def test_within_a_namespace_the_oldest_policies_have_labels(
    tenants: list[list[tuple[bool, list[int]]]],
) -> None:
    for listed in policy_budgets.enforce_node_label_budget(_policies(tenants), native_mode=True):
        refused = [
            bool(policy.no_verdict_label) for policy in listed if policy_budgets.has_verdict_label(policy)
        ]
        assert refused == sorted(refused)


def test_a_label_key_has_the_length_that_the_budget_assumes() -> None:
    uid = "01234567-89ab-cdef-0123-456789abcdef"
    assert policy_budgets.verdict_label_bytes(label_key(uid)) == len(label_key(uid)) + len("violating")
