"""The memory that a tenant's policies take: as much as the budgets of the namespace, however many policies it has."""

import tracemalloc
from typing import Any, Final

import msgspec

from nodewise.agents.telemetry import KIND
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.kube.reflector import ObjectDecoder
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import policy_objects
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import MAX_SPEC_BYTES, PolicyObject
from nodewise.policies.state import TelemetryState, TelemetryStateBuilder
from nodewise.policies.taspolicy_parser import parse_policy
from tests.unit.policies.policy_snapshot_builders import cluster_state, metrics_snapshot, policy, rule, series

NODES: Final = [f"node-{number}" for number in range(1000)]
OPTIONS: Final = TelemetryOptions()
RULES: Final = 100
"""Rules of a policy: the most in one strategy."""


def measure_state(policies: int) -> tuple[int, TelemetryState]:
    """The memory of the state of so many policies of one namespace, in bytes, and the state."""
    metrics = metrics_snapshot(*(series(f"m{number}", **dict.fromkeys(NODES, 5)) for number in range(10)))
    objects = [
        policy(
            f"p{number}",
            dontschedule=[rule(f"m{target % 10}", target=number * RULES + target) for target in range(RULES)],
        )
        for number in range(policies)
    ]
    builder, cluster = TelemetryStateBuilder(OPTIONS, 60.0), cluster_state(objects, metrics, " ".join(NODES))
    builder.policies(cluster.objects)
    tracemalloc.start()
    try:
        state = run_without_pauses(builder.build(cluster))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held_bytes, state


def test_policies_beyond_the_budget_are_not_evaluated() -> None:
    within, state = measure_state(OPTIONS.rules_per_namespace // RULES)
    beyond, larger_state = measure_state(20)
    assert not any(entry.policy.over_budget for entry in state.policies.values())
    rejected = [entry for entry in larger_state.policies.values() if entry.policy.over_budget]
    assert len(rejected) == 20 - len(state.policies)
    for entry in rejected:
        assert entry.verdict is not None
        assert entry.verdict.codes.tolist() == [1] * (len(NODES) + 1)
    assert beyond < 1.2 * within


def test_the_rules_of_a_metric_share_the_arrays_of_its_values() -> None:
    """A rule takes one byte for each node, and some 2,000 for itself, also after several refreshes."""
    nodes = " ".join(NODES)
    objects = [policy("p", dontschedule=[rule("m", target=number) for number in range(RULES)])]
    builder = TelemetryStateBuilder(OPTIONS, 60.0)
    tracemalloc.start()
    try:
        for refresh in range(3):
            metrics = metrics_snapshot(series("m", **dict.fromkeys(NODES, refresh + RULES // 2)))
            state = run_without_pauses(builder.build(cluster_state(objects, metrics, nodes)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rules = next(iter(state.policies.values())).filter_rules
    assert len({id(evaluation.inputs) for evaluation in rules}) == 1
    assert held_bytes / RULES / len(NODES) < 6


def large_policy(size: int) -> dict[str, Any]:
    """A policy whose spec has so many bytes, by a long list of labels."""
    labels = [f"l{number:04}=x" for number in range(size // 20)]
    spec = {"strategies": {"labeling": {"rules": [rule("m", target=1, labels=labels)]}}, "more": ""}
    spec["more"] = "x" * (size - len(msgspec.json.encode(spec)))
    return {"metadata": {"name": "p", "namespace": "d"}, "spec": spec}


def test_a_spec_of_the_largest_size_is_stored_and_a_larger_one_is_not() -> None:
    watched = KIND.watched(OPTIONS)[0]
    for size, kept in ((MAX_SPEC_BYTES, True), (MAX_SPEC_BYTES + 1, False)):
        decoder: ObjectDecoder[Any] = ObjectDecoder(
            "TASPolicy", watched.type, MetricsRegistry(), watched.keep
        )
        body = msgspec.json.encode(large_policy(size))
        decoder.add(msgspec.Raw(body))
        decoder.finish()
        (stored,) = decoder.store.values()
        assert len(bytes(stored.spec)) == (size if kept else len("null"))
        whole = msgspec.json.decode(body, type=PolicyObject)
        for read in (stored, whole):
            problems = [str(problem) for problem in parse_policy(read).problems]
            assert (f"spec: {size} bytes; expected at most {MAX_SPEC_BYTES}" in problems) is not kept
        if not kept:
            assert parse_policy(stored) == parse_policy(whole)
            (only,) = parse_policy(stored).avoided()
            assert only.unusable


def test_a_policy_with_as_many_rules_as_one_strategy_may_have_is_stored() -> None:
    rules = [
        rule(f"metric_of_an_application_{number}", target="100", max_age="5m") for number in range(RULES)
    ]
    whole = policy("p", dontschedule=rules, labeling=[{**each, "labels": ["a=b"]} for each in rules])
    assert policy_objects.drop_oversized_spec(whole) is whole
