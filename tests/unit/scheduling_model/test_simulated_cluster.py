import math
from collections.abc import Iterable
from typing import Any

import pytest

from nodewise.base.clock import ManualClock
from nodewise.base.errors import BadSettings
from nodewise.scheduling_model import simulated_cluster
from nodewise.scheduling_model.simulated_cluster import Cluster, Queue, SimulatedSchedulerOptions
from tests.cluster import kubernetes_objects as made
from tests.unit.scheduling_model import fake_extender
from tests.unit.scheduling_model.fake_extender import FakeExtender

Object = dict[str, Any]
NO_VICTIMS = "No preemption victims found for incoming pod"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def fake() -> FakeExtender:
    return FakeExtender()


def with_extender(clock: ManualClock, fake: FakeExtender, seed: int = 0) -> Cluster:
    """A cluster of two nodes with four cores, with the fake as its only extender."""
    options = SimulatedSchedulerOptions(seed=seed, transport=fake.transport)
    return Cluster(made.nodes("a b"), [fake_extender.ENTRY], clock=clock, options=options)


def without_extender(
    clock: ManualClock, nodes: Iterable[Object], running: Iterable[Object] = (), **options: Any
) -> Cluster:
    return Cluster(nodes, running=running, clock=clock, options=SimulatedSchedulerOptions(**options))


class TestPlacement:
    def test_without_extenders_requests_decide(self, clock: ManualClock) -> None:
        load = made.running_on("a", made.pod("load", cpu="3"))
        with without_extender(clock, made.nodes("a b"), [load]) as cluster:
            assert cluster.submit(made.pod("web")) == ("b", "", "")

    @pytest.mark.parametrize(("ignored", "node"), [(frozenset(), None), ({"telemetry/scheduling"}, "a")])
    def test_ignored_resource_is_not_counted(
        self, clock: ManualClock, ignored: frozenset[str], node: str | None
    ) -> None:
        marked = made.pod("web", limits={"telemetry/scheduling": "1"})
        with without_extender(clock, made.nodes("a"), ignored=frozenset(ignored)) as cluster:
            assert cluster.submit(marked).node == node

    def test_first_of_equal_nodes_is_chosen(self, clock: ManualClock) -> None:
        with without_extender(clock, made.nodes("a b c")) as cluster:
            assert cluster.submit(made.pod("web")).node == "a"

    def test_seed_decides_among_nodes_with_equal_extender_scores(self, fake: FakeExtender) -> None:
        def run(seed: int) -> list[str | None]:
            with with_extender(ManualClock(), fake, seed) as cluster:
                return [cluster.submit(made.pod(f"p{i}", cpu="0", memory="0")).node for i in range(6)]

        assert run(1) == run(1)
        assert len({*run(1), *run(2)}) > 1

    def test_pods_of_other_namespaces_have_full_names(self, clock: ManualClock) -> None:
        web = made.pod("web")
        web["metadata"]["namespace"] = "shop"
        with without_extender(clock, made.nodes("a")) as cluster:
            cluster.submit(web)
            assert cluster.outcome("shop/web").node == "a"

    def test_pod_that_names_its_node_runs_there(self, clock: ManualClock) -> None:
        with without_extender(clock, made.nodes("a b")) as cluster:
            assert cluster.submit(made.running_on("b", made.pod("web", cpu="99"))).node == "b"

    def test_ended_pod_takes_no_room(self, clock: ManualClock) -> None:
        over = made.running_on("a", made.pod("job", cpu="4")) | {"status": {"phase": "Succeeded"}}
        with without_extender(clock, made.nodes("a"), [over]) as cluster:
            assert cluster.submit(made.pod("web", cpu="4")).node == "a"

    def test_affinity_of_the_examples_avoids_violating_nodes(self, clock: ManualClock) -> None:
        term = {"key": "web", "operator": "NotIn", "values": ["violating"]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        web = made.pod("web")
        web["spec"]["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
        marked = made.node("a", cpu="99", labels={"web": "violating"})
        with without_extender(clock, [marked, *made.nodes("b")]) as cluster:
            assert cluster.submit(web).node == "b"

    def test_invalid_extenders_are_rejected(self, clock: ManualClock) -> None:
        with pytest.raises(BadSettings, match="extenders"):
            Cluster([], [{"urlPrefix": "http://x", "bindVerb": "bind"}], clock=clock)


class TestMessage:
    @pytest.mark.parametrize(
        ("cpu", "spec", "preemption"),
        [
            ("9", {}, "0/2 nodes are available: 2 Preemption is not helpful for scheduling."),
            (
                "3",
                {},
                f"0/2 nodes are available: 1 {NO_VICTIMS}, 1 Preemption is not helpful for scheduling.",
            ),
            ("3", {"preemptionPolicy": "Never"}, "not eligible due to preemptionPolicy=Never."),
        ],
    )
    def test_message_of_an_unschedulable_pod(
        self, clock: ManualClock, cpu: str, spec: Object, preemption: str
    ) -> None:
        """Node a has less room than the pod requests, node b has too little even if it is empty."""
        web = made.pod("web", cpu=cpu)
        web["spec"] |= spec
        load = made.running_on("a", made.pod("load", cpu="2"))
        message = f"0/2 nodes are available: 2 Insufficient cpu. preemption: {preemption}"
        with without_extender(clock, [made.node("a", cpu="4"), made.node("b", cpu="2")], [load]) as cluster:
            assert cluster.submit(web) == (None, "Unschedulable", message)
            assert cluster.event("web") == message

    def test_message_of_a_cluster_without_nodes(self, clock: ManualClock) -> None:
        with without_extender(clock, []) as cluster:
            assert cluster.submit(made.pod("web")).message == "no nodes available to schedule pods"

    def test_node_that_only_an_extender_rejects_has_no_victims(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            assert cluster.submit(made.pod("web")).message == (
                f"0/2 nodes are available: 2 hot. preemption: 0/2 nodes are available: 2 {NO_VICTIMS}."
            )


class TestRetries:
    def test_condition_of_a_pod_is_an_event_after_rejection_by_an_extender(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        """Observed with kube-scheduler 1.36.3: it calls filter twice, and not again."""
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            cluster.submit(made.pod("web"))
            simulated_cluster.pass_time(cluster, clock, 60)
        assert fake.calls == [("filter", "web")] * 2

    def test_bound_pod_is_an_event_after_rejection_by_an_extender(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            cluster.submit(made.pod("web"))
            fake.reject = {}
            cluster.submit(made.pod("other"))
            assert cluster.outcome("web").node

    def test_rejected_pod_is_retried_after_five_minutes_without_an_event(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            cluster.submit(made.pod("web"))
            fake.reject = {}
            simulated_cluster.pass_time(cluster, clock, 299)
            assert cluster.outcome("web").node is None
            simulated_cluster.pass_time(cluster, clock, 31)
            assert cluster.outcome("web").node

    def test_pod_without_room_is_retried_after_a_deletion(self, clock: ManualClock) -> None:
        with without_extender(clock, made.nodes("a")) as cluster:
            cluster.submit(made.pod("first", cpu="3"))
            cluster.submit(made.pod("second", cpu="3"))
            cluster.touch()
            assert cluster.outcome("second").message.startswith(
                "0/1 nodes are available: 1 Insufficient cpu."
            )
            cluster.delete("first")
            assert cluster.outcome("second").node == "a"

    def test_failed_attempt_is_repeated_without_an_event(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.broken = {"filter"}
        with with_extender(clock, fake) as cluster:
            assert cluster.submit(made.pod("web")).reason == "SchedulerError"
            assert cluster.event("web") == cluster.outcome("web").message
            fake.broken = set()
            cluster.touch()
            assert cluster.outcome("web").node is None
            simulated_cluster.pass_time(cluster, clock, 2)
            assert cluster.outcome("web").node

    def test_cluster_without_pending_pods_has_no_due_work(self, clock: ManualClock) -> None:
        with without_extender(clock, made.nodes("a")) as cluster:
            cluster.submit(made.pod("web"))
            assert cluster.next_due_s() == math.inf
            simulated_cluster.pass_time(cluster, clock, 1000)
        assert clock.now() == 2000


SAMPLES = {1: 1, 99: 99, 100: 100, 150: 100, 250: 120, 1000: 420, 5000: 500, 5625: 281, 6000: 300}


@pytest.mark.parametrize(("nodes", "sample"), SAMPLES.items())
def test_number_of_feasible_nodes_to_find(nodes: int, sample: int) -> None:
    assert simulated_cluster.feasible_nodes_to_find(nodes) == sample


FIT = frozenset({"NodeResourcesFit"})
ERROR: frozenset[str] = frozenset()


def queue(*pods: tuple[str, int], now_s: float = 0) -> Queue:
    queue = Queue(began_s=0)
    for key, priority in pods:
        queue.add(key, priority, now_s)
    return queue


def drained(waiting: Queue, now_s: float) -> list[str]:
    """The pods that are due now. Each of them is rejected again."""
    tried = []
    while (key := waiting.pop(now_s)) is not None:
        tried.append(key)
        waiting.put_back(key, FIT, now_s)
    return tried


class TestQueue:
    def test_higher_priority_and_then_earlier_arrival_is_first(self) -> None:
        assert drained(queue(("a", 0), ("b", 5), ("c", 0), ("d", 5)), now_s=0) == ["b", "d", "a", "c"]

    def test_pod_stays_until_it_is_removed(self) -> None:
        waiting = queue(("a", 0))
        assert [waiting.pop(0), waiting.pop(0)] == ["a", "a"]
        waiting.remove("a")
        assert waiting.pop(0) is None
        assert waiting.next_due_s() == math.inf

    def test_rejected_pod_waits_for_an_event_of_its_rejector(self) -> None:
        waiting = queue(("a", 0))
        drained(waiting, now_s=0)
        waiting.retry_rejected_by({"Extender"}, now_s=0)
        assert drained(waiting, now_s=0) == []
        waiting.retry_rejected_by({"Extender", *FIT}, now_s=0)
        assert drained(waiting, now_s=0) == ["a"]

    def test_rejected_pod_is_flushed_after_five_minutes_at_the_next_half_minute(self) -> None:
        waiting = queue(("a", 0), now_s=5)
        drained(waiting, now_s=5)
        assert waiting.next_due_s() == 330
        assert drained(waiting, now_s=329) == []
        assert drained(waiting, now_s=330) == ["a"]

    def test_back_off_of_failed_attempts_doubles(self) -> None:
        waiting = queue(("a", 0))
        due_s = []
        now_s = 0.0
        for _ in range(6):
            assert waiting.pop(now_s) == "a"
            waiting.put_back("a", ERROR, now_s)
            assert waiting.pop(now_s) is None
            due_s.append(waiting.next_due_s() - now_s)
            now_s = waiting.next_due_s()
        assert due_s == [2, 3, 5, 9, 11, 11]

    def test_rejection_resets_the_back_off_of_failures(self) -> None:
        waiting = queue(("a", 0))
        for rejectors in (ERROR, ERROR, FIT, ERROR):
            waiting.put_back("a", rejectors, 0)
        assert waiting.next_due_s() == 2

    def test_pod_in_back_off_is_tried_early_after_all_active_pods(self) -> None:
        waiting = queue(("a", 9))
        drained(waiting, now_s=0)
        waiting.retry_rejected_by({*FIT}, now_s=0)
        waiting.add("b", 0, 0)
        assert drained(waiting, now_s=0) == ["b", "a"]

    def test_changes_of_its_own_status_retry_a_pod_a_limited_number_of_times(self) -> None:
        waiting = queue(("a", 0))
        tried = 0
        while (key := waiting.pop(0.5)) is not None:
            tried += 1
            waiting.put_back(key, FIT, 0.5)
            waiting.retry(key, 0.5)
        assert tried == 11
        assert 0.5 < waiting.next_due_s() <= 12
