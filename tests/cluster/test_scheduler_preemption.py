"""The pods that kube-scheduler evicts when an extender takes part in preemption.

Each cluster has one node, which is full with a pod that a pod of higher priority can preempt.
"""

from contextlib import AbstractContextManager

import pytest

from tests.cluster import fake_scheduler_extender, kubernetes_objects, program_cache
from tests.cluster.fake_scheduler_extender import FakeExtenderServer, RecordedCall
from tests.cluster.scheduler_interface import CLAIMS, ScheduledCluster, SchedulerUnderTest, SchedulingOutcome

pytestmark = [
    pytest.mark.kubernetes_versions,
    pytest.mark.parametrize("scheduler", ["kube-scheduler"], indirect=True),
]

LARGE = kubernetes_objects.pod("large", cpu="3", priority=100)
ONE_FULL = "0/1 nodes are available: 1 Insufficient cpu."
FOUND = " preemption: found a potential placement for pod on node a, preempting 1 victims"
FORMS = pytest.mark.parametrize("cached", [True, False], ids=["names", "whole nodes"])


def full(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, **fields: object
) -> AbstractContextManager[ScheduledCluster]:
    """A cluster with the fake extender and one node, which is full with the pod `small`."""
    small = kubernetes_objects.running_on("a", kubernetes_objects.pod("small", cpu="3"))
    return scheduler.cluster(
        [kubernetes_objects.node("a")], [fake_scheduler_extender.entry(fake_extender.url, **fields)], [small]
    )


@FORMS
def test_no_pod_is_evicted_from_a_node_removed_from_the_victims(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, *, cached: bool
) -> None:
    fake_extender.spare = {"a"}
    with full(scheduler, fake_extender, nodeCacheCapable=cached) as cluster:
        outcome = cluster.submit(LARGE)["large"]
        assert not cluster.is_gone("small")
    assert outcome.message == f"{ONE_FULL} {CLAIMS}preemption: no candidate node for preemption"


@FORMS
def test_victims_that_the_extender_leaves_are_evicted(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, *, cached: bool
) -> None:
    with full(scheduler, fake_extender, nodeCacheCapable=cached) as cluster:
        assert cluster.submit(LARGE)["large"].node == "a"
        assert cluster.is_gone("small")
        assert cluster.event("large") == ONE_FULL + (FOUND if program_cache.MINOR >= 37 else "")
    assert fake_extender.asked("preempt") == [RecordedCall("preempt", "large", ("a",), whole=not cached)]


def test_a_node_that_filter_would_reject_is_a_candidate_all_the_same(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    """Preemption runs only plugins to check whether the pod fits without the victims; hence the preempt verb."""
    fake_extender.reject = {"a": "too hot"}
    with full(scheduler, fake_extender) as cluster:
        cluster.submit(LARGE)
        assert cluster.is_gone("small")


def test_without_a_preempt_verb_the_extender_is_not_called(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject, fake_extender.spare = {"a": "too hot"}, {"a"}
    with full(scheduler, fake_extender, preemptVerb="") as cluster:
        outcome = cluster.submit(LARGE)["large"]
        assert cluster.is_gone("small")
    assert outcome.node is None
    assert fake_extender.asked("preempt") == []


def test_an_ignorable_preempt_that_fails_evicts(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.fail(500, "preempt")
    with full(scheduler, fake_extender, ignorable=True) as cluster:
        assert cluster.submit(LARGE)["large"].node == "a"
        assert cluster.is_gone("small")


def test_a_failed_preempt_call_evicts_no_pod(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.fail(500, "preempt")
    with full(scheduler, fake_extender) as cluster:
        outcome = cluster.submit(LARGE)["large"]
        assert not cluster.is_gone("small")
    failed = f"failed preempt with extender at URL {fake_extender.url}/preempt, code 500"
    assert outcome == SchedulingOutcome(None, "Unschedulable", f"{ONE_FULL} preemption: {failed}")


def test_a_pod_without_a_higher_priority_evicts_no_pod(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    with full(scheduler, fake_extender) as cluster:
        outcome = cluster.submit(kubernetes_objects.pod("large", cpu="3"))["large"]
        assert not cluster.is_gone("small")
    assert fake_extender.calls == []
    no_victims = "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    assert outcome.message == f"{ONE_FULL} {CLAIMS}{no_victims}"
