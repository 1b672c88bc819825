import math
from collections.abc import Iterable
from typing import Any

import pytest

from nodewise.base.clock import ManualClock
from nodewise.base.errors import BadSettings
from nodewise.scheduling_model import simulated_cluster
from nodewise.scheduling_model.simulated_cluster import Cluster, SimulatedSchedulerOptions
from tests.cluster import kubernetes_objects as made
from tests.unit.scheduling_model import fake_extender
from tests.unit.scheduling_model.fake_extender import FakeExtender

Object = dict[str, Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def fake() -> FakeExtender:
    return FakeExtender()


def small(
    clock: ManualClock, fake: FakeExtender, names: str = "a b", running: Iterable[Object] = (), **fields: Any
) -> Cluster:
    """A cluster of nodes with four cores, with the fake as its only extender."""
    entry = {**fake_extender.ENTRY, **fields}
    return Cluster(
        made.nodes(names), [entry], running, clock, SimulatedSchedulerOptions(transport=fake.transport)
    )


def alone(clock: ManualClock, nodes: Iterable[Object], running: Iterable[Object] = ()) -> Cluster:
    """A cluster without extenders."""
    return Cluster(nodes, running=running, clock=clock)


def patient(obj: Object, grace_s: int) -> Object:
    return obj | {"spec": obj["spec"] | {"terminationGracePeriodSeconds": grace_s}}


class TestPlacing:
    def test_without_extenders_requests_alone_decide(self, clock: ManualClock) -> None:
        load = made.running_on("a", made.pod("load", cpu="3"))
        with alone(clock, made.nodes("a b"), [load]) as placed:
            assert placed.submit(made.pod("web")) == ("b", "", "")

    def test_a_resource_that_only_marks_pods_can_be_left_uncounted(self, clock: ManualClock) -> None:
        marked = made.pod("web", limits={"telemetry/scheduling": "1"})
        with alone(clock, made.nodes("a")) as placed:
            assert placed.submit(marked).node is None
        options = SimulatedSchedulerOptions(ignored=frozenset({"telemetry/scheduling"}))
        with Cluster(made.nodes("a"), clock=clock, options=options) as placed:
            assert placed.submit(marked).node == "a"

    def test_among_equals_the_first_is_taken(self, clock: ManualClock) -> None:
        with alone(clock, made.nodes("a b c")) as placed:
            assert placed.submit(made.pod("web")).node == "a"

    def test_among_equals_of_an_extender_chance_decides_the_same_way_each_time(
        self, fake: FakeExtender
    ) -> None:
        def run(seed: int) -> list[str | None]:
            options = SimulatedSchedulerOptions(seed=seed, transport=fake.transport)
            with Cluster(
                made.nodes("a b c"), [fake_extender.ENTRY], clock=ManualClock(), options=options
            ) as cluster:
                return [cluster.submit(made.pod(f"p{i}", cpu="0", memory="0")).node for i in range(6)]

        assert run(1) == run(1)
        assert len({*run(1), *run(2)}) > 1

    def test_pods_of_other_namespaces_are_named_in_full(self, clock: ManualClock) -> None:
        web = made.pod("web")
        web["metadata"]["namespace"] = "shop"
        with alone(clock, made.nodes("a")) as placed:
            placed.submit(web)
            assert placed.outcome("shop/web").node == "a"

    def test_a_pod_that_names_its_node_runs_there(self, clock: ManualClock) -> None:
        with alone(clock, made.nodes("a b")) as placed:
            assert placed.submit(made.running_on("b", made.pod("web", cpu="99"))).node == "b"

    def test_a_pod_that_has_ended_takes_no_room(self, clock: ManualClock) -> None:
        over = made.running_on("a", made.pod("job", cpu="4")) | {"status": {"phase": "Succeeded"}}
        with alone(clock, made.nodes("a"), [over]) as placed:
            assert placed.submit(made.pod("web", cpu="4")).node == "a"

    def test_the_affinity_of_the_examples_keeps_off_violating_nodes(self, clock: ManualClock) -> None:
        term = {"key": "web", "operator": "NotIn", "values": ["violating"]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        web = made.pod("web")
        web["spec"]["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
        marked = made.node("a", cpu="99", labels={"web": "violating"})
        with alone(clock, [marked, *made.nodes("b")]) as placed:
            assert placed.submit(web).node == "b"

    def test_bad_extenders_are_refused(self, clock: ManualClock) -> None:
        with pytest.raises(BadSettings, match="extenders"):
            Cluster([], [{"urlPrefix": "http://x", "bindVerb": "bind"}], clock=clock)


class TestTryingAgain:
    def test_its_own_condition_is_an_event_to_what_an_extender_rejected(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        """Observed with kube-scheduler 1.36.3: it calls filter twice, and not again."""
        fake.reject = {"a": "hot", "b": "hot"}
        with small(clock, fake) as placed:
            placed.submit(made.pod("web"))
            simulated_cluster.pass_time(placed, clock, 60)
        assert fake.calls == [("filter", "web")] * 2

    def test_a_pod_that_is_bound_is_an_event_to_them_too(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with small(clock, fake) as placed:
            placed.submit(made.pod("web"))
            fake.reject = {}
            placed.submit(made.pod("other"))
            assert placed.outcome("web").node

    def test_nothing_but_time_helps_where_nothing_happens(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with small(clock, fake) as placed:
            placed.submit(made.pod("web"))
            fake.reject = {}
            simulated_cluster.pass_time(placed, clock, 299)
            assert placed.pending_pods() == ["default/web"]
            simulated_cluster.pass_time(placed, clock, 31)
            assert placed.pending_pods() == []

    def test_what_did_not_fit_waits_for_room(self, clock: ManualClock) -> None:
        with alone(clock, made.nodes("a")) as placed:
            placed.submit(made.pod("first", cpu="3"))
            placed.submit(made.pod("second", cpu="3"))
            placed.touch("a")
            assert placed.outcome("second").message.startswith("0/1 nodes are available: 1 Insufficient cpu.")
            placed.delete("first")
            assert placed.outcome("second").node == "a"
            assert placed.is_gone("first")

    def test_a_new_node_a_larger_node_and_a_label_help(self, clock: ManualClock) -> None:
        picky = made.pod("picky")
        picky["spec"]["nodeSelector"] = {"disk": "ssd"}
        with alone(clock, []) as placed:
            placed.submit(made.pod("large", cpu="6"))
            placed.submit(picky)
            assert placed.outcome("picky").message == "no nodes available to schedule pods"
            simulated_cluster.pass_time(placed, clock, 20)
            placed.put_node(made.node("a"))
            simulated_cluster.pass_time(placed, clock, 20)
            assert placed.pending_pods() == ["default/large", "default/picky"]
            placed.put_node(made.node("a", cpu="8"))
            assert placed.outcome("large").node == "a"
            placed.put_node(made.node("a", cpu="8", labels={"disk": "ssd"}))
            assert placed.outcome("picky").node == "a"

    def test_a_failed_attempt_is_repeated_by_itself(self, clock: ManualClock, fake: FakeExtender) -> None:
        fake.broken = {"filter"}
        with small(clock, fake) as placed:
            assert placed.submit(made.pod("web")).reason == "SchedulerError"
            assert placed.event("web") == placed.outcome("web").message
            fake.broken = set()
            placed.touch("a")
            assert placed.outcome("web").node is None
            simulated_cluster.pass_time(placed, clock, 2)
            assert placed.outcome("web").node

    def test_a_node_that_goes_takes_its_pods_along(self, clock: ManualClock) -> None:
        with alone(clock, made.nodes("a")) as placed:
            placed.submit(made.pod("web"))
            placed.remove_node("a")
            assert placed.is_gone("web")
            assert placed.submit(made.pod("next")).message == "no nodes available to schedule pods"


class TestPreempting:
    def test_a_victim_holds_its_place_for_its_grace_period(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        victim = patient(made.running_on("a", made.pod("small", cpu="3")), 30)
        with small(clock, fake, "a", [victim]) as placed:
            outcome = placed.submit(made.pod("large", cpu="3", priority=9))
            assert outcome[:2] == (None, "Unschedulable")
            placement = "preemption: found a potential placement for pod on node a, preempting 1 victims"
            assert outcome[2] == f"0/1 nodes are available: 1 Insufficient cpu. {placement}"
            assert placed.is_gone("small")
            simulated_cluster.pass_time(placed, clock, 29)
            assert placed.outcome("large").node is None
            simulated_cluster.pass_time(placed, clock, 1)
            assert placed.outcome("large").node == "a"

    def test_room_that_is_made_for_one_is_not_taken_by_a_lesser_one(self, clock: ManualClock) -> None:
        victim = patient(made.running_on("a", made.pod("small", cpu="3")), 30)
        with alone(clock, made.nodes("a"), [victim]) as placed:
            placed.submit(made.pod("large", cpu="3", priority=9))
            assert placed.submit(made.pod("quick", cpu="1")).node is None
            simulated_cluster.pass_time(placed, clock, 30)
            assert (placed.outcome("large").node, placed.outcome("quick").node) == ("a", "a")

    def test_a_greater_one_takes_the_room_and_the_lesser_looks_elsewhere(self, clock: ManualClock) -> None:
        victim = patient(made.running_on("a", made.pod("small", cpu="3")), 30)
        with alone(clock, made.nodes("a"), [victim]) as placed:
            placed.submit(made.pod("large", cpu="3", priority=9))
            placed.submit(made.pod("greatest", cpu="3", priority=99))
            simulated_cluster.pass_time(placed, clock, 60)
            assert placed.outcome("greatest").node == "a"
            assert placed.outcome("large").node is None

    def test_an_extender_may_reject_the_room_that_was_made(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        """The preempt verb prevents this, because the filter is not called before the eviction."""
        fake.reject = {"a": "hot"}
        victim = made.running_on("a", made.pod("small", cpu="3"))
        with small(clock, fake, "a", [victim], preemptVerb="") as placed:
            assert "1 hot." in placed.submit(made.pod("large", cpu="3", priority=9)).message
            assert placed.is_gone("small")


def test_time_has_nothing_to_do_in_a_cluster_at_rest(clock: ManualClock) -> None:
    with alone(clock, made.nodes("a")) as placed:
        placed.submit(made.pod("web"))
        assert placed.next_due_s() == math.inf
        simulated_cluster.pass_time(placed, clock, 1000)
    assert clock.now() == 2000
