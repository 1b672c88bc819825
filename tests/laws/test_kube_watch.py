"""The store converges to the server's state after any faults of the network."""

import asyncio
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import reflector as reflector_module
from nodewise.kube import struct_type_merge
from nodewise.kube.http_client import LineSplitter
from nodewise.kube.reflector import ObjectDecoder, Reflector, ReflectorTarget, WatchState
from nodewise.kube.store import Changes, Key
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.manual_clock import ManualClock


class WatchData(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


CONFIGMAP = struct_type_merge.merge("ConfigMap", WatchData)

NAMES = st.sampled_from("abcdef")
VALUES = st.text(max_size=4)
METERS = MetricsRegistry()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=8), max_size=8), st.lists(st.integers(0, 200), max_size=12))
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    lines = [line.replace(b"\n", b"").replace(b"\r", b"") for line in lines]
    data = b"".join(line + b"\n" for line in lines)
    cutter = LineSplitter()
    cut_lines = [line for piece in pieces(data, cuts) for line in cutter.feed(piece)]
    assert cut_lines == [line for line in lines if line]
    assert cutter.rest() == b""


EVENTS = st.lists(st.tuples(st.sampled_from(["put", "put", "gone", "bookmark"]), NAMES, VALUES), max_size=15)


def watch_of(events: list[tuple[str, str, str]]) -> tuple[bytes, dict[str, str]]:
    """The bytes of a watch with these events, and the state after the last one."""
    state: dict[str, str] = {}
    data = b""
    for version, (kind, name, value) in enumerate(events):
        meta = {"name": name, "namespace": "default", "resourceVersion": str(version)}
        if kind == "bookmark":
            event: dict[str, Any] = {
                "type": "BOOKMARK",
                "object": {"metadata": {"resourceVersion": str(version)}},
            }
        elif kind == "put":
            word = "MODIFIED" if name in state else "ADDED"
            state[name] = value
            event = {"type": word, "object": {"metadata": meta, "data": {"k": value}}}
        else:
            event = {"type": "DELETED", "object": {"metadata": meta, "data": {"k": state.pop(name, "")}}}
        data += msgspec.json.encode(event) + b"\n"
    return data, state


@settings(deadline=None)
@given(EVENTS, st.lists(st.integers(0, 5000), max_size=20))
def test_the_watch_ends_in_the_same_store_however_its_frames_are_cut(
    events: list[tuple[str, str, str]], cuts: list[int]
) -> None:
    data, expected = watch_of(events)
    decoder = ObjectDecoder("ConfigMap", CONFIGMAP, METERS)
    cutter = LineSplitter()
    state: reflector_module.ListWatchState = WatchState("0")
    for piece in pieces(data, cuts):
        for line in cutter.feed(piece):
            assert isinstance(state, WatchState)
            state, frame = reflector_module.parse_watch_line(state, line)
            decoder.apply(frame)
    assert {name: o.data["k"] for (_, name), o in decoder.store.snapshot().items()} == expected
    assert state == WatchState(str(max(len(events) - 1, 0)))


Step = Callable[[FakeApi], None]


def put(name: str, value: str) -> Step:
    return lambda api: void(
        api.put(CONFIGMAPS, {"metadata": {"name": name, "namespace": "n"}, "data": {"k": value}})
    )


def void(_: object) -> None:
    return None


def remove(name: str) -> Step:
    def step(api: FakeApi) -> None:
        with suppress(KeyError):
            api.remove(CONFIGMAPS, name, "n")

    return step


def restart(api: FakeApi) -> None:
    """Restart the server without its history of changes."""
    api.cut()
    api.compact()


TROUBLE: list[Step] = [
    FakeApi.cut,
    FakeApi.compact,
    FakeApi.bookmark,
    lambda api: api.fail(Unavailable("down", retry_after_s=3.0)),
    lambda api: api.fail(Refused("not now"), 3),
    restart,
]
STEPS = st.one_of(
    st.builds(put, NAMES, VALUES),
    st.builds(put, NAMES, VALUES),
    st.builds(remove, NAMES),
    st.sampled_from(TROUBLE),
)


async def follow(
    history: list[tuple[Step, int]], begun: Callable[[Reflector[Any]], None] = void
) -> tuple[Any, FakeApi]:
    """Apply a history to the API server of a reflector, with some iterations of the event loop after each step."""
    api = FakeApi()
    target = ReflectorTarget(CONFIGMAPS, CONFIGMAP)
    reflector = Reflector(api, target, ManualClock(), METERS, random.Random(0).random)
    reflector._limit = 2
    begun(reflector)
    task = asyncio.ensure_future(reflector.run())
    for step, turns in history:
        step(api)
        for _ in range(turns):
            await asyncio.sleep(0)
    for _ in range(400):
        await asyncio.sleep(0)
    task.cancel()
    return reflector, api


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(STEPS, st.integers(0, 12)), max_size=30))
def test_a_history_with_relists_and_missed_deletions_ends_in_the_servers_state(
    history: list[tuple[Step, int]],
) -> None:
    reflector, api = asyncio.run(follow(history))
    server = {key: item["data"] for key, item in api.objects(CONFIGMAPS).items()}
    assert {key: item.data for key, item in reflector.store.snapshot().items()} == server


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(STEPS, st.integers(0, 12)), max_size=30))
def test_applying_every_event_gives_the_content_of_the_store(history: list[tuple[Step, int]]) -> None:
    """A subscriber that applies the changes of watches and of lists always has the same objects, in the same order."""
    mine: dict[Key, Any] = {}

    def subscribe(reflector: Reflector[Any]) -> None:
        reflector.store.subscribe(lambda changes: apply(mine, changes, reflector))

    reflector, _ = asyncio.run(follow(history, subscribe))
    assert mine == reflector.store.snapshot()


def apply(mine: dict[Key, Any], changes: Changes[Any] | None, reflector: Reflector[Any]) -> None:
    if changes is None:
        assert mine == {}
        mine.update(reflector.store.snapshot())
        return
    for key, (old, new) in changes.items():
        assert mine.get(key) is old
        assert new is not old
        if new is None:
            del mine[key]
        else:
            assert key == (new.metadata.namespace, new.metadata.name)
            mine[key] = new
    assert list(mine.items()) == list(reflector.store.snapshot().items())
