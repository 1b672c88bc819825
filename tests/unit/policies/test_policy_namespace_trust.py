"""Policies in namespaces with and without trust."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadSettings
from nodewise.policies import policy_status
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceObject
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PolicyCondition, PolicyStatus
from nodewise.policies.state import PolicyState, TelemetryStateBuilder
from tests.unit.policies import policy_snapshot_builders
from tests.unit.policies.placement_policy_cluster import ALL, Cluster, placement
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    policy,
    rejected,
    rule,
    scores,
    series,
    tas_key,
)

HOT = rule("m", target=10)
QUERIED = rule("m", target=10, query="secret_series > 3")
VALUES = metrics_snapshot(series("m", n1=5, n2=15, n3=7), series("k", n1=1, n2=2, n3=3))
REMEDY = "kubectl label namespace d nodewise.io/trusted=true"


def builder(**options: Any) -> TelemetryStateBuilder:
    return TelemetryStateBuilder(TelemetryOptions(**options), 60.0)


def snapshot(policy_object: PolicyObject, *trusted: str, **options: Any) -> Snapshot:
    cluster = cluster_state([policy_object], VALUES, trusted=trusted)
    return policy_snapshot_builders.snapshot(cluster, TelemetryOptions(**options))


def policy_state_of(policy_object: PolicyObject, *trusted: str, **options: Any) -> PolicyState:
    state: PolicyState = (
        snapshot(policy_object, *trusted, **options).agent_states["telemetry"].policies[tas_key()]
    )
    return state


def requested(policy_object: PolicyObject, *trusted: str, max_age_s: float = 60.0) -> dict[str, float]:
    """The metrics that are requested, with the maximum ages of their values."""
    objects = cluster_state([policy_object], VALUES, trusted=trusted).objects
    requests = TelemetryStateBuilder(TelemetryOptions(), max_age_s).metric_requests(objects)
    return {request.metric: request.max_age_s for request in requests}


def condition(agent_state: PolicyState) -> PolicyCondition | None:
    status = policy_status.desired_status(agent_state, StatusFacts(1), PolicyStatus(), "2026-05-01T00:00:00Z")
    return status.conditions_by_type().get("NotTrusted")


LABELLING = policy(deschedule=[HOT], labeling=[HOT | {"labels": ["gas-disable-card0=true"]}])
GRANTS = {
    "the label": ({}, ("d",)),
    "nodewise's own namespace": ({"own_namespace": "d"}, ()),
    "the deprecated flag": ({"label_policies_from": ("x", "d")}, ()),
    "all namespaces": ({"trust_all_namespaces": True}, ()),
}


@pytest.mark.parametrize(("options", "trusted"), GRANTS.values(), ids=GRANTS)
def test_a_trusted_policy_labels_nodes(options: dict[str, Any], trusted: tuple[str, ...]) -> None:
    agent_state = policy_state_of(LABELLING, *trusted, **options)
    expected = ["pol", "telemetry.aware.scheduling.pol/gas-disable-card0"]
    assert [column.key for column in agent_state.labels] == expected
    assert condition(agent_state) is None


def test_a_policy_without_trust_labels_nothing_and_says_so() -> None:
    agent_state = policy_state_of(LABELLING, "other")
    assert agent_state.labels == ()
    assert policy_status.count_violating_nodes(agent_state) == 0
    not_trusted = condition(agent_state)
    assert not_trusted is not None
    assert (not_trusted.status, not_trusted.reason) == ("True", "NamespaceNotTrusted")
    assert not_trusted.message.startswith(
        "namespace d is not trusted: deschedule and labeling have no effect; "
    )
    assert REMEDY in not_trusted.message
    assert requested(LABELLING) == {}, "its metrics are not fetched"


def test_names_and_preferences_work_without_trust() -> None:
    cluster_snapshot = snapshot(policy(dontschedule=[HOT], scheduleonmetric=[rule("k", "LessThan")]))
    assert rejected(cluster_snapshot, "n1 n2") == {"n2": "telemetry policy d/pol: m GreaterThan 10"}
    assert scores(cluster_snapshot, "n1 n3") == {"n1": 10, "n3": 9}


def test_a_query_without_trust_is_not_asked_and_rejects_with_the_remedy() -> None:
    policy_object = policy(dontschedule=[QUERIED])
    assert requested(policy_object) == {}
    reasons = rejected(snapshot(policy_object)) or {}
    assert reasons.keys() == {"n1", "n2", "n3"}
    for text in reasons.values():
        assert "namespace d is not trusted: rules with a query cannot be used" in text
        assert REMEDY in text
        assert "secret_series" not in text
    not_trusted = condition(policy_state_of(policy_object))
    assert not_trusted is not None
    assert "secret_series" not in not_trusted.message


def test_a_preference_by_a_query_without_trust_is_none() -> None:
    assert scores(snapshot(policy(scheduleonmetric=[QUERIED]))) is None


def test_metrics_that_are_not_allowed() -> None:
    """The expression must match the whole name; trusted namespaces are not restricted."""
    policy_object = policy(dontschedule=[HOT], scheduleonmetric=[rule("k", "LessThan")])
    refused = snapshot(policy_object, allowed_metrics="k|m.+")
    text = (rejected(refused) or {})["n1"]
    assert "namespace d is not trusted: metric m is not one of --allowed-metrics" in text
    assert scores(refused, "n1 n3") == {"n1": 10, "n3": 9}
    assert (rejected(snapshot(policy_object, allowed_metrics="k|m")) or {}).keys() == {"n2"}
    trusted = policy_state_of(policy_object, "d", allowed_metrics="nothing")
    assert condition(trusted) is None


def test_a_policy_without_trust_does_not_lengthen_the_requests_for_a_metric() -> None:
    """A metric is requested with the longest age of all rules, those of other namespaces too."""
    policy_object = policy(
        dontschedule=[HOT | {"max_age": "8784h"}], scheduleonmetric=[rule("k") | {"max_age": "15m"}]
    )
    assert requested(policy_object) == {"k": 900.0}
    text = (rejected(snapshot(policy_object)) or {})["n1"]
    assert "namespace d is not trusted: rules with a max_age above 15m cannot be used" in text
    assert REMEDY in text
    assert requested(policy_object, "d").keys() == {"k", "m"}
    assert requested(policy_object, max_age_s=366 * 86400.0).keys() == {"k", "m"}


def test_the_remedy_fits_into_a_condition_however_many_rules_are_refused() -> None:
    rules = [rule(f"{'m' * 250}{number}") for number in range(100)]
    not_trusted = condition(policy_state_of(policy(dontschedule=rules), allowed_metrics="k"))
    assert not_trusted is not None
    assert "98 more rules cannot be used" in not_trusted.message
    assert not_trusted.message.endswith(REMEDY)


def test_an_invalid_regular_expression_fails_at_the_start() -> None:
    with pytest.raises(BadSettings, match="--allowed-metrics"):
        builder(allowed_metrics="node_(")


def test_trust_that_is_granted_and_taken_away() -> None:
    """The policy object stays the same; its labels and its condition follow the namespace."""
    state, before = builder(), PolicyStatus()
    observed = []
    for trusted in ((), ("d",), ()):
        policy_state = cooperative_scheduling.run_without_pauses(
            state.build(cluster_state([LABELLING], VALUES, trusted=trusted))
        ).policies[tas_key()]
        before = policy_status.desired_status(policy_state, StatusFacts(1), before, "2026-05-01T00:00:00Z")
        observed.append((len(policy_state.labels), before.conditions_by_type()["NotTrusted"].status))
    assert observed == [(0, "True"), (2, "False"), (0, "True")]


@pytest.mark.parametrize("labels", [{}, {"nodewise.io/trusted": "True"}, {"nodewise.io/trusted": True}, None])
def test_only_the_very_label_grants_trust(labels: Any) -> None:
    raw = msgspec.json.encode({"metadata": {"name": "d", "labels": labels}})
    cluster = cluster_state([LABELLING], VALUES, trusted=())
    objects = {**cluster.objects, NAMESPACES: {("", "d"): msgspec.json.decode(raw, type=NamespaceObject)}}
    changed = policy_snapshot_builders.snapshot(msgspec.structs.replace(cluster, objects=objects))
    assert changed.agent_states["telemetry"].policies[tas_key()].labels == ()


def test_a_placement_policy_without_trust_has_the_limits_of_metrics_and_ages() -> None:
    rules = [
        {"metric": "node_load", "above": 1},
        {"metric": "secret", "above": 1},
        {"metric": "node_load", "above": 1, "maxAge": "1h"},
    ]
    cluster = Cluster(placement("pol", ALL, *rules), namespaces={"d": {}}, allowed_metrics="node_.*")
    [state] = cluster.snapshot.agent_states["telemetry"].policies.values()
    assert [part.refusal for part in state.policy.avoided()] == [
        "",
        "metric secret is not one of --allowed-metrics",
        "rules with a maxAge above 15m cannot be used",
    ]
    assert REMEDY in state.policy.not_trusted
