"""The reflector: delays, retries and log events. `api_suite` and the laws check the contents of stores."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.reflector import (
    MISSING_AT_START_S,
    MISSING_GRACE_S,
    NOT_SERVED_S,
    Reflector,
    ReflectorTarget,
)
from nodewise.kube.resource_kinds import Resource
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.manual_clock import ManualClock
from tests.unit.kube.api_suite import CONFIGMAP, run_in_background
from tests.unit.server.raw_http_client import metric_value


class ReflectorFixture:
    """A reflector with a fake API server, its clock, and its log lines."""

    def __init__(self, resource: Resource = CONFIGMAPS, *, is_optional: bool = False) -> None:
        self.api = FakeApi()
        self.clock = PatientClock()
        self.metrics_registry = MetricsRegistry()
        target = ReflectorTarget(resource, CONFIGMAP, is_optional=is_optional)
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


async def test_requested_relist_begins_with_the_next_watch_event(followed: ReflectorFixture) -> None:
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


async def test_a_broken_watch_is_not_connected_until_the_server_responds(followed: ReflectorFixture) -> None:
    def connected() -> float:
        return metric_value(followed.metrics_registry, "kube_connected", kind="ConfigMap")

    async with followed.going():
        await turns()
        assert connected() == 1.0
        followed.clock.advance(300.0)
        followed.api.fail(Unavailable("no answer within 36 s"), 2)
        followed.api.cut()
        while not followed.clock.slept:
            await asyncio.sleep(0)
        assert connected() == 0.0
        await turns()
        assert connected() == 1.0


async def test_failure_and_its_end_are_logged_once(followed: ReflectorFixture) -> None:
    followed.api.fail(Refused("no"), 5)
    async with followed.going():
        await turns(4)
        assert followed.events == ["kube_lost"]
        await turns()
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


THINGS = Resource("example.com", "v1", "things", "Thing")
"""A kind with a CustomResourceDefinition."""
OTHERS = Resource("example.com", "v1", "others", "Other")
THING = {"metadata": {"name": "a", "namespace": "n"}}


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> ReflectorFixture:
    made = ReflectorFixture(THINGS)
    monkeypatch.setattr("nodewise.observe.logs.emit", made.note)
    return made


@pytest.mark.parametrize(
    "served",
    [[], [OTHERS], [Resource("example.com", "v2", "things", "Thing")]],
    ids=["no such group", "no such kind", "no such version"],
)
async def test_a_kind_that_is_not_served_has_no_objects(
    custom: ReflectorFixture, served: list[Resource]
) -> None:
    for resource in served:
        custom.api.serve(resource)
    async with custom.going():
        while NOT_SERVED_S not in custom.clock.slept:
            await asyncio.sleep(0)
            if custom.reflector.synced:
                assert custom.clock.monotonic() >= 1000.0 + MISSING_AT_START_S
        assert custom.reflector.synced
        assert len(custom.reflector.store) == 0
        assert custom.clock.slept == sorted(custom.clock.slept), "it is listed less often with time"
        assert custom.events == ["kube_lost", "kube_back", "kube_kind_not_served"]


async def test_objects_of_a_kind_that_is_served_later_are_stored(custom: ReflectorFixture) -> None:
    async with custom.going():
        await turns()
        custom.api.serve(THINGS)
        custom.api.put(THINGS, THING)
        await turns()
        assert list(custom.reflector.store.snapshot()) == [("n", "a")]
        assert custom.events[-1] == "kube_back"


async def test_objects_of_a_kind_that_is_no_longer_served_are_gone(custom: ReflectorFixture) -> None:
    custom.api.serve(THINGS)
    custom.api.put(THINGS, THING)
    async with custom.going():
        await turns()
        assert len(custom.reflector.store) == 1
        custom.clock.advance(11.0)  # a watch that ends earlier counts as failed
        await custom.api.delete(THINGS.path("n", "a"))
        custom.api.hide(THINGS)
        while NOT_SERVED_S not in custom.clock.slept:
            await asyncio.sleep(0)
        assert custom.reflector.synced
        assert custom.events == ["kube_lost", "kube_back", "kube_kind_not_served"]
        custom.api.serve(THINGS)
        custom.api.put(THINGS, THING)
        await turns()
        assert len(custom.reflector.store) == 1


async def test_objects_stay_while_their_kind_is_missing_for_a_moment(custom: ReflectorFixture) -> None:
    """The API server responds 404 and discovery has no such group, but the objects were not deleted."""
    custom.api.serve(THINGS)
    custom.api.put(THINGS, THING)
    async with custom.going():
        await turns()
        custom.clock.advance(11.0)
        custom.api.hide(THINGS)
        missing_s = custom.clock.monotonic()
        while custom.clock.monotonic() < missing_s + MISSING_GRACE_S / 2:
            await asyncio.sleep(0)
            assert len(custom.reflector.store) == 1
        assert max(custom.clock.slept) < 5.0
        assert custom.events == ["kube_lost"]
        custom.api.serve(THINGS)
        await turns()
        assert custom.events == ["kube_lost", "kube_back"]
        assert len(custom.reflector.store) == 1


async def test_objects_are_gone_when_their_kind_stays_missing(custom: ReflectorFixture) -> None:
    custom.api.serve(THINGS)
    custom.api.put(THINGS, THING)
    async with custom.going():
        await turns()
        custom.clock.advance(11.0)
        custom.api.hide(THINGS)
        missing_s = custom.clock.monotonic()
        while len(custom.reflector.store):
            await asyncio.sleep(0)
        assert MISSING_GRACE_S <= custom.clock.monotonic() - missing_s < MISSING_GRACE_S + 5.0 + NOT_SERVED_S
        assert custom.reflector.synced


@pytest.mark.parametrize(
    "discovery",
    [
        {"/apis": NotFound("404 page not found")},
        {"/apis": b"<html>not found</html>"},
        {"/apis": b'{"kind": "Status", "groups": []}'},
        {"/apis/example.com/v1": b'{"kind": "APIResourceList"}'},
        {},
    ],
    ids=["404", "no JSON", "another kind", "no resources", "served"],
)
async def test_a_404_that_discovery_does_not_confirm_keeps_the_objects(
    custom: ReflectorFixture, discovery: dict[str, Any]
) -> None:
    """A proxy before the API server, or an API server that does not list a kind yet, must not remove policies."""
    custom.api.serve(THINGS)
    custom.api.put(THINGS, THING)
    async with custom.going():
        await turns()
        errors = {path: value for path, value in discovery.items() if isinstance(value, Exception)}
        custom.api.raw.update({path: value for path, value in discovery.items() if path not in errors})
        custom.api.fail(NotFound("404 page not found"), 2 if errors else 1)
        custom.clock.advance(11.0)
        custom.api.cut()
        while not custom.clock.slept:
            await asyncio.sleep(0)
        assert len(custom.reflector.store) == 1
        assert NOT_SERVED_S not in custom.clock.slept
        assert custom.events == ["kube_lost"]


async def test_a_404_at_the_start_that_discovery_does_not_confirm_blocks_readiness(
    followed: ReflectorFixture,
) -> None:
    followed.api.fail(NotFound("404 page not found"), 3)
    async with followed.going():
        await turns(4)
        assert not followed.reflector.synced


@pytest.fixture
def optional(monkeypatch: pytest.MonkeyPatch) -> ReflectorFixture:
    made = ReflectorFixture(THINGS, is_optional=True)
    monkeypatch.setattr("nodewise.observe.logs.emit", made.note)
    return made


async def test_an_optional_kind_that_is_not_served_has_no_objects_at_once(optional: ReflectorFixture) -> None:
    async with optional.going():
        await turns(20)
        assert (optional.reflector.synced, len(optional.reflector.store)) == (True, 0)
        assert optional.events == ["kube_kind_left_out"]
        assert set(optional.clock.slept) == {NOT_SERVED_S}


async def test_a_kind_is_read_in_the_newest_version_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ReflectorFixture(THINGS._replace(older_versions=("v1beta2", "v1beta1")), is_optional=True)
    monkeypatch.setattr("nodewise.observe.logs.emit", old.note)
    beta = THINGS._replace(version="v1beta1")
    old.api.serve(beta)
    old.api.put(beta, THING)
    async with old.going():
        await turns()
        assert list(old.reflector.store.snapshot()) == [("n", "a")]
        assert (old.events, old.clock.slept) == ([], [])


async def test_an_optional_kind_that_the_api_server_refuses_has_no_objects_until_it_can_be_read(
    optional: ReflectorFixture,
) -> None:
    optional.api.serve(THINGS)
    optional.api.put(THINGS, THING)
    optional.api.fail(Refused("no right"), 2)
    async with optional.going():
        await turns()
        assert optional.events == ["kube_kind_left_out", "kube_back"]
        assert optional.clock.slept == [NOT_SERVED_S] * 2
        assert len(optional.reflector.store) == 1
        optional.clock.advance(11.0)
        optional.api.fail(Refused("starting"))
        optional.api.cut()
        await turns()
        assert len(optional.reflector.store) == 1
        assert "kube_lost" in optional.events
