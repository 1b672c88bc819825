"""The sources of objects: a cluster or files. Both fill the same stores."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

import msgspec
from msgspec.structs import replace

from nodewise.agent import AgentKind, ObjectKey, Watched
from nodewise.base.clock import Clock
from nodewise.base.errors import NodewiseError
from nodewise.engine import pod_requeueing
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.pod_requeueing import WaitingPodFields
from nodewise.engine.snapshot_cache import ApplyResponse, Stores
from nodewise.kube import object_files
from nodewise.kube.api_server_interface import Api
from nodewise.kube.object_files import FileObjects
from nodewise.kube.reflector import Reflector, ReflectorTarget, list_objects
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.kube.store import Store, StoreWriter
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import metric_files
from nodewise.metrics.node_attributes import NodeAttributeFields
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

_FILES_PERIOD_S: Final = 0.2
MOST_WAITING_POD_BYTES: Final = 2**14
"""The largest pod that is kept for requeueing, as JSON of the fields that agents read. kube-scheduler retries a larger
one after five minutes."""


def merge_node_types(kinds: Iterable[AgentKind]) -> Any:
    """The type of a stored node: only the fields that agents or sources read, of about 10 kB."""
    return merge("Node", NodeAttributeFields, *(kind.node_fields for kind in kinds))


class DataRequirements(NamedTuple):
    """The objects that agents read."""

    node_type: Any
    watched: Sequence[Watched]
    """Other objects than nodes, without duplicates."""

    def with_additional_requirements(
        self, node_fields: type[msgspec.Struct], more: Sequence[Watched]
    ) -> "DataRequirements":
        """The same with further fields of nodes and further objects."""
        return DataRequirements(merge("Node", self.node_type, node_fields), [*self.watched, *more])


def data_requirements(kinds: Sequence[AgentKind], options: Mapping[str, Any]) -> DataRequirements:
    """The requirements of agents with these options, which are keyed by agent."""
    return DataRequirements(merge_node_types(kinds), watched_objects(kinds, options))


class ObjectFeed(NamedTuple):
    """Stores, and the tasks that keep them up to date."""

    nodes: Store[Any]
    objects: dict[str, Store[Any]]
    """By the name in `Watched`."""
    tasks: list[Callable[[], Coroutine[Any, Any, None]]]
    apply_response: dict[str, ApplyResponse]
    """By the name in `Watched`; empty for files, because nodewise does not write to them."""
    relister: "StoreRelister | None" = None
    """None for files, which are read again whenever they change."""

    @property
    def stores(self) -> Stores:
        """The stores of a snapshot's inputs."""
        return Stores(self.nodes, self.objects, self.apply_response)


class StoreRelister:
    """Lists the objects of a feed again."""

    def __init__(
        self, api: Api, targets: Mapping[str, ReflectorTarget[Any]], reflectors: Iterable[Reflector[Any]]
    ) -> None:
        self._api = api
        self._targets = targets
        self._reflectors = tuple(reflectors)
        self._registry = MetricsRegistry()
        """A registry of its own: counts of these lists must not overwrite those of the stores."""

    async def read(self, name: str) -> Store[Any]:
        """A separate list of one kind (`agent.controller_interface.Relister`)."""
        return await list_objects(self._api, self._targets[name], self._registry, lambda _: None)

    def begin(self) -> None:
        """Fill all stores from new lists."""
        for reflector in self._reflectors:
            reflector.request_relist()


RunNodes = Callable[[Reflector[Any]], Coroutine[Any, Any, None]]
"""Runs the reflector of nodes, until cancelled."""


def watch_cluster(
    api: Api,
    needs: DataRequirements,
    clock: Clock,
    registry: MetricsRegistry,
    namespace: str,
    target_of_nodes: Callable[[ReflectorTarget[Any]], ReflectorTarget[Any]] = lambda target: target,
    run_nodes: RunNodes = lambda reflector: reflector.run(),
) -> ObjectFeed:
    """Watch nodes and the objects of agents; `namespace` is nodewise's own.

    `target_of_nodes` and `run_nodes` select the nodes that are watched.
    """
    targets = {"nodes": target_of_nodes(ReflectorTarget(NODES, needs.node_type))} | {
        watched.name: ReflectorTarget[Any](
            watched.resource,
            watched.type,
            namespace if watched.own_namespace else "",
            watched.selectors,
            watched.keep,
            is_optional=watched.is_optional,
        )
        for watched in needs.watched
    }
    others = {
        name: Reflector(api, target, clock, registry, random.random) for name, target in targets.items()
    }
    relister = StoreRelister(api, targets, others.values())
    nodes = others.pop("nodes")
    return ObjectFeed(
        nodes.store,
        {name: reflector.store for name, reflector in others.items()},
        [lambda: run_nodes(nodes), *(reflector.run for reflector in others.values())],
        {name: reflector.apply_response for name, reflector in others.items()},
        relister,
    )


def waiting_pods_target(kinds: Iterable[AgentKind], chain: AgentChain) -> ReflectorTarget[Any]:
    """The pods that wait for a feasible node and that the chain filters, with the fields that agents read."""

    def keep(pod: Any) -> Any | None:
        if not pod_requeueing.is_waiting(pod, chain):
            return None
        size = len(msgspec.json.encode(pod))
        if size > MOST_WAITING_POD_BYTES:
            raise ValueError(
                f"the fields that agents read have {size} bytes, and only a pod with at most {MOST_WAITING_POD_BYTES} "
                "is requeued as soon as it fits: use fewer containers or resources"
            )
        return pod

    pod_type = merge("Pod", WaitingPodFields, *(kind.pod_fields for kind in kinds))
    pending = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    return ReflectorTarget(PODS, pod_type, selectors=pending, keep=keep, label="Pod (waiting)")


async def list_once(
    api: Api,
    watched: Watched,
    namespace: str = "",
    fields: str = "",
    on_progress: Callable[[int], None] = lambda _: None,
) -> Mapping[ObjectKey, Any]:
    """The objects of a kind in a namespace (empty: all) that the field selector selects. Errors are those of `Api.get`.

    `on_progress` is called with the number of objects so far.
    """
    inside = namespace if watched.resource.namespaced else ""
    selectors = dict(watched.selectors) | ({"fieldSelector": fields} if fields else {})
    target = ReflectorTarget[Any](watched.resource, watched.type, inside, selectors, watched.keep)
    return (await list_objects(api, target, MetricsRegistry(), on_progress)).snapshot()


def watched_objects(kinds: Iterable[AgentKind], options: Mapping[str, Any]) -> list[Watched]:
    """The objects other than nodes that the agents read, without duplicates."""
    return list(
        {watched.name: watched for kind in kinds for watched in kind.watched(options[kind.name])}.values()
    )


def select_watched_file_objects(objects: FileObjects, watched: Watched) -> list[Any]:
    """The objects of files that agents read. Pods in files usually have no uid, so each gets one from its name."""
    items: list[Any] = list(objects.of(watched.resource, cast("type[Any]", watched.type)))
    for number, pod in enumerate(items if watched.resource == PODS else ()):
        if not pod.metadata.uid:
            uid = f"{pod.metadata.namespace}/{pod.metadata.name}"
            items[number] = replace(pod, metadata=replace(pod.metadata, uid=uid))
    return items if watched.keep is None else [kept for kept in map(watched.keep, items) if kept is not None]


def watch_files(paths: Sequence[str], needs: DataRequirements) -> ObjectFeed:
    """Read nodes and the objects of agents from files, and read them again when they change."""
    kinds = [Watched("nodes", NODES, needs.node_type), *needs.watched]
    writers: dict[str, StoreWriter[Any]] = {watched.name: StoreWriter() for watched in kinds}

    def fill() -> None:
        plain, _ = metric_files.split_paths(paths)
        objects = object_files.read(plain)
        for watched in kinds:
            writers[watched.name].replace(select_watched_file_objects(objects, watched))

    async def follow() -> None:
        before = metric_files.fingerprint_files(paths)
        while True:
            await asyncio.sleep(_FILES_PERIOD_S)
            now = metric_files.fingerprint_files(paths)
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
    return ObjectFeed(stores.pop("nodes"), stores, [follow], {})


@runtime_checkable
class ClosableSource(Protocol):
    """A source of metrics with connections of its own."""

    async def close(self) -> None: ...
