"""The reflector: delays, retries and log events. `api_suite` and the laws check the contents of stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodewise.clock import ManualClock
from nodewise.errors import Refused, Unavailable
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.simulate.in_memory_api import CONFIGMAPS, FakeApi
from tests.unit.kube.api_suite import CONFIGMAP, run_in_background


class ReflectorFixture:
    """A reflector with a fake API server, its clock, and its log lines."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = PatientClock()
        self.metrics_registry = MetricsRegistry()
        target = ReflectorTarget(CONFIGMAPS, CONFIGMAP)
        self.reflector: Reflector[Any] = Reflector(
            self.api, target, self.clock, self.metrics_registry, lambda: 0.0
        )
        self.events: list[str] = []

    def note(self, event: str, **_: Any) -> None:
        self.events.append(event)

    @asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        async with run_in_background(self.reflector.run()):
            yield

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.api.calls]


class PatientClock(ManualClock):
    """A clock that records the duration of each sleep."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> ReflectorFixture:
    made = ReflectorFixture()
    monkeypatch.setattr("nodewise.observe.logs.emit", made.note)
    return made


async def test_it_lists_once_and_then_watches(followed: ReflectorFixture) -> None:
    async with followed.going():
        await turns()
        assert followed.verbs() == ["get", "watch"]
        assert followed.reflector.synced
        assert followed.clock.slept == []


async def test_waits_double_with_failures_in_a_row(followed: ReflectorFixture) -> None:
    followed.api.fail(Refused("no"), 8)
    async with followed.going():
        await turns()
    assert followed.clock.slept == [0.4, 0.8, 1.6, 2.5, 2.5, 2.5, 2.5, 2.5]


async def test_a_failure_after_a_long_good_time_is_a_first_one(followed: ReflectorFixture) -> None:
    followed.api.fail(Refused("no"), 3)
    async with followed.going():
        await turns()
        followed.clock.advance(11.0)
        followed.api.fail(Refused("no"))
        followed.api.cut()
        await turns()
    assert followed.clock.slept == [0.4, 0.8, 1.6, 0.4]


async def test_a_server_that_starts_is_not_waited_for_longer_with_each_step(
    followed: ReflectorFixture,
) -> None:
    refused = Unavailable("connection refused", retry_after_s=0.0)
    followed.api.put(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}})
    async with followed.going():
        await turns()
        followed.clock.advance(300.0)
        followed.api.fail(refused, 4)
        followed.api.fail(Refused("no rights yet"))
        followed.api.cut()
        followed.api.put(CONFIGMAPS, {"metadata": {"name": "b", "namespace": "n"}})
        followed.api.compact()
        await turns()
        assert len(followed.reflector.store) == 2
    connecting, authorizing, listing = [0.4, 0.8, 1.6, 2.5], [0.4], [0.4]
    assert followed.clock.slept == connecting + authorizing + listing


async def test_a_server_that_asks_for_patience_gets_it(followed: ReflectorFixture) -> None:
    followed.api.fail(Unavailable("too many requests", retry_after_s=12.0))
    async with followed.going():
        await turns()
    (slept,) = followed.clock.slept
    assert 12.0 <= slept < 13.0


async def test_a_watch_that_ends_at_once_again_and_again_is_not_asked_in_a_circle(
    followed: ReflectorFixture,
) -> None:
    async with followed.going():
        await turns()
        for _ in range(4):
            followed.api.cut()
            await turns(5)
    assert followed.verbs() == ["get", "watch"] * 5
    assert [round(slept, 1) for slept in followed.clock.slept] == [1.2, 1.4, 1.8, 2.5]


async def test_a_watch_that_ends_after_its_time_is_taken_up_at_once(followed: ReflectorFixture) -> None:
    async with followed.going():
        await turns()
        followed.clock.advance(300.0)
        followed.api.cut()
        await turns()
    assert followed.verbs() == ["get", "watch", "watch"]
    assert followed.clock.slept == []
    assert followed.events == []


async def test_a_version_that_is_gone_is_listed_anew_without_alarm(followed: ReflectorFixture) -> None:
    async with followed.going():
        await turns()
        followed.api.put(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "n"}})
        followed.clock.advance(300.0)
        followed.api.cut()
        followed.api.put(CONFIGMAPS, {"metadata": {"name": "b", "namespace": "n"}})
        followed.api.compact()
        await turns()
        assert len(followed.reflector.store) == 2
    assert followed.verbs() == ["get", "watch", "watch", "get", "watch"]
    assert followed.events == []
    assert (
        b'kube_lists_total{kind="ConfigMap",reason="expired"} 1.0' in followed.metrics_registry.exposition()
    )


async def test_what_is_doubted_is_listed_anew_with_the_next_word(followed: ReflectorFixture) -> None:
    async with followed.going():
        await turns()
        followed.api.put(CONFIGMAPS, {"metadata": {"name": "lost", "namespace": "n"}})
        await turns()
        followed.reflector._decoder._writer.remove(("n", "lost"))
        followed.reflector.request_relist()
        await turns()
        assert len(followed.reflector.store) == 0
        followed.api.bookmark()
        await turns()
        assert len(followed.reflector.store) == 1
    assert followed.verbs() == ["get", "watch", "get", "watch"]
    assert followed.events == []
    assert b'kube_lists_total{kind="ConfigMap",reason="doubt"} 1.0' in followed.metrics_registry.exposition()


async def test_trouble_is_told_once_and_so_is_its_end(followed: ReflectorFixture) -> None:
    followed.api.fail(Refused("no"), 5)
    async with followed.going():
        await turns(4)
        assert followed.reflector.out_of_sync_reason == "no"
        await turns()
        assert followed.reflector.out_of_sync_reason == ""
    assert followed.events == ["kube_lost", "kube_back"]


async def test_pages_go_on_after_a_failure_where_they_were(followed: ReflectorFixture) -> None:
    for number in range(5):
        followed.api.put(CONFIGMAPS, {"metadata": {"name": f"n{number}", "namespace": "n"}})
    followed.reflector._limit = 2
    async with followed.going():
        while followed.verbs() != ["get", "get"]:
            await asyncio.sleep(0)
        followed.api.fail(Unavailable("down"))
        await turns()
        assert len(followed.reflector.store) == 5
    assert b'kube_lists_total{kind="ConfigMap",reason="start"} 1.0' in followed.metrics_registry.exposition()


async def test_age_counts_from_the_servers_last_word(followed: ReflectorFixture) -> None:
    assert followed.reflector.age_s() == float("inf")
    async with followed.going():
        await turns()
        assert followed.reflector.age_s() == 0.0
        followed.clock.advance(50.0)
        assert followed.reflector.age_s() == 50.0
        followed.api.bookmark()
        await turns()
        assert followed.reflector.age_s() == 0.0


async def test_a_bookmark_moves_the_version_from_which_a_watch_goes_on(followed: ReflectorFixture) -> None:
    async with followed.going():
        await turns()
        followed.api.put(
            CONFIGMAPS.__class__("", "v1", "pods", "Pod"), {"metadata": {"name": "x", "namespace": "n"}}
        )
        followed.api.bookmark()
        await turns()
        followed.api.compact()
        followed.clock.advance(300.0)
        followed.api.cut()
        await turns()
    assert followed.verbs() == ["get", "watch", "watch"], "no list was needed"
