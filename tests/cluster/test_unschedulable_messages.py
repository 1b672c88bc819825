"""The messages of kube-scheduler for an unschedulable pod: its PodScheduled condition and its event.

    0/N nodes are available: <n reason>, <n reason>. <what preemption says>

Every message is tested with each scheduler of the fixture `scheduler`; the simulated one records no events.
"""

import pytest

from tests.cluster import fake_scheduler_extender, kubernetes_objects
from tests.cluster.fake_scheduler_extender import FakeExtenderServer
from tests.cluster.scheduler_interface import SchedulerUnderTest, SchedulingOutcome

NO_VICTIMS = "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
NO_HELP = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."

HOT = "telemetry policy default/web: cpu_temp GreaterThan 80"
BROKEN = "telemetry policy default/web: disk_health LessThan 1"


def outcome_and_event(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, names: str = "a b c", cpu: str = "100m"
) -> tuple[SchedulingOutcome, str]:
    """The outcome of a pod on plain nodes with the fake extender, and its event."""
    with scheduler.cluster(
        kubernetes_objects.nodes(names), [fake_scheduler_extender.entry(fake_extender.url)]
    ) as cluster:
        return cluster.submit(kubernetes_objects.pod("web", cpu=cpu))["web"], cluster.event("web")


REJECTIONS = {
    "one reason": (dict.fromkeys("abc", HOT), f"3 {HOT}"),
    "two reasons": ({"a": BROKEN, "b": HOT, "c": HOT}, f"1 {BROKEN}, 2 {HOT}"),
    "reasons are sorted as text, their number first": (
        {"a": BROKEN, "b": BROKEN, "c": HOT},
        f"1 {HOT}, 2 {BROKEN}",
    ),
    "a reason may hold commas and full stops": (dict.fromkeys("abc", "a.b: x, y. z"), "3 a.b: x, y. z"),
    "an empty reason counts like any other": ({"a": "", "b": "", "c": HOT}, f"1 {HOT}, 2 "),
}


@pytest.mark.parametrize(("reject", "message"), REJECTIONS.values(), ids=REJECTIONS)
def test_reasons_are_counted_by_their_text(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, reject: dict[str, str], message: str
) -> None:
    fake_extender.reject = reject
    outcome, event = outcome_and_event(scheduler, fake_extender)
    assert outcome == SchedulingOutcome(
        None, "Unschedulable", f"0/3 nodes are available: {message}. {NO_VICTIMS}"
    )
    assert event == outcome.message


def test_numbers_are_sorted_as_text_too(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    names = [f"n{i:02}" for i in range(12)]
    fake_extender.reject = dict.fromkeys(names[:10], "ten") | dict.fromkeys(names[10:], "two")
    outcome, _ = outcome_and_event(scheduler, fake_extender, " ".join(names))
    assert outcome.message.startswith("0/12 nodes are available: 10 ten, 2 two. ")


def test_plugins_and_extenders_share_one_text(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = {"b": HOT}
    mixed = [kubernetes_objects.node("a", cpu="1"), kubernetes_objects.node("b", cpu="8")]
    with scheduler.cluster(mixed, [fake_scheduler_extender.entry(fake_extender.url)]) as cluster:
        outcome = cluster.submit(kubernetes_objects.pod("web", cpu="2"))["web"]
    assert outcome.message == (
        f"0/2 nodes are available: 1 Insufficient cpu, 1 {HOT}. preemption: 0/2 nodes are available: "
        "1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
    )


def test_without_room_the_plugin_speaks_alone(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    outcome, event = outcome_and_event(scheduler, fake_extender, cpu="99")
    assert outcome.message == event == f"0/3 nodes are available: 3 Insufficient cpu. {NO_HELP}"


def test_a_node_rejected_for_good_is_no_candidate_for_preemption(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject_for_good = dict.fromkeys("abc", HOT)
    outcome, _ = outcome_and_event(scheduler, fake_extender)
    assert outcome.message == f"0/3 nodes are available: 3 {HOT}. {NO_HELP}"


def test_a_node_that_the_answer_forgets_is_out_without_a_word(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.lose = {"a", "b", "c"}
    outcome, _ = outcome_and_event(scheduler, fake_extender)
    assert outcome == SchedulingOutcome(None, "Unschedulable", f"0/3 nodes are available: {NO_HELP}")


@pytest.mark.parametrize("scheduler", ["kube-scheduler"], indirect=True)
def test_an_event_is_cut_at_1024_bytes_and_a_condition_is_not(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = {name: f"{name} {'x' * 500}" for name in "abc"}
    outcome, event = outcome_and_event(scheduler, fake_extender)
    assert outcome.message.endswith(NO_VICTIMS)
    assert event == outcome.message[:1020] + " ..."


def test_a_cluster_without_nodes(scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer) -> None:
    outcome, event = outcome_and_event(scheduler, fake_extender, "")
    assert outcome == SchedulingOutcome(None, "Unschedulable", "no nodes available to schedule pods")
    assert event == outcome.message
