"""A metric that gives no node a value counts as never fetched; an empty result may be healthy."""

from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.agent import ClusterState
from nodewise.base import cooperative_scheduling
from nodewise.metrics import aggregation
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.missing_values import Cause
from nodewise.metrics.series import Sample, Series
from nodewise.policies import policy_status, policy_status_fields
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy_fields import VIOLATING
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PolicyCondition, PolicyStatus
from nodewise.policies.state import PolicyState, TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import (
    PolicyTimeline,
    cluster_state,
    metrics_snapshot,
    policy,
    rejected,
    rule,
    scores,
    series,
    snapshot,
    tas_key,
)

NOW = 1000.0
NODES = "n1 n2 n3"
CONFLICT = aggregation.conflict_text("2 series", "use a query", ' in label "sensor"')
HOT = policy(dontschedule=[rule("m", target=80)])


def never_fetched(cause: str, nodes: str = NODES) -> dict[str, str]:
    """The reason of each node, with this cause."""
    return dict.fromkeys(nodes.split(), f"telemetry policy d/pol: metric m was never fetched: {cause}")


def invalid(*nodes: str) -> Series:
    return Series("m", "test", NOW, {}, dict.fromkeys(nodes, CONFLICT))


SHORT_CONFLICT = "values of one node differ"
DIFFER = (
    "SeveralValuesPerNode",
    'the source test: 2 series of one node differ in label "sensor"; remedy: set aggregate: max or use a query',
)
UNUSABLE = {
    "invalid on all nodes": (invalid("n1", "n2", "n3"), *DIFFER),
    "invalid on one node, missing on the others": (invalid("n2"), *DIFFER),
    "of strangers": (
        series("m", x1=50, x2=60),
        "NoSeriesOfNodes",
        "the source test has values, and none of them is of a node; remedy: ",
    ),
    "without values": (series("m"), "NoSeries", "the source test has no value of a node; remedy: "),
}


def only(cluster: ClusterState, state: TelemetryStateBuilder | None = None) -> PolicyState:
    made = state or TelemetryStateBuilder(TelemetryOptions(), 60.0)
    return cooperative_scheduling.run_without_pauses(made.build(cluster)).policies[tas_key()]


def status_conditions(agent_state: PolicyState) -> dict[str, PolicyCondition]:
    return policy_status.desired_status(
        agent_state, StatusFacts(1), PolicyStatus(), "2026-05-01T00:00:00Z"
    ).conditions_by_type()


def fetched(agent_state: PolicyState) -> PolicyCondition:
    return status_conditions(agent_state)["MetricsFetched"]


@pytest.mark.parametrize(("answer", "reason", "cause"), UNUSABLE.values(), ids=UNUSABLE)
class TestUsableOnNoNode:
    def test_every_node_is_rejected(self, answer: Series, reason: str, cause: str) -> None:
        cluster_snapshot = snapshot(cluster_state([HOT], metrics_snapshot(answer)))
        event_text = SHORT_CONFLICT if reason == "SeveralValuesPerNode" else cause.partition(";")[0]
        assert rejected(cluster_snapshot) == never_fetched(event_text)
        assert rejected(cluster_snapshot, "nX") == never_fetched(event_text, "nX")
        judgement = only(cluster_state([HOT], metrics_snapshot(answer))).verdict
        assert judgement is not None
        assert cause in judgement.reasons[0].remedy(), "for explain, which shows it beside the reason"

    def test_the_condition_has_the_cause(self, answer: Series, reason: str, cause: str) -> None:
        condition = fetched(only(cluster_state([HOT], metrics_snapshot(answer))))
        assert (condition.status, condition.reason) == ("False", reason)
        assert condition.message.startswith(f"no node has a value of m: {cause}")

    def test_there_is_no_preference(self, answer: Series, reason: str, cause: str) -> None:
        prefers = policy(scheduleonmetric=[rule("m", "LessThan")])
        expected = {"n1": 0, "n2": 0, "n3": 0}
        assert scores(snapshot(cluster_state([prefers], metrics_snapshot(answer)))) == expected

    def test_no_label_changes(self, answer: Series, reason: str, cause: str) -> None:
        (column,) = only(
            cluster_state([policy(deschedule=[rule("m", target=80)])], metrics_snapshot(answer))
        ).labels
        assert not column.codes.any()
        assert column.hold.all()


def test_one_node_with_a_value_is_enough() -> None:
    answer = Series("m", "test", NOW, {"n3": Sample(81 * 10**9, NOW)}, {"n1": CONFLICT})
    cluster = cluster_state([HOT], metrics_snapshot(answer))
    assert rejected(snapshot(cluster)) == {"n3": "telemetry policy d/pol: m GreaterThan 80"}
    assert fetched(only(cluster)).status == "True"


def test_values_that_are_all_stale_at_the_first_look_count_as_never_fetched() -> None:
    cluster = cluster_state([HOT], metrics_snapshot(series("m", at=NOW - 600, n1=81, n2=5)))
    assert rejected(snapshot(cluster)) == never_fetched("every value is older than maxAge")
    condition = fetched(only(cluster))
    assert condition.status == "False"
    assert condition.reason == "ValuesOutdated"
    assert "no node has a value of m: every value is older than maxAge; remedy: " in condition.message
    assert "compare its clock with that of nodewise" in condition.message


def test_one_fresh_value_is_enough() -> None:
    answer = Series("m", "test", NOW, {"n1": Sample(81 * 10**9, NOW - 600), "n2": Sample(5 * 10**9, NOW)})
    cluster = cluster_state([HOT], metrics_snapshot(answer))
    assert rejected(snapshot(cluster)) == {}
    assert fetched(only(cluster)).status == "True"


def test_a_cluster_without_nodes_lacks_no_value() -> None:
    assert fetched(only(cluster_state([HOT], metrics_snapshot(series("m", n1=1)), ""))).status == "True"
    assert fetched(only(cluster_state([HOT], metrics_snapshot(), ""))).status == "False"


DOWN = Cause("SourceUnreachable", "Prometheus is unreachable: connection refused", "start Prometheus")


def test_the_cause_of_a_failure_is_in_the_condition() -> None:
    failed = MetricsSnapshot().with_failure("m", "query m to http://prometheus: refused", DOWN)
    condition = fetched(only(cluster_state([HOT], failed)))
    assert condition.reason == "SourceUnreachable"
    assert condition.message == (
        "no node has a value of m: Prometheus is unreachable: connection refused; remedy: start Prometheus."
        " No node passes dontschedule until each of its metrics has a value"
    )


@pytest.mark.parametrize(
    "consequence", ["", policy_status_fields.RULES_REJECT, policy_status_fields.NO_NODE_PASSES]
)
def test_the_causes_of_several_metrics(consequence: str) -> None:
    query = Cause(
        "InvalidQuery", 'Prometheus cannot run the query: "a: b; remedy: c"', "correct it. Rerun it"
    )
    causes = {"d": Cause("SourceFails", "it fails"), "a": DOWN, "b by x > 0; y": query, "c": DOWN}
    message = policy_status_fields.missing_metrics_text(causes, consequence)
    assert policy_status_fields.parse_missing_metrics(message) == [
        (("d",), "it fails", ""),
        (("a", "c"), DOWN.text, DOWN.remedy),
        (("b by x > 0; y",), query.text, query.remedy),
    ]
    assert policy_status_fields.parse_missing_metrics("every metric is available") == []
    assert policy_status_fields.missing_metrics_reason(causes) == "SourceFails"


@pytest.mark.parametrize("key", ["query by max by (node) (m)", "query or nothing by max by (node) (m)"])
def test_a_query_is_named_without_the_words_of_its_key(key: str) -> None:
    for text in (policy_status_fields.missing_metrics_text, policy_status_fields.failing_metrics_text):
        assert " of query max by (node) (m)" in text({key: DOWN})


def test_a_node_without_a_value_is_rejected_with_the_cause() -> None:
    answer = series("m", n1=5)
    rejecting = policy(dontschedule=[rule("m", target=80, when_missing="reject")])
    for snapshot_of_metrics, why in (
        (metrics_snapshot(answer), "the source test has no value of these nodes"),
        (
            metrics_snapshot(msgspec.structs.replace(answer, invalid={"n2": CONFLICT})),
            "the source test: 2 series",
        ),
        (metrics_snapshot(answer).with_failure("m", "refused", DOWN), DOWN.text),
    ):
        verdict = only(cluster_state([rejecting], snapshot_of_metrics)).verdict
        assert verdict is not None
        reason = verdict.reasons[int(verdict.codes[1]) - 1]
        assert reason.text() == "telemetry policy d/pol: no fresh value of m"
        assert f"find out why there is no fresh m: {why}" in reason.remedy()


class TestSuspension:
    def test_a_rule_that_had_values_holds_its_verdicts(self) -> None:
        timeline = PolicyTimeline(HOT)
        assert timeline.see(NOW, series("m", n1=97, n2=41, n3=41)) == {"n1"}
        assert timeline.see(NOW + 5, invalid("n1", "n2", "n3")) == {"n1"}
        assert timeline.state.suspended
        assert fetched(timeline.state).status == "True"

    def test_an_edited_rule_had_no_values(self) -> None:
        timeline = PolicyTimeline(HOT)
        timeline.see(NOW, series("m", n1=97, n2=41, n3=41))
        timeline.see(NOW + 5, invalid("n1", "n2", "n3"))
        timeline.policy = policy(dontschedule=[rule("m", target=90)])
        assert timeline.see(NOW + 10) == {"n1", "n2", "n3"}

    def test_a_suspension_ends_with_the_first_value(self) -> None:
        timeline = PolicyTimeline(HOT)
        assert timeline.see(NOW, invalid("n1", "n2", "n3")) == {"n1", "n2", "n3"}
        assert timeline.see(NOW + 5, series("m", at=NOW + 5, n1=97)) == {"n1"}


class TestAggregations:
    def test_two_rules_with_different_aggregations_share_no_values(self) -> None:
        rules = [rule("m", target=80, aggregate="max"), rule("m", "LessThan", 10, aggregate="min")]
        cluster = cluster_state(
            [policy(dontschedule=rules)],
            metrics_snapshot(series("max(m)", n1=97, n2=41), series("min(m)", n1=41, n2=5)),
        )
        assert rejected(snapshot(cluster), "n1 n2") == {
            "n1": "telemetry policy d/pol: max(m) GreaterThan 80",
            "n2": "telemetry policy d/pol: min(m) LessThan 10",
        }


QUERY = "x > 0"


def emptying(empty_means: str = "healthy", strategy: str = "dontschedule", **more: Any) -> PolicyObject:
    meaning = {"empty_means": empty_means} if empty_means else {}
    return policy(**{strategy: [rule("m", target=0, query=QUERY, **meaning, **more)]})


def empty(**values: object) -> Series:
    return series(f"m or nothing by {QUERY}", **{"at": None} | values)  # type: ignore[arg-type]


class TestEmptyResult:
    def test_an_empty_result_counts_as_fetched(self) -> None:
        cluster = cluster_state([emptying()], metrics_snapshot(empty()))
        assert rejected(snapshot(cluster)) == {}
        assert fetched(only(cluster)).status == "True"

    def test_without_the_field_an_empty_result_does_not_count_as_fetched(self) -> None:
        plain = msgspec.structs.replace(empty(), metric=f"m by {QUERY}")
        assert rejected(snapshot(cluster_state([emptying("")], metrics_snapshot(plain)))) == never_fetched(
            "the source test has no value of a node"
        )

    def test_without_a_response_a_metric_does_not_count_as_fetched(self) -> None:
        failed = MetricsSnapshot().with_failure(f"m or nothing by {QUERY}", "x")
        expected = never_fetched("no source responded with values")
        assert rejected(snapshot(cluster_state([emptying()], failed))) == expected

    def test_nodes_without_a_value_pass_even_where_the_unmeasured_are_rejected(self) -> None:
        cluster = cluster_state([emptying(when_missing="reject")], metrics_snapshot(empty(n1=1)))
        assert rejected(snapshot(cluster, TelemetryOptions(when_missing="reject"))) == {
            "n1": "telemetry policy d/pol: m GreaterThan 0"
        }

    def test_values_that_are_invalid_on_all_nodes_are_not_healthy(self) -> None:
        bad = msgspec.structs.replace(invalid("n1"), metric=f"m or nothing by {QUERY}")
        assert rejected(snapshot(cluster_state([emptying()], metrics_snapshot(bad)))) == never_fetched(
            SHORT_CONFLICT
        )

    def test_nodes_that_recover_are_not_lost(self) -> None:
        timeline = PolicyTimeline(emptying())
        assert timeline.see(NOW, empty(n1=1, n2=1, n3=1)) == {"n1", "n2", "n3"}
        assert timeline.see(NOW + 5, empty()) == set()
        assert not timeline.state.suspended

    def test_labels_of_nodes_that_recover_are_removed(self) -> None:
        timeline = PolicyTimeline(emptying(strategy="deschedule"))
        timeline.see(NOW, empty(n1=1))
        (column,) = timeline.state.labels
        assert (column.values, column.codes.tolist()) == ((VIOLATING,), [1, 0, 0, 0])
        timeline.see(NOW + 5, empty())
        (column,) = timeline.state.labels
        assert not column.codes.any()
        assert not column.hold.any()

    def test_a_source_that_dies_leaves_the_last_verdicts(self) -> None:
        timeline = PolicyTimeline(emptying())
        timeline.see(NOW, empty(n1=1))
        timeline.metrics = timeline.metrics.with_failure(f"m or nothing by {QUERY}", "refused", DOWN)
        assert timeline.see(NOW + 600) == {"n1"}
        assert timeline.state.suspended
        suspended = status_conditions(timeline.state)["Suspended"].message
        assert f"lost their value at once ({DOWN})" in suspended
        assert not np.any(timeline.state.filter_rules[0].inputs.known[1:])


def test_a_rule_that_becomes_unusable_while_the_nodes_change_does_not_stop_the_agent() -> None:
    """The values of its metric are still there, by the numbers of the earlier nodes."""
    builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    values = metrics_snapshot(series("a", n1=5), series("b", n1=5))
    used = policy(dontschedule=[rule("a", target=1), rule("b", target=1)])
    cooperative_scheduling.run_without_pauses(builder.build(cluster_state([used], values, "n1")))
    unusable = policy(dontschedule=[rule("a", target=1), rule("b", "Above", target=1)])
    states = cooperative_scheduling.run_without_pauses(
        builder.build(cluster_state([unusable], values, "n1 n2 n3"))
    )
    assert states.policies[tas_key()].verdict.codes.tolist() == [1, 1, 1, 1]
