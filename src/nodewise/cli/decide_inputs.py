"""Reads the inputs of `decide` and similar commands once: objects, metrics, and settings of a running nodewise.

Objects come from files, from a cluster, or from both; files override the cluster. A cluster requires the rights to list
nodes, pods and the objects that agents read. Objects in nodewise's own namespace are not read, because the allocations
of pods are also in their annotations. Pods on nodes are read if an agent needs them. Nothing is written.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import agents
from nodewise.agent import AgentKind, MetricRequest, ObjectKey, Watched
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.errors import (
    BadInput,
    BadSettings,
    NodewiseError,
    Problem,
    Refused,
    Unavailable,
    closest_name,
    closest_names,
    shown,
)
from nodewise.cli import object_and_metric_sources, terminal_output
from nodewise.cli.explain import pod_state
from nodewise.cli.options_from_settings import CommandLine
from nodewise.cli.terminal_output import Progress
from nodewise.engine import metric_values_endpoint
from nodewise.engine.metric_values_endpoint import MetricValuesPage
from nodewise.engine.recording_file import AgentHeader
from nodewise.kube import object_files, reflector, replicas
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.http_client import HttpApi
from nodewise.kube.object_files import FileObjects
from nodewise.kube.reflector import ReflectorTarget
from nodewise.kube.replicas import Replica
from nodewise.kube.resource_kinds import NODES, PODS, Resource
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import metric_files, source_table
from nodewise.metrics import node_attributes as node_facts
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import (
    MetricCatalog,
    MetricsSource,
    SeriesCatalog,
    SourceDependencies,
    create_metric_sources,
    merge_requests,
)
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import MetricsRefresher, RefreshOptions
from nodewise.metrics.series import Series
from nodewise.metrics.source_table import AUTO, CLUSTER, SOURCES
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import policy_selection
from nodewise.policies.state import TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints, label_key, verdict_requirements

_MAX_LISTED: Final = 5


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    creationTimestamp: str | None = None  # noqa: N815 - the API's name


class _Spec(NodeConstraints, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class NativePodFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that are read in addition to those of the agent telemetry."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def print_uncovered_pods(
    pods: Iterable[Any], state: TelemetryState, objects: Mapping[str, Mapping[ObjectKey, Any]]
) -> None:
    """Print a message for each of the first pods, and the number of the others."""
    messages = [message for pod in pods for message in _messages(pod, state, objects)]
    for message in messages[:_MAX_LISTED]:
        terminal_output.print_message(message)
    if len(messages) > _MAX_LISTED:
        terminal_output.print_message(
            f"{len(messages) - _MAX_LISTED:,} more policies of waiting pods have no effect in native mode"
        )


def _messages(
    pod: Any, state: TelemetryState, objects: Mapping[str, Mapping[ObjectKey, Any]]
) -> Iterator[str]:
    if pod.spec.nodeName:
        return
    keys = {requirement.key for requirement in verdict_requirements(pod.spec)}
    for key in state.selection.select(pod):
        # a pod may name a TASPolicy that does not exist
        policy_state = state.policies.get(key)
        if policy_state is None or label_key(policy_state.policy.uid) in keys:
            continue
        policy = policy_state.policy
        if not policy_selection.is_enforced_for(policy, pod):
            continue
        of_label = pod_state.policy_of_label(policy, objects, selects=True)
        if of_label.is_labelled:
            why = pod_state.why_not_covering(of_label, pod.metadata.creationTimestamp or "")
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            yield f"native mode does not apply {of_label.policy} to pod {name}: {why}; create the pod again"


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
    pod_type = merge("Pod", PodPlacement, NativePodFields, *(kind.pod_fields for kind in kinds))
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
            resource = query.watched.resource
            name = f"{resource.plural}.{resource.group}".rstrip(".")
            terminal_output.print_message(f"the cluster knows no {name}: is its definition (CRD) installed?")
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
        store = await reflector.list_objects(api, target, MetricsRegistry(), on_progress)
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


_MAX_CHECKED: Final = 20
"""Similar names of which a source is asked whether they have series."""
_YEAR_S: Final = 365.2425 * 86400


class LoadedMetrics:
    """A source of metrics that were read already. Standard input, for example, cannot be read again."""

    name = source_table.FILE

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def supports(self, request: MetricRequest) -> bool:
        return bool(request.metric)

    async def fetch(self, request: MetricRequest, now: float) -> Series:  # noqa: ARG002 - the contract of a source
        series = metric_files.select_series(self._snapshot, request)
        if series is None:
            raise metric_files.missing_from_files(request.metric, "these files", self._snapshot)
        return series


class MetricSettings(NamedTuple):
    """How to fetch metrics."""

    names: Sequence[str]
    """The values of `--metrics`."""
    refresh: RefreshOptions
    prometheus: PrometheusOptions


async def fetch_metrics(
    inputs: ObjectsAndMetrics,
    metric_requests: Iterable[MetricRequest],
    settings: MetricSettings,
    api: Api | None,
    running: MetricsSnapshot = MetricsSnapshot(),  # noqa: B008 - it is immutable
) -> MetricsSnapshot:
    """The requested metrics: from the files, then those of a running nodewise, then fetched once from the sources in
    their order.
    """
    requests = merge_requests(metric_requests)
    in_files = {
        request.key
        for request in requests
        if metric_files.select_series(inputs.snapshot, request) is not None
    }
    known = running.only(frozenset(request.key for request in requests) - in_files)
    for key in known.failures.keys() - known.series.keys():
        logs.emit("metric_failed", metric=key, error=known.failures[key])
    rest = frozenset(request for request in requests if not known.was_fetched(request.key))
    return known.with_older(await _fetch_from_sources(inputs, rest, settings, api)) if rest else known


async def _fetch_from_sources(
    inputs: ObjectsAndMetrics, requests: frozenset[MetricRequest], settings: MetricSettings, api: Api | None
) -> MetricsSnapshot:
    registry = MetricsRegistry()
    async with _open_sources(inputs, settings, api, registry) as sources:
        refresher = MetricsRefresher(sources, settings.refresh, clock.SystemClock(), registry)
        with Progress() as progress:
            progress.say("requesting metrics")
            refresher.set_requests(requests)
            await refresher.settle()
        return refresher.snapshot


async def metric_names(inputs: ObjectsAndMetrics, settings: MetricSettings, api: Api | None) -> list[str]:
    """The names of metrics that the sources have, for messages about a misspelt one. Errors of sources are ignored."""
    names = dict.fromkeys(series.metric for series in inputs.snapshot.series.values())
    async with _open_sources(inputs, settings, api, MetricsRegistry()) as sources:
        for source in sources:
            if isinstance(source, MetricCatalog):
                with contextlib.suppress(NodewiseError):
                    names |= dict.fromkeys(await source.metric_names())
    return list(names)


async def similar_metrics(
    metric: str,
    inputs: ObjectsAndMetrics,
    settings: MetricSettings,
    api: Api | None,
    count: int,
    known: Iterable[str] = (),
) -> list[str]:
    """Up to so many other names of metrics that are similar to a misspelt one: of the files, known ones, and those that
    sources have. A source whose names may be those of series that have ended is asked which of them have series.
    """
    existing = {*known, *(series.metric for series in inputs.snapshot.series.values())}
    async with _open_sources(inputs, settings, api, MetricsRegistry()) as sources:
        for source in sources:
            with contextlib.suppress(NodewiseError):
                names = await source.metric_names() if isinstance(source, MetricCatalog) else ()
                if isinstance(source, SeriesCatalog):
                    similar = closest_names(metric, list(names), _MAX_CHECKED)
                    names = await source.existing_metrics(similar) if similar else ()
                existing |= set(names)
    return closest_names(metric, sorted(existing - {metric}), count)


@contextlib.asynccontextmanager
async def _open_sources(
    inputs: ObjectsAndMetrics, settings: MetricSettings, api: Api | None, registry: MetricsRegistry
) -> AsyncIterator[Sequence[MetricsSource]]:
    """The metrics of the files, and the live sources."""
    nodes = cooperative_scheduling.run_without_pauses(node_facts.read_node_attributes(inputs.nodes.values()))

    async def lookup() -> NodeAttributes:
        return nodes

    dependencies = SourceDependencies(
        api,
        lookup,
        settings.prometheus,
        settings.refresh.default_max_age_s,
        settings.refresh.metrics_timeout_s,
        registry,
    )
    live = create_metric_sources(settings.names, (), dependencies)
    loaded: list[MetricsSource] = (
        [LoadedMetrics(inputs.snapshot)] if inputs.snapshot.series or not live else []
    )
    try:
        yield [*loaded, *live]
    finally:
        for source in live:
            if isinstance(source, object_and_metric_sources.ClosableSource):
                await source.close()


def decision_time(text: str, metrics: MetricsSnapshot | None) -> float:
    """The time of the decision: `text`, else the newest timestamp of files, else now.

    `BadSettings` and `BadInput` for a time before 1970 or after 2106.
    """
    if text:
        try:
            return clock.parse_input_time(text)
        except ValueError as error:
            raise BadSettings("settings", [Problem("--now", shown(text), clock.INPUT_TIME)]) from error
    series = metrics.series.values() if metrics else ()
    times = (
        (sample.at, node_series.metric, node)
        for node_series in series
        for node, sample in node_series.samples.items()
        if sample.at is not None
    )
    newest, metric, node = max(times, default=(clock.SystemClock().now(), "", ""))
    if not 0 <= newest <= clock.LAST_TIME_S:
        year = f"a time in the year {math.floor(1970 + newest / _YEAR_S)}"
        raise BadInput(
            "metrics", [Problem(f"the timestamp of {metric} of node {node}", year, clock.INPUT_TIME)]
        )
    return newest


TIMEOUT_S: Final = 10.0
_COMPONENTS: Final = (replicas.EXTENDER, replicas.CONTROLLER)
_SOURCE_FIELDS: Final = (
    "metrics",
    "prometheus_url",
    "prometheus_node_label",
    "prometheus_replica_label",
)
"""Parameters of a command that select other sources than those of the running nodewise."""
_SOURCES_OF_THE_API_SERVER: Final = frozenset(
    [AUTO, *(name for name, kind in SOURCES.items() if kind.requires == CLUSTER)]
)
"""The sources that a user can read with the rights of a kubeconfig. The URL of Prometheus is one inside of the cluster,
and files are those of the replica."""


class RunningConfiguration(NamedTuple):
    """What the decisions of a running nodewise depend on besides objects."""

    replicas: Sequence[Replica]
    """Those that were read: one of the extender, one of the controller, or both."""
    agents: Sequence[AgentHeader]
    """In the order of the chain."""
    settings: Mapping[str, Any]
    """Other settings by field."""
    sources: Sequence[str]
    """As `--metrics` names them."""
    metrics: MetricsSnapshot
    at: float
    """The time of the values, by the clock of the replica."""

    def source_text(self) -> str:
        """Which replicas were read, and how old the values are."""
        names = " and ".join(map(str, self.replicas))
        oldest = min((series.fetched_at for series in self.metrics.series.values()), default=None)
        if oldest is None:
            return f"{names}, which has no metric values"
        return f"{names}, fetched at most {clock.format_duration(max(round(self.at - oldest, 1), 0.0))} ago"


async def read_running_configuration(api: HttpApi, namespace: str) -> RunningConfiguration:
    """The configuration of the nodewise that runs in a namespace.

    In native mode the controller has the agent telemetry and an extender may have others, so one replica of each is
    read. A `NodewiseError` if there is no replica, or none can be read.
    """
    running_replicas = await replicas.find_replicas(api, namespace, TIMEOUT_S)
    by_component = [
        [replica for replica in running_replicas if replica.component == component]
        for component in _COMPONENTS
    ]
    return _combine([await _read_first_replica(api, group) for group in by_component if group])


async def _read_first_replica(
    api: HttpApi, running_replicas: Sequence[Replica]
) -> tuple[Replica, list[MetricValuesPage]]:
    """The pages of the first replica that responds."""
    problems = []
    for replica in running_replicas:
        try:
            return replica, await _read_pages(api, replica)
        except (Unavailable, BadInput) as error:
            problems.append(Problem(str(replica), str(error), ""))
    raise Unavailable("no replica of nodewise answers", problems)


async def _read_pages(api: HttpApi, replica: Replica) -> list[MetricValuesPage]:
    pages: list[MetricValuesPage] = []
    after = ""
    while True:
        query = {"after": after} if after else {}
        [answer] = await replicas.ask(api, [replica], metric_values_endpoint.PATH, query, TIMEOUT_S)
        if answer.body is None:
            raise Unavailable(f"{metric_values_endpoint.PATH}: {answer.error}")
        page = metric_values_endpoint.decode_page(answer.body)
        pages.append(page)
        keys = page.metrics.series.keys() | page.metrics.failures.keys()
        if page.is_last or not keys:
            return pages
        after = max(keys)


def _combine(read: Sequence[tuple[Replica, list[MetricValuesPage]]]) -> RunningConfiguration:
    """One configuration. An extender comes first, and a controller adds its agents and metrics."""
    by_agent: dict[str, AgentHeader] = {}
    sources: dict[str, None] = {}
    metrics = MetricsSnapshot()
    for _, pages in read:
        for agent in pages[0].header.agents:
            by_agent.setdefault(agent.name, agent)
        sources |= dict.fromkeys(pages[0].header.metrics)
        for page in pages:
            metrics = page.metrics.with_older(metrics)
    header = read[0][1][0].header
    settings = {"sync_period_s": header.sync_period_s, "weights": header.weights}
    at = max(page.at for _, pages in read for page in pages)
    return RunningConfiguration(
        [replica for replica, _ in read], list(by_agent.values()), settings, list(sources), metrics, at
    )


def apply_to_command_line(running: RunningConfiguration, command_line: CommandLine) -> CommandLine:
    """The command line with the settings of the running nodewise where the user has given none."""
    names = set(agents.names())
    by_agent = {agent.name: agent.options for agent in running.agents if agent.name in names}
    sources = tuple(name for name in running.sources if name in _SOURCES_OF_THE_API_SERVER)
    return command_line.with_running_settings({**running.settings, "metrics": sources}, by_agent)


def selects_other_sources(command_line: CommandLine) -> bool:
    """Whether the user names sources of metrics, whose values are then used instead of those of the replica."""
    return any(command_line.is_given(field) for field in _SOURCE_FIELDS)
