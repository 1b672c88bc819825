import asyncio
from typing import Any

import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import event_recorder
from nodewise.kube.event_recorder import EventRecorder, EventReporter, FairEventQueue, ObjectReference
from nodewise.kube.resource_kinds import EVENTS, NODES, PODS
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.manual_clock import ManualClock
from tests.unit.kube.api_suite import run_in_background

NODE = ObjectReference(NODES, "", "node-a", "uid-1")


class RecorderFixture:
    """An event recorder with a fake API server, and the written events."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock(1_700_000_000.0)
        self.metrics_registry = MetricsRegistry()
        self.events: list[str] = []
        self.recorder = EventRecorder(
            self.api, EventReporter("nodewise.io/test", "r"), self.clock, self.metrics_registry
        )

    def record(self, note: str = "hot", about: ObjectReference = NODE) -> None:
        self.recorder.record(about, "Warning", "TooHot", note)

    def written(self) -> list[dict[str, Any]]:
        return list(self.api.objects(EVENTS).values())

    def counted(self, outcome: str) -> int:
        prefix = f'nodewise_events_total{{outcome="{outcome}"}} '
        lines = self.metrics_registry.exposition().decode().splitlines()
        return next((int(float(line.removeprefix(prefix))) for line in lines if line.startswith(prefix)), 0)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecorderFixture:
    made = RecorderFixture()
    monkeypatch.setattr("nodewise.observe.logs.emit", lambda event, **_: made.events.append(event))
    return made


async def test_an_event_of_a_cluster_wide_object_lies_in_default(recording: RecorderFixture) -> None:
    recording.record()
    await recording.recorder.flush()
    (event,) = recording.written()
    assert event["metadata"]["namespace"] == "default"
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"}
    assert event["eventTime"] == "2023-11-14T22:13:20.000000Z"


async def test_recording_sends_nothing_and_never_fails(recording: RecorderFixture) -> None:
    for number in range(5000):
        recording.record(about=ObjectReference(PODS, "ns", f"pod-{number}"))
    assert recording.api.calls == []
    assert recording.counted("dropped") == 5000 - event_recorder.MOST_WAITING


async def test_a_namespace_with_very_many_events_does_not_displace_those_of_others(
    recording: RecorderFixture,
) -> None:
    for number in range(event_recorder.MOST_WAITING + 1):
        recording.record(about=ObjectReference(PODS, "attacker", f"pod-{number}"))
    for number in range(3):
        recording.record(about=ObjectReference(PODS, "victim", f"pod-{number}"))
    await recording.recorder.flush()
    namespaces = [path.split("/")[5] for _, path in recording.api.calls]
    assert namespaces[:7] == [*["attacker", "victim"] * 3, "attacker"]
    assert recording.counted("dropped") == 1 + 3


async def test_events_that_wait_for_their_rate_limit_do_not_displace_those_of_others(
    recording: RecorderFixture,
) -> None:
    """Pods with more notes than their burst, of which ten wait: all places of the queue are taken for ten minutes."""
    for number in [*range(event_recorder.MOST_WAITING // 10 + 1)] * 2:
        for note in range(2 * event_recorder.BURST + 10):
            recording.record(f"{note} nodes", ObjectReference(PODS, "attacker", f"pod-{number}"))
        await recording.recorder.flush()
    recording.record(about=ObjectReference(PODS, "victim", "pod"))
    await recording.recorder.flush()
    assert recording.api.calls[-1] == ("create", EVENTS.path("victim"))


async def test_repeats_while_one_waits_cost_no_write(recording: RecorderFixture) -> None:
    for _ in range(100):
        recording.record()
    await recording.recorder.flush()
    (event,) = recording.written()
    assert event["series"]["count"] == 100
    assert len(recording.api.calls) == 1


async def test_one_object_and_reason_cannot_crowd_out_the_rest(recording: RecorderFixture) -> None:
    for number in range(100):
        recording.record(f"{number} degrees")
    recording.record(about=ObjectReference(NODES, "", "node-b"))
    await recording.recorder.flush()
    names = [event["regarding"]["name"] for event in recording.written()]
    assert names.count("node-a") == event_recorder.BURST
    assert names.count("node-b") == 1
    # the events of ten minutes are queued, the rest is dropped
    assert recording.counted("dropped") == 100 - event_recorder.BURST - 10


async def test_waiting_event_is_written_when_the_rate_limit_permits(recording: RecorderFixture) -> None:
    for number in range(event_recorder.BURST + 2):
        recording.record(f"{number} degrees")
    async with run_in_background(recording.recorder.run()):
        for _ in range(100):
            await asyncio.sleep(0)
    assert len(recording.written()) == event_recorder.BURST + 2
    assert recording.clock.now() >= 1_700_000_000.0 + 2 * event_recorder.REFILL_S


async def test_a_task_that_waits_for_events_wakes_up(recording: RecorderFixture) -> None:
    async with run_in_background(recording.recorder.run()):
        await asyncio.sleep(0)
        recording.record()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(recording.written()) == 1


async def test_a_server_that_is_down_is_tried_again_and_then_left(recording: RecorderFixture) -> None:
    recording.api.fail(Unavailable("down", retry_after_s=2.0), 2)
    recording.record()
    async with run_in_background(recording.recorder.run()):
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(recording.written()) == 1
        recording.api.fail(Unavailable("down"), 3)
        recording.record("hotter")
        for _ in range(50):
            await asyncio.sleep(0)
    assert len(recording.written()) == 1
    assert recording.counted("failed") == 1


async def test_a_refusal_is_final(recording: RecorderFixture) -> None:
    recording.api.fail(Refused("no"))
    recording.record()
    await recording.recorder.flush()
    assert (len(recording.api.calls), recording.counted("failed")) == (1, 1)


async def test_first_of_several_dropped_events_is_logged(recording: RecorderFixture) -> None:
    for lost in (5, 3):
        recording.api.fail(Refused("no"), lost)
        for number in range(lost + 1):
            recording.record(f"{number} of {lost}", ObjectReference(PODS, "n", f"p{number}-{lost}"))
        await recording.recorder.flush()
    assert recording.events == ["event_lost", "event_lost"]
    assert recording.counted("failed") == 8


async def test_after_a_long_rest_a_series_begins_anew(recording: RecorderFixture) -> None:
    recording.record()
    await recording.recorder.flush()
    recording.clock.advance(event_recorder.FORGET_S + 1)
    recording.record()
    await recording.recorder.flush()
    assert len(recording.written()) == 2


async def test_remembered_series_are_limited(
    recording: RecorderFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_recorder, "MOST_KNOWN", 50)
    for number in range(100):
        recording.record(about=ObjectReference(PODS, "ns", f"pod-{number}"))
        await recording.recorder.flush()
    assert len(recording.recorder._known) == event_recorder.MOST_KNOWN
    assert len(recording.recorder._buckets) == event_recorder.MOST_KNOWN


def queue(limit: int, **counts: int) -> FairEventQueue[str]:
    made: FairEventQueue[str] = FairEventQueue(limit)
    for namespace, count in counts.items():
        for number in range(count):
            made.push(namespace, 0.0, f"{namespace}{number}")
    return made


def drain(events: FairEventQueue[str], now_s: float = 0.0) -> str:
    items = []
    while (item := events.pop(now_s)) is not None:
        items.append(item)
    return " ".join(items)


def test_namespaces_take_turns() -> None:
    assert drain(queue(10, a=4, b=2, c=1)) == "a0 b0 c0 a1 b1 a2 a3"


def test_items_are_due_at_their_time() -> None:
    events = queue(10, a=1)
    events.push("a", 5.0, "later")
    events.push("b", 3.0, "sooner")
    assert drain(events) == "a0"
    assert events.next_due_s() == 3.0
    assert drain(events, 3.0) == "sooner"
    assert drain(events, 5.0) == "later"
    assert (len(events), events.next_due_s()) == (0, float("inf"))


def test_at_the_limit_nothing_is_removed_and_beyond_it_the_last_item_of_the_longest() -> None:
    events = queue(5, a=4)
    assert events.push("b", 0.0, "b0") is None
    assert events.push("b", 0.0, "b1") == "a3"
    assert drain(events) == "a0 b0 a1 b1 a2"


def test_the_last_item_is_the_one_that_is_due_last() -> None:
    events = queue(3, a=2)
    events.push("a", 9.0, "much later")
    assert events.push("b", 0.0, "b0") == "much later"


def test_there_is_room_until_namespaces_have_equally_many() -> None:
    events = queue(6, a=6)
    room = []
    for _ in range(4):
        room.append(events.has_room("b"))
        if room[-1]:
            events.push("b", 0.0, "b")
    assert room == [True, True, True, False]
    assert not events.has_room("a")
    assert queue(6, a=5).has_room("a")
