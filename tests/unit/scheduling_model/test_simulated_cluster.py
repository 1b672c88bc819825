import pytest

from nodewise.scheduling_model import simulated_cluster
from nodewise.scheduling_model.simulated_cluster import Cluster
from tests.cluster import kubernetes_objects as made
from tests.manual_clock import ManualClock
from tests.unit.scheduling_model import fake_extender
from tests.unit.scheduling_model.fake_extender import FakeExtender

NO_VICTIMS = "No preemption victims found for incoming pod"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def fake() -> FakeExtender:
    return FakeExtender()


def with_extender(clock: ManualClock, fake: FakeExtender) -> Cluster:
    """A cluster of two nodes with four cores, with the fake as its only extender."""
    return Cluster(made.nodes("a b"), [fake_extender.ENTRY], clock, fake.transport)


class TestPlacement:
    def test_without_extenders_requests_decide(self) -> None:
        with Cluster(made.nodes("a b")) as cluster:
            assert cluster.submit(made.running_on("a", made.pod("load", cpu="3"))).node == "a"
            assert cluster.submit(made.pod("web")) == ("b", "", "")

    def test_managed_resource_that_the_scheduler_ignores_is_not_counted(self, fake: FakeExtender) -> None:
        marked = made.pod("web", limits={"telemetry/scheduling": "1"})
        managed = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}]
        entry = {**fake_extender.ENTRY, "managedResources": managed}
        with Cluster(made.nodes("a")) as cluster:
            assert cluster.submit(marked).node is None
        with Cluster(made.nodes("a"), [entry], transport=fake.transport) as cluster:
            assert cluster.submit(marked).node == "a"

    def test_first_of_equal_nodes_is_chosen(self) -> None:
        with Cluster(made.nodes("a b c")) as cluster:
            assert cluster.submit(made.pod("web")).node == "a"

    def test_chance_decides_among_nodes_with_equal_extender_scores(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        with with_extender(clock, fake) as cluster:
            pods = [made.pod(f"p{i}", cpu="0", memory="0") for i in range(6)]
            assert {cluster.submit(pod).node for pod in pods} == {"a", "b"}

    def test_pods_of_other_namespaces_have_full_names(self) -> None:
        web = made.pod("web")
        web["metadata"]["namespace"] = "shop"
        with Cluster(made.nodes("a")) as cluster:
            cluster.submit(web)
            assert cluster.outcome("shop/web").node == "a"

    def test_number_of_pods_is_limited(self) -> None:
        node = made.node("a")
        node["status"]["allocatable"]["pods"] = "1"
        with Cluster([node]) as cluster:
            assert cluster.submit(made.pod("web")).node == "a"
            assert cluster.submit(made.pod("other")).message.startswith(
                "0/1 nodes are available: 1 Too many pods."
            )

    def test_node_without_allocatable_offers_its_capacity(self) -> None:
        status = {"capacity": {"cpu": "2", "pods": "9"}}
        node = simulated_cluster.parse_node({"metadata": {"name": "a"}, "status": status})
        assert node.allocatable == {"cpu": 2000, "pods": 9}


class TestScores:
    """The numbers are from the log of kube-scheduler 1.36.3 at verbosity 10."""

    web = made.pod("web")
    two_cores = simulated_cluster.parse_pod(
        web | {"spec": web["spec"] | {"resources": {"requests": {"cpu": "2"}}}}
    )

    def test_free_and_balanced_shares_count(self) -> None:
        small = simulated_cluster.parse_node(made.node("b", cpu="4", memory="8Gi"))
        large = simulated_cluster.parse_node(made.node("e", cpu="8", memory="16Gi"))
        assert simulated_cluster.least_allocated(self.two_cores, small) == 98
        assert simulated_cluster.balanced(self.two_cores, small) == 62
        assert simulated_cluster.balanced(self.two_cores, large) == 68
        assert simulated_cluster.score(self.two_cores, large) == 166
        large.pods["other"] = self.two_cores
        assert simulated_cluster.balanced(self.two_cores, large) == 69

    def test_pod_without_requests_is_not_balanced(self) -> None:
        pod = simulated_cluster.parse_pod({"metadata": {"name": "web"}, "spec": {"containers": [{}]}})
        assert simulated_cluster.balanced(pod, simulated_cluster.parse_node(made.node("b"))) == 0

    def test_full_node_has_no_free_share(self) -> None:
        node = simulated_cluster.parse_node(made.node("b", cpu="4", memory="8Gi"))
        node.pods["big"] = simulated_cluster.parse_pod(made.pod("big", cpu="9", memory="9Gi"))
        assert simulated_cluster.least_allocated(self.two_cores, node) == 0


class TestMessage:
    @pytest.mark.parametrize(
        ("cpu", "preemption"),
        [
            ("9", "2 Preemption is not helpful for scheduling."),
            ("3", f"1 {NO_VICTIMS}, 1 Preemption is not helpful for scheduling."),
        ],
    )
    def test_message_of_an_unschedulable_pod(self, cpu: str, preemption: str) -> None:
        """Node a has less room than the pod requests, node b has too little even if it is empty."""
        message = (
            f"0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: {preemption}"
        )
        with Cluster([made.node("a", cpu="4"), made.node("b", cpu="2")]) as cluster:
            cluster.submit(made.running_on("a", made.pod("load", cpu="2")))
            assert cluster.submit(made.pod("web", cpu=cpu)) == (None, "Unschedulable", message)

    def test_message_of_a_cluster_without_nodes(self) -> None:
        with Cluster([]) as cluster:
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
    def test_rejected_pod_is_tried_again_after_an_event_and_its_back_off(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            cluster.submit(made.pod("web"))
            fake.reject = {}
            clock.advance(60)
            cluster.settle()
            assert cluster.outcome("web").node is None
            cluster.touch()
            assert cluster.outcome("web").node

    def test_bound_pod_is_an_event(self, clock: ManualClock, fake: FakeExtender) -> None:
        fake.reject = {"a": "hot", "b": "hot"}
        with with_extender(clock, fake) as cluster:
            cluster.submit(made.pod("web"))
            fake.reject = {}
            cluster.submit(made.pod("other"))
            assert cluster.outcome("web").node is None
            clock.advance(1)
            cluster.settle()
            assert cluster.outcome("web").node

    def test_pod_without_room_is_tried_again_after_a_deletion(self, clock: ManualClock) -> None:
        with Cluster(made.nodes("a"), clock=clock) as cluster:
            cluster.submit(made.pod("first", cpu="3"))
            cluster.submit(made.pod("second", cpu="3"))
            clock.advance(1)
            cluster.delete("first")
            assert cluster.outcome("second").node == "a"

    def test_failed_attempt_is_repeated_without_an_event(
        self, clock: ManualClock, fake: FakeExtender
    ) -> None:
        fake.broken = {"filter"}
        with with_extender(clock, fake) as cluster:
            assert cluster.submit(made.pod("web")).reason == "SchedulerError"
            clock.advance(1)
            cluster.settle()
            fake.broken = set()
            clock.advance(1)
            cluster.touch()
            assert cluster.outcome("web").node is None, "the back-off doubles"
            clock.advance(1)
            cluster.settle()
            assert cluster.outcome("web").node
