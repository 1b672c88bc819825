"""From pods to scores: cases 175 to 182 of the older system, and its errors."""

import pytest

from nodewise.agent import ClusterState
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.learned import LearnedOptions
from nodewise_scorers.learned.agent import PODS
from scorers_tests.unit.learned.pod_histories import (
    NEVER_FADES,
    PodHistory,
    end,
    pod,
    running,
    terminated,
    waiting,
)


def new_history(options: LearnedOptions = NEVER_FADES, nodes: int = 3) -> PodHistory:
    history = PodHistory(options, nodes)
    history.update()
    return history


def test_a_new_node_begins_with_the_prior() -> None:
    history = new_history()
    history.update(pod("a", "n1", phase="Failed"))
    history.update(pod("b", "n2", running()), pod("c", "n3", phase="Failed"))
    assert [history.reward(node) for node in range(3)] == [0.9, 1.0, 0.9]


def test_an_untried_type_scores_as_the_prior() -> None:
    options = LearnedOptions(learned_prior=0.5)
    history = new_history(options)
    assert history.points() == [5, 5, 5]
    history.update(pod("a", "n1", running()), pod("b", "n2", phase="Failed"))
    assert history.points() == [5, 4, 5]
    assert history.points("E") == [5, 5, 5]
    assert history.numbers(2) == {"reward": 0.5, "tried": 0, "type": "D", "missing": "never tried"}
    assert history.numbers(0)["tried"] == 1


def test_an_untried_type_scores_as_set() -> None:
    history = new_history(LearnedOptions(score_missing=3))
    history.update(pod("a", "n1", running()))
    assert history.points() == [10, 3, 3]


def test_pods_of_the_first_snapshot_teach_nothing() -> None:
    history = PodHistory()
    history.update(pod("a", "n1", phase="Failed"), pod("b", "n2", terminated()))
    assert history.points() == [10, 10, 10]
    history.update(pod("b", "n2", running(1, end(0, 0))))
    assert history.numbers(1)["tried"] == 0
    history.update(pod("b", "n2", terminated(20, 30, 1, end(0, 0))))
    assert history.reward(1) == 0.9


def test_a_repeated_update_teaches_nothing() -> None:
    history = new_history()
    for _ in range(5):
        history.update(pod("a", "n1", terminated(0, 10)), pod("b", "n2", running()))
    assert [history.numbers(node)["tried"] for node in range(2)] == [1, 1]


def test_another_pod_of_the_same_name_is_another() -> None:
    history = new_history()
    history.update(pod("web-0", "n1", phase="Failed", uid="u1"))
    history.update(pod("web-0", "n1", phase="Failed", uid="u2"))
    assert history.numbers()["tried"] == 2


def test_a_terminating_pod_teaches_nothing() -> None:
    history = new_history()
    history.update(pod("a", "n1", running()))
    history.update(pod("a", "n1", phase="Failed", deletionTimestamp="2026-11-21T11:00:00Z"))
    history.update(pod("b", "n2", phase="Failed", deletionTimestamp="2026-11-21T11:00:00Z"))
    assert [history.numbers(node)["tried"] for node in range(2)] == [1, 0]


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
def test_pods_bound_to_their_node_by_a_controller_teach_nothing(kind: str) -> None:
    history = new_history()
    owners = [{"kind": kind, "name": "exporter", "controller": True}]
    history.update(pod("a", "n1", phase="Failed", ownerReferences=owners))
    assert history.numbers()["tried"] == 0


def test_only_pods_of_the_namespaces_that_were_set_teach() -> None:
    history = new_history(LearnedOptions(learned_namespaces=("d", "e")))
    history.update(pod("a", "n1", phase="Failed"), pod("b", "n2", phase="Failed", namespace="f"))
    assert history.points() == [9, 10, 10]
    assert history.points(namespace="f") == [10, 10, 10]


def test_namespaces_do_not_affect_each_other() -> None:
    history = new_history()
    history.update(pod("a", "n1", phase="Failed", namespace="evil"))
    assert history.points(namespace="evil") == [9, 10, 10]
    assert history.points(namespace="d") == [10, 10, 10]


def test_names_that_meant_something_elsewhere() -> None:
    history = new_history()
    history.index = type(history.index)(["all", "n1"])
    history.update(pod("a", "all", phase="Failed", labels={"podtype": "all"}))
    assert history.points("all") == [9, 10]
    assert history.points("D") == [10, 10]


class TestFading:
    HOUR_S = 3600.0
    OPTIONS = LearnedOptions(learned_half_life_s=3600.0)

    def test_half_of_an_estimate_is_forgotten_after_a_half_life(self) -> None:
        history = new_history(self.OPTIONS)
        history.update(*(pod(f"p{number}", "n1", phase="Failed") for number in range(10)))
        assert (history.reward(), history.points()[0]) == (0.348678, 3)
        history.update(after_s=self.HOUR_S)
        assert (history.reward(), history.points()[0]) == (0.674339, 6)
        history.update(after_s=20 * self.HOUR_S)
        assert history.reward() == pytest.approx(1.0, abs=1e-5)

    def test_nothing_where_it_is_off(self) -> None:
        history = new_history()
        history.update(pod("a", "n1", phase="Failed"))
        history.update(after_s=1e9)
        assert history.reward() == 0.9

    def test_nothing_where_the_clock_was_set_back(self) -> None:
        history = new_history(self.OPTIONS)
        history.update(pod("a", "n1", phase="Failed"))
        history.update(after_s=-1e6)
        assert history.reward() == 0.9
        history.update(pod("b", "n1", phase="Failed"), after_s=-1e6)
        assert history.reward() == 0.81


class TestExploration:
    OPTIONS = LearnedOptions(learned_prior=0.5, learned_exploration=0.2, learned_half_life_s=0.0)

    def test_rarely_tried_nodes_get_a_bonus(self) -> None:
        history = new_history(self.OPTIONS, 2)
        assert history.points() == [5, 5]
        history.update(*(pod(f"p{number}", "n1", running()) for number in range(5)))
        details = [history.numbers(node) for node in range(2)]
        assert details[0]["bonus"] == pytest.approx(0.2 * (1.791759469 / 6) ** 0.5)
        assert details[1]["bonus"] == pytest.approx(0.2 * 1.791759469**0.5)
        assert history.points() == [8, 7]

    def test_no_score_leaves_the_scale(self) -> None:
        history = new_history(LearnedOptions(learned_exploration=10.0))
        history.update(pod("a", "n1", phase="Failed"))
        assert history.points() == [10, 10, 10]


def test_an_interrupted_build_loses_nothing_and_counts_nothing_twice() -> None:
    pods = {
        ("d", f"p{number}"): pod(f"p{number}", f"n{number % 3 + 1}", phase="Failed") for number in range(300)
    }
    whole = new_history()
    whole.pods = dict(pods)
    whole.build()
    for stops in range(1, 14):
        history = new_history()
        history.pods = dict(pods)
        work = history.state.build(
            ClusterState(history.index, {PODS: history.pods}, MetricsSnapshot(), history.now + 1)
        )
        for _ in range(stops):
            next(work)
        work.close()
        # a build after a failed one starts from nothing
        history.now += 1
        cluster = ClusterState(history.index, {PODS: history.pods}, MetricsSnapshot(), history.now)
        history.agent_state = cooperative_scheduling.run_without_pauses(history.state.build(cluster))
        assert [history.numbers(node) for node in range(3)] == [whole.numbers(node) for node in range(3)]


def test_builds_within_a_second_are_one() -> None:
    history = new_history()
    history.update(pod("a", "n1", phase="Failed"), after_s=0.5)
    assert history.numbers()["tried"] == 0
    history.update(pod("b", "n1", phase="Failed"), after_s=0.5)
    assert history.numbers()["tried"] == 2
    history.update(pod("c", "n1", phase="Failed"), after_s=0.5)
    history.index = type(history.index)(["n1"])
    history.build(after_s=0.1)
    assert history.numbers()["tried"] == 3


def test_a_node_that_is_gone_is_forgotten_after_a_day() -> None:
    history = new_history()
    history.update(pod("a", "n3", phase="Failed"))
    before = history.index
    history.index = type(before)(["n1", "n2"])
    history.update(after_s=3600)
    history.index = type(before)(["n1", "n2", "n3"])
    history.update(after_s=3600)
    assert history.reward(2) == 0.9
    history.index = type(before)(["n1", "n2"])
    history.update(after_s=90_000)
    history.index = type(before)(["n1", "n2", "n3"])
    history.update()
    assert history.numbers(2)["tried"] == 0


def test_without_a_state_there_are_no_scores() -> None:
    history = PodHistory()
    assert history._ask("D") is None


def test_words() -> None:
    history = new_history()
    history.update(pod("a", "n1", phase="Failed"), pod("b", "n2", waiting()))
    details = history._ask("D").details
    assert [details.text(at) for at in range(2)] == ["type D: reward 0.90 after 1 try", "type D: never tried"]
    assert details.nbytes > 0
    assert details.distances().tolist() == [0, 0, 0]
