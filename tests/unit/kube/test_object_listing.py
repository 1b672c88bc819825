"""One complete list of all objects of a kind."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import reflector
from nodewise.kube.api_server_interface import NONE, Expired, Params
from nodewise.kube.reflector import ReflectorTarget
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.kube.struct_type_merge import merge
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi

NODE: Any = merge("Node")
ALL = ReflectorTarget(NODES, NODE)


class SmallPagesApi(FakeApi):
    """An API server with pages of two objects, which calls a function of the test before each page."""

    def __init__(self, before: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._before = before
        self.pages_read = 0

    async def get(self, path: str, params: Params = NONE, **more: Any) -> bytes:
        self.pages_read += 1
        self._before(self.pages_read)
        return await super().get(path, {**params, "limit": "2"} if "limit" in params else params, **more)


def fill(api: FakeApi, names: str = "a b c d e") -> FakeApi:
    for name in names.split():
        api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return api


def read(api: FakeApi, target: ReflectorTarget[Any] = ALL) -> tuple[list[str], list[int]]:
    counts: list[int] = []
    store = asyncio.run(reflector.list_objects(api, target, MetricsRegistry(), counts.append))
    return [name for _, name in store.snapshot()], counts


def test_page_by_page() -> None:
    api = fill(SmallPagesApi())
    assert read(api) == (list("abcde"), [2, 4, 5])
    assert {verb for verb, _ in api.calls} == {"get"}


def test_nothing_there() -> None:
    assert read(SmallPagesApi()) == ([], [0])


def test_pages_that_went_stale_are_read_anew() -> None:
    def compact(pages: int) -> None:
        if pages == 2:
            api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "f"}})
            api.compact()

    api = SmallPagesApi(compact)
    fill(api)
    assert read(api) == (list("abcdef"), [2, 2, 4, 6])


def test_pages_that_go_stale_for_ever_are_an_error() -> None:
    def compact(pages: int) -> None:
        if pages % 2 == 0:
            api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{pages}"}})
            api.compact()

    api = SmallPagesApi(compact)
    fill(api)
    with pytest.raises(Expired):
        read(api)
    assert api.pages_read == 6


@pytest.mark.parametrize("error", [Refused("no right"), Unavailable("down")])
def test_errors_are_the_callers(error: Exception) -> None:
    api = fill(SmallPagesApi())
    api.fail(error)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        read(api)


class CountedSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False


class ThingFields(msgspec.Struct, frozen=True):
    spec: CountedSpec = CountedSpec()


def test_an_object_that_cannot_be_read_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(logs, "emit", lambda event, **_: events.append(event))
    api = fill(SmallPagesApi())
    odd = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"}, "spec": {"unschedulable": "maybe"}}
    api.put(NODES, odd)
    assert read(api, ReflectorTarget(NODES, merge("Node", ThingFields)))[0] == list("abcde")
    assert events == ["object_unreadable"]


async def test_one_namespace() -> None:
    api = SmallPagesApi()
    for namespace in ("web", "db"):
        metadata = {"name": "p", "namespace": namespace}
        api.put(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    store = await reflector.list_objects(
        api, ReflectorTarget(PODS, NODE, "web"), MetricsRegistry(), lambda _: None
    )
    assert list(store.snapshot()) == [("web", "p")]
