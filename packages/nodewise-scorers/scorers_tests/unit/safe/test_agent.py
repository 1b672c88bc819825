"""Verdicts and scores of the safe agent. The older system's numbered cases are in tests/conformance."""

from typing import Any

import numpy as np
import pytest

from nodewise.agent import NodeIndex, ScorePlugin, Snapshot
from nodewise.base import clock
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.safe import KIND, SafeOptions
from scorers_tests.unit.safe.safe_agent_calls import GIB, NOW, AgentCall, loaded, node, pod, pod_with

NOTHING = pod()


def test_the_pod_adds_its_request_to_the_mean():
    call = AgentCall(node(cpu=2000, cpu_std=400, memory=3 * GIB, memory_std=GIB // 2))
    cpu, memory = call.numbers(pod(cpu="500m", memory="1Gi")).values()
    assert (cpu["mean_share"], cpu["std_share"]) == (0.625, 0.1)
    assert (memory["mean_share"], memory["std_share"]) == (0.75, 0.0625)
    assert cpu["risk"] == pytest.approx(0.000345, abs=1e-6)
    assert cpu["threshold"] == 0.9
    assert (cpu["alpha"], cpu["beta"]) == pytest.approx((14.0234375, 8.4140625))


@pytest.mark.parametrize(
    ("spec", "shares"),
    [
        ({"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}, (0.625, 0.75)),
        ({"overhead": {"cpu": "250m"}}, (0.5625, 0.625)),
        ({"initContainers": [{"resources": {"requests": {"cpu": "1"}}}]}, (0.75, 0.625)),
    ],
    ids=["pod-level", "overhead", "init container"],
)
def test_the_request_of_a_pod_is_that_of_kube_scheduler(spec, shares):
    call = AgentCall(node(cpu=2000, cpu_std=400, memory=3 * GIB, memory_std=GIB // 2))
    cpu, memory = call.numbers(pod_with(spec)).values()
    assert (cpu["mean_share"], memory["mean_share"]) == shares


def test_a_pod_is_rejected_by_its_pod_level_request():
    call = AgentCall(loaded(0.3, 0.05), loaded(0.8, 0.02, "n2"))
    assert call.accepts(NOTHING) == [True, True]
    assert call.accepts(pod_with({"resources": {"requests": {"cpu": "700m"}}})) == [True, False]


def test_the_worse_resource_decides():
    call = AgentCall(node(cpu=2000, cpu_std=400, memory=0.2 * GIB, memory_std=GIB // 2))
    verdict = call.filter(pod(cpu="500m"))
    assert verdict.codes.tolist() == [2]
    assert verdict.reasons[1].text() == "safe: risk of memory above 30 %"
    assert call.overload(pod(cpu="500m")) == [0]


def test_the_first_of_two_reasons_is_given():
    assert AgentCall(node(cpu=0, memory=0)).filter(NOTHING).codes.tolist() == [1]


@pytest.mark.parametrize("weight", [0, 20, 100])
def test_a_forecast_counts_by_its_weight(weight):
    call = AgentCall(node(cpu=2500, cpu_std=400, cpu_forecast=1000), safe_forecast_weight=weight)
    assert call.numbers(NOTHING)["cpu"]["mean_share"] == pytest.approx(0.375 + 0.00375 * weight)


@pytest.mark.parametrize("text", ["N/A", "None", "nan", ""])
def test_a_forecast_that_is_no_number_does_not_count(text):
    call = AgentCall(node(cpu=2500, cpu_forecast=text))
    assert call.numbers(NOTHING)["cpu"]["mean_share"] == 0.375


@pytest.mark.parametrize(("std", "share"), [("abc", 0), ("nan", 0), ("-400", 0), ("1e308", 1), ("400", 0.1)])
def test_an_invalid_deviation_is_0(std, share):
    assert AgentCall(node(cpu=2000, cpu_std=std)).numbers(NOTHING)["cpu"]["std_share"] == share


@pytest.mark.parametrize(
    ("free", "share"), [("-1e308", 1), ("1e308", 0), ("5000", 0), ("-2000", 1), ("4000.0", 0)]
)
def test_shares_stay_between_0_and_1(free, share):
    call = AgentCall(node(cpu=free, cpu_forecast=free, cpu_std="1e308"))
    assert call.numbers(NOTHING)["cpu"]["mean_share"] == share
    assert 0 <= call.overload(NOTHING)[0] <= 10


def test_with_a_percentile_of_0_no_risk_is_the_only_one_accepted():
    call = AgentCall(loaded(0.2, 0.05, "calm"), loaded(0.2, 0.1, "lively"), safe_percentile=0)
    assert call.accepts(NOTHING) == [True, False]
    assert call.overload(NOTHING) == [10, 0]


def test_a_risk_equal_to_the_percentile_is_accepted():
    assert AgentCall(loaded(0.95, 0.15), safe_percentile=100).accepts(NOTHING) == [True]
    assert AgentCall(loaded(0.95, 0.0), safe_percentile=100).accepts(NOTHING) == [True]


class TestWithoutStatistics:
    BARE = node("bare")

    def test_a_node_is_accepted_and_scores_0(self):
        assert AgentCall(self.BARE).all(pod(cpu="1")) == (True, 0, 0)

    def test_it_can_be_rejected_and_scored_otherwise(self):
        call = AgentCall(self.BARE, loaded(0.2, 0.05), when_missing="reject", score_missing=5)
        verdict = call.filter(NOTHING)
        assert verdict.codes.tolist() == [3, 0]
        assert verdict.reasons[2].text() == "safe: no fresh statistics"
        assert call.overload(NOTHING) == [5, 10]
        assert call.balance(NOTHING) == [5, 8]

    def test_pass_is_another_word_for_accept(self):
        assert AgentCall(self.BARE, when_missing="pass").accepts(NOTHING) == [True]

    def test_one_resource_is_enough(self):
        call = AgentCall(node(memory=3 * GIB, memory_std=GIB // 2), when_missing="reject")
        assert call.all(pod(cpu="500m", memory="1Gi")) == (True, 9, 5)

    def test_the_decision_names_missing_statistics(self):
        details = AgentCall(node(memory=3 * GIB, memory_std=0)).filter(NOTHING).details
        assert details.text(0) == "cpu: no statistics; memory 62.5 % ± 0 %, risk 0 %"
        assert details.numbers(0)["cpu"]["missing"] == "no statistics"
        assert np.isnan(details.numbers(0)["cpu"]["mean_share"])
        assert "missing" not in details.numbers(0)["memory"]

    @pytest.mark.parametrize("annotations", [{}, {"cpu_std": ""}, {"cpu_std": "nan"}, {"cpu_std": "1e400"}])
    def test_the_decision_tells_a_deviation_that_is_missing_from_one_of_0(self, annotations):
        call = AgentCall(node(cpu=1000, memory=3 * GIB, memory_std=0, **annotations), when_missing="reject")
        assert call.accepts(NOTHING) == [True]
        details = call.filter(NOTHING).details
        assert details.text(0) == "cpu 75 %, no deviation, risk 0 %; memory 62.5 % ± 0 %, risk 0 %"
        numbers = details.numbers(0)
        assert numbers["cpu"]["missing"] == "no deviation"
        assert (numbers["cpu"]["std_share"], numbers["cpu"]["risk"]) == (0, 0)
        assert "missing" not in numbers["memory"]

    def test_old_ones_are_none(self):
        old = node(cpu=2000, at=clock.format_rfc3339(NOW - 4000))
        call = AgentCall(old, when_missing="reject")
        assert call.accepts(NOTHING) == [False]
        assert call.filter(NOTHING).details.text(0).startswith("cpu: statistics are too old; ")

    def test_a_node_without_capacity_has_none(self):
        call = AgentCall(node(room={}, cpu=2000, cpu_std=0))
        assert call.all(pod(cpu="1")) == (True, 0, 0)
        assert call.numbers(NOTHING)["cpu"]["missing"] == "nothing is allocatable"

    def test_an_unknown_node_has_no_score(self):
        call = AgentCall(loaded(0.2, 0.05))
        assert call.filter(NOTHING, ["strange", "n1"]).codes.tolist() == [0, 0]
        assert call.overload(NOTHING, ["strange", "n1"]) == [0, 10]


class TestOfManyNodes:
    def test_answers_are_in_the_order_of_the_request(self):
        call = AgentCall(loaded(0.2, 0.05, "a"), loaded(0.95, 0.0, "b"), loaded(0.75, 0.1, "c"))
        assert call.overload(NOTHING, ["c", "b", "a"]) == [6, 0, 10]
        assert call.filter(NOTHING, ["c", "b", "a"]).codes.tolist() == [0, 1, 0]

    def test_no_nodes(self):
        call = AgentCall()
        assert call.overload(NOTHING) == []
        assert call.balance(NOTHING) == []
        assert call.filter(NOTHING).codes.tolist() == []
        assert call.filter(NOTHING).details.distances().tolist() == []

    def test_5000_equal_ones(self):
        call = AgentCall(*(loaded(0.75, 0.1, f"n{number}") for number in range(5000)))
        assert set(call.overload(NOTHING)) == {6}
        assert set(call.balance(NOTHING)) == {5}
        assert not call.filter(NOTHING).codes.any()


class TestPreempting:
    def test_the_load_of_a_victim_is_not_subtracted(self):
        call = AgentCall(loaded(0.95, 0.0))
        verdict = call.agent.preempt(NOTHING, call.names, call.snapshot, {"n1": frozenset({"other"})})
        assert verdict.codes.tolist() == [1]

    def test_a_pod_that_is_there_already_is_not_added_once_more(self):
        call = AgentCall(loaded(0.8, 0.0, "a"), loaded(0.8, 0.0, "b"))
        pod_with_request = pod(uid="u", cpu="1")
        victims = {"a": frozenset({"u"}), "b": frozenset({"other"})}
        assert call.accepts(pod_with_request) == [False, False]
        actual = call.agent.preempt(pod_with_request, call.names, call.snapshot, victims).codes.tolist()
        assert actual == [0, 1]

    def test_a_pod_without_a_uid_is_no_victim(self):
        call = AgentCall(loaded(0.8, 0.0))
        verdict = call.agent.preempt(pod(cpu="1"), call.names, call.snapshot, {"n1": frozenset()})
        assert verdict.codes.tolist() == [1]


class TestDetails:
    def test_distances_grow_with_the_risk(self):
        call = AgentCall(
            loaded(0.85, 0.1, "near"), loaded(0.95, 0.15, "far"), loaded(0.95, 0.0, "full"), node("bare")
        )
        near, far, full, bare = call.filter(NOTHING).details.distances()
        assert 0 < near < far < full
        assert full == bare == 1

    def test_they_have_numbers_and_a_size(self):
        details = AgentCall(loaded(0.85, 0.1)).filter(NOTHING).details
        assert details.nbytes == 2 * (8 + 8 + 8 + 1)

    def test_numbers_of_many_candidates_are_those_of_each(self):
        """Risks are computed in blocks."""
        loads = [(number % 97 / 97, number % 31 / 62) for number in range(150)]
        details = (
            AgentCall(*(loaded(*load, f"n{place}") for place, load in enumerate(loads)))
            .filter(NOTHING)
            .details
        )
        for place in (0, 63, 64, 100, 149):
            assert repr(details.numbers(place)) == repr(AgentCall(loaded(*loads[place])).numbers(NOTHING))
        assert len(details.distances()) == 150

    def test_words(self):
        details = AgentCall(loaded(0.625, 0.1)).filter(NOTHING).details
        assert details.text(0) == "cpu 62.5 % ± 10 %, risk 0.0345 %; memory: no statistics"

    def test_no_fit_where_nothing_varies(self):
        cpu = AgentCall(loaded(0.625, 0.0)).numbers(NOTHING)["cpu"]
        assert np.isnan([cpu["alpha"], cpu["beta"]]).all()
        assert cpu["risk"] == 0

    def test_the_distribution_where_it_is_asked_for(self):
        call = AgentCall(loaded(0.5, 0.05**0.5), loaded(0.5, 0.0, "steady"), safe_print_table=True)
        table = call.numbers(NOTHING)["cpu"]["table"]
        assert {len(column) for column in table.values()} == {21}
        assert [column[18] for column in table.values()] == pytest.approx(
            [0.9, 0.54, 0.972, 0.033929], abs=1e-6
        )
        assert "table" not in call.numbers(NOTHING)["memory"]
        assert "table" not in call.numbers(NOTHING, 1)["cpu"]


def test_the_agent_has_a_predicate_and_two_priorities():
    agent = KIND.agent(SafeOptions())
    assert isinstance(agent, ScorePlugin)
    assert list(agent.predicates) == ["safe-overload"]
    assert list(agent.priorities) == ["safe-overload", "safe-balance"]


def test_the_equivalence_key_is_the_request_of_the_pod():
    agent = KIND.agent(SafeOptions())
    nothing = Snapshot(NodeIndex(), {}, 0.0)

    def key(of: Any) -> Any:
        return agent.equivalence_key(of, nothing)

    assert key(pod(uid="a", cpu="1")) == key(pod(uid="b", cpu="1000m"))
    assert key(pod(cpu="1")) != key(pod(cpu="2"))


def test_before_nodes_are_read_no_node_is_accepted():
    agent, snapshot = KIND.agent(SafeOptions()), Snapshot(NodeIndex(["n1"]), {}, NOW)
    names = snapshot.nodes.named(["n1"])
    for verdict in (
        agent.filter(NOTHING, names, snapshot),
        agent.preempt(NOTHING, names, snapshot, {"n1": frozenset()}),
    ):
        assert verdict.codes.tolist() == [1]
        assert verdict.reasons[0].is_failure
    assert agent.score(NOTHING, names, snapshot) is None
    assert agent.balance(NOTHING, names, snapshot) is None


def test_before_metrics_were_asked_for_no_node_is_accepted():
    metric_requests = sorted(KIND.state(SafeOptions(statistics="metrics"), 5.0).metric_requests({}))
    some = MetricsSnapshot(failures={metric_request.key: "away" for metric_request in metric_requests[1:]})
    for metrics_snapshot in (None, some):
        call = AgentCall(node(), statistics="metrics", metrics_snapshot=metrics_snapshot)
        verdict = call.filter(NOTHING)
        assert (verdict.codes.tolist(), verdict.reasons[0].is_failure) == ([1], True)
        assert verdict.reasons[0].text() == "safe: starting, the load of nodes is not known yet"
        assert call.agent.score(NOTHING, call.names, call.snapshot) is None
    failed = some.with_failure(metric_requests[0].key, "away")
    assert AgentCall(node(), statistics="metrics", metrics_snapshot=failed).accepts(NOTHING) == [True]


def test_the_agent_is_concerned_if_a_node_has_statistics():
    assert not KIND.concerns(SafeOptions(), [node(), node(at="2026-11-21T00:00:00Z")], [NOTHING])
    assert KIND.concerns(SafeOptions(), [node(), node(memory=1)], [])
    assert KIND.concerns(SafeOptions(statistics="metrics"), [node()], [])


def test_metrics_are_requested_only_as_the_source_of_statistics():
    state = KIND.state(SafeOptions(statistics="metrics"), 5.0)
    assert state.inputs.metrics
    expected = {"cpu_used_mean", "cpu_used_deviation", "memory_used_mean", "memory_used_deviation"}
    assert {metric_request.metric for metric_request in state.metric_requests({})} == expected
    assert KIND.state(SafeOptions(), 5.0).metric_requests({}) == frozenset()
