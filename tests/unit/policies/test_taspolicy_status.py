"""The columns of `kubectl get taspolicy`: mode, violating nodes, metrics, suspension."""

from pathlib import Path

import msgspec
import yaml

from nodewise.base import cooperative_scheduling
from nodewise.policies import policy_status
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PolicyStatus
from nodewise.policies.state import PolicyState, TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    policy,
    rule,
    series,
    tas_key,
)

CRD = Path("deploy/crds/taspolicies.yaml")


def evaluated(policy_object: PolicyObject) -> PolicyState:
    state = TelemetryStateBuilder(TelemetryOptions(trust_all_namespaces=True), 60.0)
    cluster = cluster_state([policy_object], metrics_snapshot(series("m", n1=90, n2=5, n3=85)))
    return cooperative_scheduling.run_without_pauses(state.build(cluster)).policies[tas_key()]


def status(state: PolicyState, no_node_label: str = "") -> PolicyStatus:
    return policy_status.desired_status(
        state, StatusFacts(1, no_node_label=no_node_label), PolicyStatus(), "2026-05-01T00:00:00Z"
    )


def test_nodes_that_the_policy_labels_are_violating() -> None:
    labelling = rule("m", target=80, labels=["hot=true"])
    assert status(evaluated(policy(labeling=[labelling]))).violating_nodes == 2
    assert status(evaluated(policy(deschedule=[rule("m", target=80)]))).violating_nodes == 2
    both = policy(dontschedule=[rule("m", target=4)], labeling=[labelling])
    assert status(evaluated(both)).violating_nodes == 3
    assert status(evaluated(policy(scheduleonmetric=[rule("m")]))).violating_nodes == 0


def test_nodes_that_pass_for_lack_of_a_value_are_named() -> None:
    policy_object = policy(dontschedule=[rule("m", target=80)])
    state = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    values = msgspec.structs.replace(series("m", n1=90, n3=85), unmatched=("n-2",))
    cluster = cluster_state([policy_object], metrics_snapshot(values))
    evaluated_state = cooperative_scheduling.run_without_pauses(state.build(cluster)).policies[tas_key()]
    condition = status(evaluated_state).conditions_by_type()["NodesWithoutValues"]
    assert (condition.status, condition.reason) == ("True", "NoValueOnNodes")
    assert condition.message == (
        'no series of m on 1 node: n2; closest names in series of no node: "n-2" for n2; a node without a value passes'
        " these rules, unless when_missing is reject"
    )
    assert "NodesWithoutValues" not in status(evaluated(policy_object)).conditions_by_type()


def test_samples_that_are_too_far_apart_are_reported() -> None:
    policy_object = policy(dontschedule=[rule("m", target=80, max_age="90s")])
    state = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    values = msgspec.structs.replace(series("m", n1=90, n2=5), sample_distance_s=120.0)
    cluster = cluster_state([policy_object], metrics_snapshot(values))
    evaluated_state = cooperative_scheduling.run_without_pauses(state.build(cluster)).policies[tas_key()]
    condition = status(evaluated_state).conditions_by_type()["SamplesTooSparse"]
    assert condition.message == (
        "samples of m are 2m apart, and a value counts for 1m30s: set max_age to at least 5m, or scrape the metric more"
        " often. Nodes have no value between two samples, or after one failed scrape"
    )


def test_the_mode_says_whether_the_policy_has_an_effect() -> None:
    state = evaluated(policy(dontschedule=[rule("m", target=80)]))
    assert status(state).mode == "Enforce"
    assert status(state, "native mode has no label for it").mode == "NotEnforced"
    late = state._replace(policy=msgspec.structs.replace(state.policy, not_enforced="51 policies"))
    assert status(late).mode == "NotEnforced"


def test_the_definition_has_the_columns_and_the_field() -> None:
    (version,) = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Valid", "Mode", "Violating", "Metrics", "Suspended", "Age"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(fields["mode"]["enum"]) == {"Enforce", "NotEnforced"}


def test_a_new_leader_keeps_the_mode_until_it_knows_the_node_labels() -> None:
    state = evaluated(policy(dontschedule=[rule("m", target=80)]))
    before, now = status(state, no_node_label="it is policy 11"), "2026-05-01T00:00:05Z"
    unknown = StatusFacts(1, unknown=frozenset({"NotEnforced"}))
    after = policy_status.desired_status(state, unknown, before, now)
    assert (after.mode, after.conditions) == (before.mode, before.conditions)
    invalid = state._replace(policy=msgspec.structs.replace(state.policy, not_enforced="policy 51 of 50"))
    condition = policy_status.desired_status(invalid, unknown, before, now).conditions_by_type()[
        "NotEnforced"
    ]
    assert condition.message == "policy 51 of 50", "what is known counts"
