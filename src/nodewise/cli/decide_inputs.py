"""What `decide` decides from, read once: from files, from a cluster, or from both; files win.

Of a cluster it needs the rights to list nodes, pods and what agents watch, and to get metrics. What is in nodewise's
own namespace is not read: what pods hold stands in their annotations as well. Pods that are on a node are read where
an agent that takes part needs them. Nothing is written.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import agents, clock, cooperative_scheduling
from nodewise.agent import AgentKind, MetricRequest, ObjectKey, Watched
from nodewise.cli import data_sources, terminal
from nodewise.cli.data_sources import Ground
from nodewise.cli.progress import Progress
from nodewise.kube import list_all, object_files
from nodewise.kube.api import Api, NotFound
from nodewise.kube.field_merge import merge
from nodewise.kube.object_files import Objects
from nodewise.kube.reflector import Target
from nodewise.kube.resources import NODES, PODS, Resource
from nodewise.metrics import metric_files
from nodewise.metrics import node_attributes as node_facts
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.node_attributes import Nodes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusMetrics
from nodewise.metrics.refresher import Refresher, RefreshOptions
from nodewise.metrics.series import Series
from nodewise.metrics.source import NotThere, Source
from nodewise.observe.metrics_registry import MetricsRegistry

_LASTING: Final = "status.phase!=Succeeded,status.phase!=Failed"
_WAITING: Final = f"spec.nodeName=,{_LASTING}"
_BOUND: Final = f"spec.nodeName!=,{_LASTING}"


class _Leaving(msgspec.Struct, frozen=True, gc=False):
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class _Place(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class _Phase(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class PodPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a pod is, if it is anywhere, and whether it is on its way out."""

    metadata: _Leaving = _Leaving()
    spec: _Place = _Place()
    status: _Phase = _Phase()


class Wish(NamedTuple):
    """What to read."""

    paths: Sequence[str]
    policies: Sequence[str]
    """Files whose objects win over all others, to try policies."""
    agents: Sequence[str]
    """Their names; empty: those that have something to do."""
    options: Mapping[str, Any]
    """Of all agents that may take part, by name."""
    namespace: str
    """Of pods and of what agents watch; empty: all."""
    running: bool
    """Whether pods that are on a node are wanted too."""
    metrics: Sequence[str]
    """As `--metrics` says."""


Keyed = Mapping[ObjectKey, Any]


class Read(NamedTuple):
    """All objects by namespace and name, and the metrics of files."""

    kinds: Sequence[AgentKind]
    nodes: Keyed
    pods: Keyed
    objects: Mapping[str, Keyed]
    """By the name in `Watched`."""
    snapshot: MetricsSnapshot

    @property
    def node_names(self) -> list[str]:
        return [name for _, name in self.nodes]


class _Sought(NamedTuple):
    """A kind of objects, and which of them; files are not selected from."""

    watched: Watched
    namespace: str = ""
    """Empty: all."""
    fields: str = ""
    """As a `fieldSelector`."""


class _Sources(NamedTuple):
    """Where objects come from; of two with one name the later one's counts."""

    api: Api | None
    given: Objects
    tried: Objects


async def read(wish: Wish, api: Api | None) -> Read:
    """Everything but the metrics of live sources. `BadInput` names what cannot be read in files."""
    kinds = [agents.load(name) for name in wish.options]
    plain, tables = metric_files.split(wish.paths)
    sources = _Sources(api, object_files.read(plain), object_files.read(wish.policies))
    watched = [
        kind_watched
        for kind_watched in data_sources.watched(kinds, wish.options)
        if kind_watched.resource != PODS and not kind_watched.own_namespace
    ]
    nodes, pods, *others = await _read(
        sources,
        [*_nodes_and_pods(kinds, wish), *(_Sought(kind_watched, wish.namespace) for kind_watched in watched)],
    )
    objects = {kind_watched.name: keyed for kind_watched, keyed in zip(watched, others, strict=True)}
    kinds = [kind for kind in kinds if wish.agents or _takes_part(kind, wish, objects, nodes, pods)]
    objects |= await _bound_pods(sources, kinds, wish)
    known = cooperative_scheduling.run_at_once(node_facts.read(nodes.values()))
    return Read(kinds, nodes, pods, objects, metric_files.snapshot(sources.given, tables, known))


async def _bound_pods(sources: _Sources, kinds: Sequence[AgentKind], wish: Wish) -> dict[str, Keyed]:
    """By the name in `Watched`, the pods that agents watch."""
    watched = [
        pods_watched
        for pods_watched in data_sources.watched(kinds, wish.options)
        if pods_watched.resource == PODS
    ]
    pods = await _read(sources, [_Sought(pods_watched, fields=_BOUND) for pods_watched in watched])
    return {pods_watched.name: keyed for pods_watched, keyed in zip(watched, pods, strict=True)}


def _nodes_and_pods(kinds: Sequence[AgentKind], wish: Wish) -> tuple[_Sought, _Sought]:
    pod_type = merge("Pod", PodPlace, *(kind.pod_fields for kind in kinds))
    return (
        _Sought(Watched("nodes", NODES, data_sources.node_type(kinds))),
        _Sought(Watched("pods", PODS, pod_type), wish.namespace, _LASTING if wish.running else _WAITING),
    )


def _takes_part(kind: AgentKind, wish: Wish, objects: Mapping[str, Keyed], nodes: Keyed, pods: Keyed) -> bool:
    """Whether an agent has anything to do: an object of its own is there, or it says so itself."""
    options = wish.options[kind.name]
    if any(objects.get(watched.name) for watched in kind.watched(options)):
        return True
    return kind.concerns(options, nodes.values(), pods.values())


async def _read(sources: _Sources, sought: Sequence[_Sought]) -> list[Keyed]:
    """Of each kind what is in the cluster and in files, by namespace and name."""
    listed = await _listed(sources.api, sought) if sources.api else [{} for _ in sought]
    return [
        {**listed_objects, **_keyed(sources.given, query.watched), **_keyed(sources.tried, query.watched)}
        for query, listed_objects in zip(sought, listed, strict=True)
    ]


def _keyed(objects: Objects, watched: Watched) -> Keyed:
    return {
        (item.metadata.namespace, item.metadata.name): item for item in data_sources.given(objects, watched)
    }


async def _listed(api: Api, sought: Sequence[_Sought]) -> list[Keyed]:
    """From the cluster, all kinds at once."""
    counts: dict[str, int] = {}
    with Progress() as progress:

        def show_count(name: str, count: int) -> None:
            counts[name] = count
            progress.say("reading " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))

        listed = await asyncio.gather(
            *(_one(api, query, partial(show_count, query.watched.name)) for query in sought)
        )
    for query, objects in zip(sought, listed, strict=True):
        if objects is None:
            _say_unknown(query.watched.resource)
    return [objects or {} for objects in listed]


async def _one(api: Api, query: _Sought, on_progress: Callable[[int], None]) -> Keyed | None:
    """All objects of a kind that count here; None where the cluster does not know the kind."""
    watched = query.watched
    namespace = query.namespace if watched.resource.namespaced else ""
    selectors = dict(watched.selectors) | ({"fieldSelector": query.fields} if query.fields else {})
    target = Target[Any](watched.resource, watched.type, namespace, selectors, watched.keep)
    try:
        store = await list_all.read(api, target, MetricsRegistry(), on_progress)
    except NotFound:
        return None
    return store.snapshot()


def _say_unknown(resource: Resource) -> None:
    name = f"{resource.plural}.{resource.group}".rstrip(".")
    terminal.tell(f"the cluster knows no {name}: is its definition (CRD) installed?")


class Held:
    """The source of metrics that were read already: from standard input, too, which nobody can read again."""

    name = metric_files.SOURCE

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def takes(self, request: MetricRequest) -> bool:
        return bool(request.metric)

    async def fetch(self, request: MetricRequest, now: float) -> Series:  # noqa: ARG002 - the contract of a source
        series = metric_files.select(self._snapshot, request)
        if series is None:
            raise NotThere(f"metric {request.metric} is not in the files given")
        return series


class Measuring(NamedTuple):
    """How metrics are asked for."""

    names: Sequence[str]
    """As `--metrics` says."""
    refresh: RefreshOptions
    prometheus: PrometheusOptions


async def measured(
    inputs: Read, metric_requests: Iterable[MetricRequest], how: Measuring, api: Api | None
) -> MetricsSnapshot:
    """The metrics that are wanted, asked for once: of the files, then of the sources in their order."""
    nodes, meters = (
        cooperative_scheduling.run_at_once(node_facts.read(inputs.nodes.values())),
        MetricsRegistry(),
    )

    async def lookup() -> Nodes:
        return nodes

    back_s = max(5 * how.refresh.sync_period_s, 60.0)
    ground = Ground(api, lookup, how.prometheus, back_s, how.refresh.metrics_timeout_s, meters)
    live = data_sources.sources(how.names, (), ground)
    held: list[Source] = [Held(inputs.snapshot)] if inputs.snapshot.series or not live else []
    refresher = Refresher([*held, *live], how.refresh, clock.SystemClock(), meters)
    with Progress() as progress:
        progress.say("asking for metrics")
        refresher.set_requests(frozenset(metric_requests))
        await refresher.settle()
    for source in live:
        if isinstance(source, PrometheusMetrics):
            await source.close()
    return refresher.snapshot
