"""Where the extender's objects and metrics come from: a cluster, or files. Both fill the same stores."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from nodewise.agent import AgentKind, Watched
from nodewise.clock import Clock
from nodewise.errors import BadSettings, NodewiseError, Problem
from nodewise.kube import files
from nodewise.kube.api import Api
from nodewise.kube.fields import merge
from nodewise.kube.reflector import Reflector, Target
from nodewise.kube.resources import NODES
from nodewise.kube.store import Store, Writer
from nodewise.metrics import file as metric_files
from nodewise.metrics.custom import CustomMetrics
from nodewise.metrics.file import FileMetrics
from nodewise.metrics.source import Source
from nodewise.observe import logs
from nodewise.observe.meters import Meters


def node_type(kinds: Iterable[AgentKind]) -> Any:
    """What is kept of a node: what somebody reads, and no more of its 10 kB."""
    return merge("Node", *(kind.node_fields for kind in kinds))


class Feed(NamedTuple):
    """Stores that are kept up to date while `tasks` run."""

    nodes: Store[Any]
    objects: dict[str, Store[Any]]
    """By the name in `Watched`."""
    tasks: list[Callable[[], Coroutine[Any, Any, None]]]


def from_cluster(api: Api, kinds: Sequence[AgentKind], clock: Clock, meters: Meters) -> Feed:
    """Reflect nodes and what the agents watch."""

    def reflector(target: Target[Any]) -> Reflector[Any]:
        return Reflector(api, target, clock, meters, random.random)

    nodes = reflector(Target(NODES, node_type(kinds)))
    others = {one.name: reflector(Target(one.resource, one.type)) for one in _watched(kinds)}
    return Feed(
        nodes.store,
        {name: reflecting.store for name, reflecting in others.items()},
        [nodes.run, *(reflecting.run for reflecting in others.values())],
    )


def _watched(kinds: Iterable[AgentKind]) -> list[Watched]:
    """What the agents need besides nodes, each once."""
    return list({one.name: one for kind in kinds for one in kind.watched}.values())


def from_files(paths: Sequence[str], kinds: Sequence[AgentKind], period_s: float) -> Feed:
    """Read nodes and what the agents watch from files, and again whenever these change."""
    wanted = {
        "nodes": (NODES, node_type(kinds)),
        **{one.name: (one.resource, one.type) for one in _watched(kinds)},
    }
    writers: dict[str, Writer[Any]] = {name: Writer() for name in wanted}

    def fill() -> None:
        plain, _ = metric_files.split(paths)
        found = files.read(plain)
        for name, (resource, kind) in wanted.items():
            writers[name].replace(found.of(resource, kind))

    async def follow() -> None:
        before = metric_files.fingerprint(paths)
        while True:
            await asyncio.sleep(period_s)
            now = metric_files.fingerprint(paths)
            if now == before:
                continue
            before = now
            try:
                fill()
                logs.emit("objects_reread", paths=list(paths))
            except NodewiseError as error:
                logs.emit("objects_unreadable", error=str(error))

    fill()
    stores = {name: writer.store for name, writer in writers.items()}
    return Feed(stores.pop("nodes"), stores, [follow])


def sources(names: Sequence[str], objects_from: Sequence[str], api: Api | None) -> list[Source]:
    """The sources that `--metrics` names, in that order. Files that objects come from are a source as well."""
    found: list[Source] = [FileMetrics(tuple(objects_from))] if objects_from else []
    for name in names:
        kind, _, path = name.partition(":")
        if kind == "file" and path:
            found.append(FileMetrics((path,)))
        elif kind in {"auto", "custom"} and not path:
            if api is not None:
                found.append(CustomMetrics(api))
        else:
            raise BadSettings("settings", [Problem("--metrics", repr(name), "auto, custom or file:PATH")])
    return found
