"""Budgets of a namespace for rules, metrics, queries and node labels: at the limit and one beyond, and two tenants."""

from typing import Any

import msgspec

from nodewise.agent import ObjectKey
from nodewise.base import cooperative_scheduling
from nodewise.policies import node_labels, policy_budgets, policy_status
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PolicyStatus
from nodewise.policies.state import PolicyState, TelemetryStateBuilder
from tests.unit.policies import policy_snapshot_builders
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    pod,
    rejected,
    rule,
    series,
    tas_key,
)

HOT = rule("m", target=10)
VALUES = metrics_snapshot(series("m", n1=5, n2=15))
OPTIONS = TelemetryOptions(rules_per_namespace=4, metrics_per_namespace=3, queries_per_namespace=2)


def policy(name: str, namespace: str = "d", created: str = "", **strategies: Any) -> PolicyObject:
    made = policy_snapshot_builders.policy(name, namespace, **strategies)
    metadata = msgspec.structs.replace(made.metadata, creationTimestamp=created or None)
    return msgspec.structs.replace(made, metadata=metadata)


def labelled(name: str, count: int, namespace: str = "d", created: str = "", width: int = 1) -> PolicyObject:
    """A policy with `count` node labels in `labeling`, whose names have `width` characters."""
    labels = [f"{number:0{width}}=x" for number in range(count)]
    return policy(name, namespace, created, labeling=[HOT | {"labels": labels}])


def build(*policies: PolicyObject, options: TelemetryOptions = OPTIONS) -> dict[ObjectKey, PolicyState]:
    """The states by namespace and name."""
    builder = TelemetryStateBuilder(options, 60.0)
    cluster = cluster_state(list(policies), VALUES, "n1 n2")
    state = cooperative_scheduling.run_without_pauses(builder.build(cluster))
    return {(key.namespace, key.name): policy_state for key, policy_state in state.policies.items()}


def message(state: PolicyState) -> str:
    """The message of the condition `BudgetExceeded`; empty if the policy is within the budgets."""
    conditions = policy_status.desired_status(
        state, StatusFacts(1), PolicyStatus(), "2026-05-01T00:00:00Z"
    ).conditions_by_type()
    condition = conditions.get("BudgetExceeded")
    return condition.message if condition is not None and condition.status == "True" else ""


def requested_metrics(*policies: PolicyObject, options: TelemetryOptions = OPTIONS) -> set[str]:
    builder = TelemetryStateBuilder(options, 60.0)
    requests = builder.metric_requests(cluster_state(list(policies), VALUES, "n1 n2").objects)
    return {request.metric for request in requests}


def rules(count: int, **more: Any) -> list[dict[str, Any]]:
    return [rule("m", target=number, **more) for number in range(count)]


def metrics(count: int, start: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [rule(f"m{number}", target=1, **more) for number in range(start, start + count)]


def test_policies_at_the_limit_of_rules_are_evaluated_and_one_beyond_rejects_its_pods() -> None:
    old, more = (
        policy("old", created="1", dontschedule=rules(3)),
        policy("pol", created="2", dontschedule=[HOT]),
    )
    at_limit = build(old, more)
    assert [message(state) for state in at_limit.values()] == ["", ""]
    beyond = build(old, policy("pol", created="2", dontschedule=rules(2)))
    assert message(beyond["d", "old"]) == ""
    assert message(beyond["d", "pol"]).startswith(
        "no rule is evaluated: with it namespace d needs 5 rules; at most 4 (--rules-per-namespace), "
        "and older policies come first; delete policies or rules of namespace d"
    )


def test_a_pod_of_a_policy_beyond_the_budget_is_rejected_with_the_limit() -> None:
    policies = [
        policy("old", created="1", dontschedule=rules(3)),
        policy("pol", created="2", dontschedule=rules(2)),
    ]
    snapshot = policy_snapshot_builders.snapshot(cluster_state(policies, VALUES, "n1 n2"), OPTIONS)
    reasons = rejected(snapshot, "n1 n2", pod("pol")) or {}
    assert reasons.keys() == {"n1", "n2"}
    assert all("at most 4 (--rules-per-namespace)" in reason for reason in reasons.values())
    assert rejected(snapshot, "n1", pod("old")), "the older policy is evaluated"


def test_metrics_at_the_limit_are_requested_and_those_beyond_are_not() -> None:
    assert requested_metrics(policy("pol", dontschedule=metrics(3))) == {"m0", "m1", "m2"}
    old, new = (
        policy("old", created="1", dontschedule=metrics(3)),
        policy("pol", created="2", dontschedule=[HOT]),
    )
    assert requested_metrics(old, new) == {"m0", "m1", "m2"}
    assert "needs 4 metrics; at most 3 (--metrics-per-namespace)" in message(build(old, new)["d", "pol"])
    shared = policy("pol", created="2", dontschedule=metrics(1))
    assert not message(build(old, shared)["d", "pol"]), (
        "a metric that the namespace requests already counts once"
    )


def test_queries_have_a_limit_of_their_own() -> None:
    two = policy("pol", dontschedule=[rule("m", query=f"up > {number}") for number in range(2)])
    assert not message(build(two)["d", "pol"])
    three = policy("pol", dontschedule=[rule("m", query=f"up > {number}") for number in range(3)])
    assert "needs 3 queries; at most 2 (--queries-per-namespace)" in message(build(three)["d", "pol"])


def test_rules_that_cannot_be_used_do_not_count() -> None:
    bad = [rule("m", operator="Unlike", target=number) for number in range(9)]
    assert not message(build(policy("pol", dontschedule=[*bad, *rules(4)]))["d", "pol"])


def test_a_policy_that_fits_is_evaluated_after_a_larger_one_that_does_not() -> None:
    states = build(
        policy("large", created="1", dontschedule=rules(5)), policy("small", created="2", dontschedule=[HOT])
    )
    assert [bool(message(states["d", name])) for name in ("large", "small")] == [True, False]


def test_one_namespace_beyond_every_budget_does_not_affect_another() -> None:
    victim = policy("victim", "e", "9", dontschedule=[HOT], labeling=[HOT | {"labels": ["a=b"]}])
    alone = build(victim)["e", "victim"]
    evil = [policy(f"evil-{number:03}", created="1", dontschedule=metrics(4, number)) for number in range(50)]
    evil += [labelled(f"label-{number:03}", 16, created="1", width=63) for number in range(50)]
    state = build(*evil, victim)["e", "victim"]
    assert state.policy == alone.policy
    assert [column.key for column in state.labels] == [column.key for column in alone.labels]
    assert (state.filter_rules[0].broken == alone.filter_rules[0].broken).all()


def test_a_policy_has_at_most_16_labels() -> None:
    assert not build(labelled("pol", 16))["d", "pol"].policy.problems
    state = build(labelled("pol", 17, width=2))["d", "pol"]
    assert "17 labels; expected at most 16" in str(state.policy.problems[0])
    two_rules = [HOT | {"labels": [f"{number}-{place}=x" for place in range(9)]} for number in range(2)]
    state = build(policy("pol", deschedule=[HOT], labeling=two_rules))["d", "pol"]
    assert "19 different node labels; expected at most 16 per policy" in str(state.policy.problems[0])
    expected = ["pol", *(f"0-{place}" for place in range(9)), *(f"1-{place}" for place in range(6))]
    assert [column.key.rpartition("/")[2] for column in state.labels] == expected


def test_a_label_of_several_rules_counts_once() -> None:
    several = [rule("m", target=number, labels=[f"card0={number}"]) for number in range(4)]
    assert not build(policy("pol", labeling=several))["d", "pol"].policy.problems


def test_a_namespace_has_at_most_64_labels_and_older_policies_keep_theirs() -> None:
    four = [labelled(f"p{number}", 16, created=str(number)) for number in range(4)]
    assert not any(map(message, build(*four, options=TelemetryOptions()).values()))
    beyond = build(*four, labelled("p4", 2, created="4"), options=TelemetryOptions())
    assert [len(beyond["d", f"p{number}"].labels) for number in range(5)] == [16, 16, 16, 16, 0]
    assert message(beyond["d", "p4"]) == (
        "the policies of namespace d request 66 labels, at most 64, and older policies come first; "
        "not written for this policy: telemetry.aware.scheduling.p4/0, telemetry.aware.scheduling.p4/1"
    )


def test_a_label_of_deschedule_counts_and_is_left_out_beyond_the_limit() -> None:
    full = [labelled(f"p{number}", 16, created=str(number)) for number in range(4)]
    drain = policy("drain", created="9", deschedule=[HOT], dontschedule=[HOT])
    states = build(*full, drain, options=TelemetryOptions())
    assert states["d", "drain"].labels == ()
    assert message(states["d", "drain"]).endswith("not written for this policy: drain")
    assert states["d", "drain"].verdict is not None, "its filter still applies"


def test_all_labels_of_a_node_have_at_most_16_kib_divided_fairly_by_namespace() -> None:
    options = TelemetryOptions()
    greedy = [labelled("g" * 200 + str(number), 16, created=str(number), width=63) for number in range(4)]
    small = labelled("small", 16, "e", "9")
    alone = build(*greedy, options=options)
    states = build(*greedy, small, options=options)
    assert len(states["e", "small"].labels) == 16
    assert not message(states["e", "small"])
    for built in (alone, states):
        requested = [node_labels.requested_labels(state.policy) for state in built.values()]
        total = sum(sum(sizes.values()) for sizes in requested)
        assert policy_budgets.MAX_NODE_LABEL_BYTES - 1000 < total <= policy_budgets.MAX_NODE_LABEL_BYTES
    last = message(states["d", "g" * 200 + "3"])
    assert last.startswith(
        "the policies of namespace d request 18752 bytes of labels, of which 15529 fit into the 16384 bytes per node"
    )


def test_rules_that_cannot_be_used_are_not_evaluated() -> None:
    """Otherwise each rule beyond the budget would have arrays over all nodes."""
    states = build(*(policy(f"p{number}", dontschedule=rules(9)) for number in range(20)))
    for state in states.values():
        assert state.filter_rules == ()
        assert state.verdict is not None
        assert state.verdict.codes.strides == (0,), "its codes take no memory"


def test_a_policy_is_admitted_when_an_older_one_is_deleted() -> None:
    builder = TelemetryStateBuilder(OPTIONS, 60.0)
    old, new = (
        policy("old", created="1", dontschedule=rules(4)),
        policy("new", created="2", dontschedule=[HOT]),
    )
    for policies, over in (([old, new], True), ([new], False), ([old, new], True)):
        objects = cluster_state(policies, VALUES, "n1").objects
        assert bool(builder.policies(objects)[tas_key("new")].over_budget) is over


def test_a_write_of_the_status_computes_no_budget_again() -> None:
    """The leader writes the status of many policies, and the budgets of a thousand policies take 18 ms."""
    builder = TelemetryStateBuilder(OPTIONS, 60.0)
    made = policy("pol", dontschedule=[HOT])
    before = builder.policies(cluster_state([made], VALUES, "n1").objects)
    written = msgspec.structs.replace(made, status=msgspec.Raw(b'{"violatingNodes":1}'))
    assert builder.policies(cluster_state([written], VALUES, "n1").objects) is before
    changed = policy("pol", dontschedule=rules(2))
    assert len(builder.policies(cluster_state([changed], VALUES, "n1").objects)[tas_key()].avoid) == 2
