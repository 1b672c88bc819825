"""Responses that lack a part of the series never release a node."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies import policy_status
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PlacementPolicyStatus, PolicyCondition, PolicyStatus
from nodewise.policies.state import POLICIES, POLICY_KINDS, TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import policy, rule

WARNING = "store 10.0.0.5:10901 does not respond"
NAMES = ["r1", "r2", "r3", "r4", "r5"]
HOT = {"metric": "heat", "above": 70}
ERRORS = {"query": "rate(errors[3m]) > 0", "above": 0, "emptyMeans": "Healthy"}


class Refreshes:
    """A policy, and the responses for its only metric."""

    def __init__(self, avoid: dict[str, Any]) -> None:
        spec = {"podSelector": {}, "namespaceSelector": {}, "avoid": [avoid]}
        metadata = PolicyMetadata("p", "", "uid", 1)
        self.objects: dict[str, Any] = {name: {} for name in (*POLICY_KINDS, NAMESPACES)}
        stored = PolicyObject(metadata, msgspec.Raw(msgspec.json.encode(spec)))
        self.objects["clusterplacementpolicies"] = {("", "p"): stored}
        self._setup()

    def _setup(self) -> None:
        self.builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
        [request] = self.builder.metric_requests(self.objects)
        self.key = request.key
        self.snapshot = MetricsSnapshot()

    def respond(self, at: float, incomplete: str = "", **values: int) -> set[str]:
        """The nodes that are rejected after a response."""
        samples = {node: Sample(value * 10**9, at) for node, value in values.items()}
        series = Series(self.key, "prometheus", at, samples, incomplete=incomplete)
        self.snapshot = self.snapshot.with_series(series)
        return self.evaluate(at)

    def fail(self, at: float) -> set[str]:
        """The nodes that are rejected after an incomplete response without values."""
        cause = missing_values.cause("IncompleteAnswer", "prometheus", "gave nothing")
        self.snapshot = self.snapshot.with_failure(self.key, "why", cause)
        return self.evaluate(at)

    def evaluate(self, at: float) -> set[str]:
        nodes = NodeIndex(NAMES)
        cluster = ClusterState(nodes, self.objects, self.snapshot, at)
        state = cooperative_scheduling.run_without_pauses(self.builder.build(cluster))
        [self.state] = state.policies.values()
        assert self.state.verdict is not None
        return {
            name for name, code in zip(NAMES, self.state.verdict.codes[:-1].tolist(), strict=True) if code
        }


class TasRefreshes(Refreshes):
    """The same with a TASPolicy."""

    def __init__(self, **more: Any) -> None:
        stored = policy(dontschedule=[rule("heat", target=70, **more)])
        self.objects = {name: {} for name in (*POLICY_KINDS, NAMESPACES)}
        self.objects[POLICIES] = {(stored.metadata.namespace, stored.metadata.name): stored}
        self._setup()


@pytest.mark.parametrize("refreshes", [Refreshes(HOT), TasRefreshes()], ids=["placement", "TAS"])
def test_absent_nodes_keep_their_last_verdicts(refreshes: Refreshes) -> None:
    assert refreshes.respond(1000, r1=90, r2=60, r3=90, r4=60, r5=90) == {"r1", "r3", "r5"}
    # r1 and r2 are absent, r3 has recovered, r4 has become hot
    assert refreshes.respond(1005, WARNING, r3=60, r4=90, r5=90) == {"r1", "r4", "r5"}
    assert refreshes.respond(2000, WARNING, r3=60, r4=90, r5=90) == {"r1", "r4", "r5"}
    assert refreshes.state.suspended == ()
    assert refreshes.respond(2005, r3=60, r4=90, r5=90) == {"r4", "r5"}, "it is complete"


def test_nodes_of_which_nothing_is_known_count_as_missing() -> None:
    assert Refreshes(HOT).respond(1000, WARNING, r3=90) == {"r3"}
    strict = Refreshes(HOT | {"whenMissing": "Reject"})
    assert strict.respond(1000, WARNING, r3=60) == {"r1", "r2", "r4", "r5"}


def test_no_series_is_not_healthy_in_an_incomplete_response() -> None:
    refreshes = Refreshes(ERRORS)
    assert refreshes.respond(1000, r1=3, r2=1) == {"r1", "r2"}
    assert refreshes.respond(1005, WARNING, r2=1, r3=2) == {"r1", "r2", "r3"}
    assert refreshes.fail(1010) == {"r1", "r2", "r3"}
    assert refreshes.respond(1015, r2=1) == {"r2"}
    assert refreshes.respond(1020) == set()
    assert refreshes.fail(9000) == set(), "the last verdicts hold"


def test_an_incomplete_response_without_series_is_no_first_response() -> None:
    refreshes = Refreshes(ERRORS)
    assert refreshes.fail(1000) == set(NAMES)
    assert refreshes.state.unfetched[refreshes.key].reason == "IncompleteAnswer"
    assert refreshes.respond(1005) == set()


def test_incomplete_series_without_samples_are_not_healthy() -> None:
    """A recording or a backtest may have such a series."""
    refreshes = Refreshes(ERRORS)
    assert refreshes.respond(1000, WARNING) == set(NAMES)
    assert refreshes.state.unfetched[refreshes.key].reason == "IncompleteAnswer"
    assert refreshes.respond(1005, r1=3) == {"r1"}
    assert refreshes.respond(1010, WARNING) == {"r1"}
    assert refreshes.respond(1015) == set()


def test_rule_with_times_keeps_the_states_of_absent_nodes() -> None:
    refreshes = Refreshes(HOT | {"for": "30s", "keepFor": "1m"})
    values = {"r3": 60, "r4": 60, "r5": 60}
    assert refreshes.respond(1000, r1=90, r2=90, **values) == set()
    assert refreshes.respond(1030, r1=90, r2=60, **values) == {"r1"}
    for at in range(1035, 2000, 100):
        assert refreshes.respond(at, WARNING, **values) == {"r1"}
    assert refreshes.respond(2000, r1=60, r2=60, **values) == {"r1"}
    assert refreshes.respond(2061, r1=60, r2=60, **values) == set()


def conditions(refreshes: Refreshes, before: PlacementPolicyStatus) -> dict[str, PolicyCondition]:
    written = policy_status.desired_status(
        refreshes.state, StatusFacts(1, selected_pods=1), before, "2026-05-01T00:00:00Z"
    )
    return written.conditions_by_type()


def test_condition_names_the_metric_and_no_text_of_the_server() -> None:
    refreshes = Refreshes(HOT)
    refreshes.respond(1000, r1=90, r2=60, r3=60, r4=60, r5=60)
    assert "IncompleteAnswers" not in conditions(refreshes, PlacementPolicyStatus())
    refreshes.respond(1005, WARNING, r3=60, r4=60, r5=60)
    written = conditions(refreshes, PlacementPolicyStatus())
    condition = written["IncompleteAnswers"]
    assert (condition.status, condition.reason) == ("True", "IncompleteAnswer")
    assert condition.message.startswith(
        "Prometheus gives incomplete responses for heat: nodes that are absent keep their last verdicts"
    )
    assert "10.0.0.5" not in condition.message
    assert "NodesWithoutValues" not in written, "they do not pass for lack of a value"
    refreshes.fail(1010)
    assert conditions(refreshes, PlacementPolicyStatus())["IncompleteAnswers"].status == "True"
    refreshes.respond(1015, r1=90, r2=60, r3=60, r4=60, r5=60)
    ended = conditions(refreshes, PlacementPolicyStatus([condition]))["IncompleteAnswers"]
    assert (ended.status, ended.reason) == ("False", "AsExpected")


def test_taspolicy_has_the_condition() -> None:
    refreshes = TasRefreshes()
    refreshes.respond(1000, WARNING, r3=60)
    status = policy_status.desired_status(
        refreshes.state, StatusFacts(1), PolicyStatus(), "2026-05-01T00:00:00Z"
    )
    assert status.conditions_by_type()["IncompleteAnswers"].status == "True"


def test_rejection_for_a_missing_value_has_the_cause() -> None:
    refreshes = Refreshes(HOT | {"whenMissing": "Reject"})
    refreshes.respond(1000, WARNING, r3=60)
    assert refreshes.state.verdict is not None
    texts = [str(getattr(reason, "cause", "")) for reason in refreshes.state.verdict.reasons]
    assert any("gave an incomplete response, without these nodes" in text for text in texts)
