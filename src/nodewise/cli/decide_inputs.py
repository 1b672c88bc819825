"""Reads the objects for `nodewise decide` once: from files, from a cluster, or from both. Files override the cluster.

With a cluster it needs the rights to list nodes, pods and the objects that agents read. Objects in nodewise's own
namespace are not read, because the allocations of pods are also in their annotations. Pods on nodes are read if an
agent needs them. Nothing is written. `decide_metrics` fetches the metrics.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import agents
from nodewise.agent import AgentKind, ObjectKey, Watched
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Refused, closest_name, shown
from nodewise.cli import native_coverage, object_and_metric_sources, terminal_output
from nodewise.cli.progress import Progress
from nodewise.kube import object_files, object_listing
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.object_files import FileObjects
from nodewise.kube.reflector import ReflectorTarget
from nodewise.kube.resource_kinds import NODES, PODS, Resource
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import metric_files
from nodewise.metrics import node_attributes as node_facts
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe.metrics_registry import MetricsRegistry

_NOT_FINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"
_WAITING: Final = f"spec.nodeName=,{_NOT_FINISHED}"
_BOUND: Final = f"spec.nodeName!=,{_NOT_FINISHED}"


class _PodMetadata(msgspec.Struct, frozen=True, gc=False):
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class _PodSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class PodPlacement(msgspec.Struct, frozen=True, gc=False):
    """The node of a pod, and whether the pod is being deleted or finished."""

    metadata: _PodMetadata = _PodMetadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class InputSelection(NamedTuple):
    """What to read, from the command line."""

    paths: Sequence[str]
    policies: Sequence[str]
    """Files whose objects override all others, to try policies."""
    agents: Sequence[str]
    """Names of agents; empty: all agents with work to do."""
    options: Mapping[str, Any]
    """The options of all candidate agents, by name."""
    namespace: str
    """The namespace of pods and of agents' objects; empty: all."""
    running: bool
    """Whether to decide pods that are on a node, too."""
    metrics: Sequence[str]
    """The values of `--metrics`."""


ObjectsByKey = Mapping[ObjectKey, Any]


class ObjectsAndMetrics(NamedTuple):
    """All objects by namespace and name, and the metrics of files."""

    kinds: Sequence[AgentKind]
    nodes: ObjectsByKey
    pods: ObjectsByKey
    objects: Mapping[str, ObjectsByKey]
    """By the name in `Watched`."""
    snapshot: MetricsSnapshot

    @property
    def node_names(self) -> list[str]:
        return [name for _, name in self.nodes]


class _ObjectQuery(NamedTuple):
    """A kind of objects with selectors, which apply to the cluster only."""

    watched: Watched
    namespace: str = ""
    """Empty: all."""
    fields: str = ""
    """As a `fieldSelector`."""


class _ObjectSources(NamedTuple):
    """The sources of objects; a later source overrides an earlier one."""

    api: Api | None
    files: FileObjects
    policies: FileObjects


async def read_objects(selection: InputSelection, api: Api | None) -> ObjectsAndMetrics:
    """All inputs except the metrics of live sources. `BadInput` names what cannot be read in files."""
    kinds = [agents.load(name) for name in selection.options]
    plain, tables = metric_files.split_paths(selection.paths)
    sources = _ObjectSources(api, object_files.read(plain), object_files.read(selection.policies))
    all_watched = object_and_metric_sources.watched_objects(kinds, selection.options)
    resources = [NODES, PODS, *(watched.resource for watched in all_watched)]
    for files in (sources.files, sources.policies):
        _warn_of_misspelled_kinds(files, resources)
    others_watched = [
        watched for watched in all_watched if watched.resource != PODS and not watched.own_namespace
    ]
    nodes, pods, *others = await _run_queries(
        sources,
        [
            *_node_and_pod_queries(kinds, selection),
            *(_ObjectQuery(watched, selection.namespace) for watched in others_watched),
        ],
    )
    objects = {
        watched.name: objects_of_kind for watched, objects_of_kind in zip(others_watched, others, strict=True)
    }
    kinds = [
        kind for kind in kinds if selection.agents or _agent_has_work(kind, selection, objects, nodes, pods)
    ]
    objects |= await _read_bound_pods(sources, kinds, selection)
    known = cooperative_scheduling.run_without_pauses(node_facts.read_node_attributes(nodes.values()))
    return ObjectsAndMetrics(
        kinds, nodes, pods, objects, metric_files.read_snapshot(sources.files, tables, known)
    )


def _warn_of_misspelled_kinds(files: FileObjects, resources: Iterable[Resource]) -> None:
    """Warn of objects whose kind is nearly one that is read: without them, the decision would be another one."""
    kinds: dict[str, set[str]] = {}
    for resource in resources:
        kinds.setdefault(resource.group, set()).add(resource.kind)
    for group, kind in files.kinds():
        known = kinds.get(group, set())
        if kind not in known and (similar := closest_name(kind, sorted(known))):
            where = files.entries(group, kind)[0].where
            terminal_output.print_message(
                f'Warning: {where}: an object of the unknown kind {shown(kind)} is ignored; did you mean "{similar}"?'
            )


async def read_nodes(paths: Sequence[str], api: Api | None) -> ObjectsAndMetrics:
    """The nodes, and the metrics of files, for a command that decides no pods."""
    plain, tables = metric_files.split_paths(paths)
    files = object_files.read(plain) if plain else FileObjects({})
    query = _ObjectQuery(Watched("nodes", NODES, object_and_metric_sources.merge_node_types(())))
    [nodes] = await _run_queries(_ObjectSources(api, files, FileObjects({})), [query])
    known = cooperative_scheduling.run_without_pauses(node_facts.read_node_attributes(nodes.values()))
    return ObjectsAndMetrics((), nodes, {}, {}, metric_files.read_snapshot(files, tables, known))


async def _read_bound_pods(
    sources: _ObjectSources, kinds: Sequence[AgentKind], selection: InputSelection
) -> dict[str, ObjectsByKey]:
    """The pods that agents watch, by the name in `Watched`."""
    all_watched = object_and_metric_sources.watched_objects(kinds, selection.options)
    names = [watched.name for watched in all_watched if watched.resource == PODS]
    queries = [_ObjectQuery(watched, fields=_BOUND) for watched in all_watched if watched.resource == PODS]
    return dict(zip(names, await _run_queries(sources, queries), strict=True))


def _node_and_pod_queries(
    kinds: Sequence[AgentKind], selection: InputSelection
) -> tuple[_ObjectQuery, _ObjectQuery]:
    pod_type = merge(
        "Pod", PodPlacement, native_coverage.NativePodFields, *(kind.pod_fields for kind in kinds)
    )
    return (
        _ObjectQuery(Watched("nodes", NODES, object_and_metric_sources.merge_node_types(kinds))),
        _ObjectQuery(
            Watched("pods", PODS, pod_type),
            selection.namespace,
            _NOT_FINISHED if selection.running else _WAITING,
        ),
    )


def _agent_has_work(
    kind: AgentKind,
    selection: InputSelection,
    objects: Mapping[str, ObjectsByKey],
    nodes: ObjectsByKey,
    pods: ObjectsByKey,
) -> bool:
    """Whether an agent has work to do: one of its objects exists, other than namespaces, or the agent says so."""
    options = selection.options[kind.name]
    own = (
        watched
        for watched in kind.watched(options)
        if watched.resource.kind != "Namespace" and not watched.is_optional
    )
    if any(objects.get(watched.name) for watched in own):
        return True
    return kind.concerns(options, nodes.values(), pods.values())


async def _run_queries(sources: _ObjectSources, queries: Sequence[_ObjectQuery]) -> list[ObjectsByKey]:
    """The objects of the cluster and of files for each query, by namespace and name."""
    listed = await _list_from_cluster(sources.api, queries) if sources.api else [{} for _ in queries]
    return [
        {
            **listed_objects,
            **_objects_of_files(sources.files, query.watched),
            **_objects_of_files(sources.policies, query.watched),
        }
        for query, listed_objects in zip(queries, listed, strict=True)
    ]


def _objects_of_files(objects: FileObjects, watched: Watched) -> ObjectsByKey:
    return {
        (item.metadata.namespace, item.metadata.name): item
        for item in object_and_metric_sources.select_watched_file_objects(objects, watched)
    }


async def _list_from_cluster(api: Api, queries: Sequence[_ObjectQuery]) -> list[ObjectsByKey]:
    """The objects of the cluster for each query; the requests run concurrently."""
    counts: dict[str, int] = {}
    with Progress() as progress:

        def show_count(name: str, count: int) -> None:
            counts[name] = count
            progress.say("reading " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))

        listed = await asyncio.gather(
            *(
                _list_objects_of_query(api, query, partial(show_count, query.watched.name))
                for query in queries
            )
        )
    for query, objects in zip(queries, listed, strict=True):
        if objects is None and not query.watched.is_optional:
            _warn_of_missing_kind(query.watched.resource)
    return [objects or {} for objects in listed]


async def _list_objects_of_query(
    api: Api, query: _ObjectQuery, on_progress: Callable[[int], None]
) -> ObjectsByKey | None:
    """The objects of a query; None if the cluster does not have the kind."""
    watched = query.watched
    namespace = query.namespace if watched.resource.namespaced else ""
    selectors = dict(watched.selectors) | ({"fieldSelector": query.fields} if query.fields else {})
    target = ReflectorTarget[Any](watched.resource, watched.type, namespace, selectors, watched.keep)
    try:
        store = await object_listing.list_objects(api, target, MetricsRegistry(), on_progress)
    except NotFound:
        return None
    except Refused as error:
        if not watched.is_optional:
            raise
        terminal_output.print_message(
            f"{watched.resource.plural} cannot be read and count as absent: {error}"
        )
        return None
    return store.snapshot()


def _warn_of_missing_kind(resource: Resource) -> None:
    name = f"{resource.plural}.{resource.group}".rstrip(".")
    terminal_output.print_message(f"the cluster knows no {name}: is its definition (CRD) installed?")
