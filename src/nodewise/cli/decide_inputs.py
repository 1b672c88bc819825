"""Reads the inputs of `decide` and similar commands once: objects, metrics, and settings of a running nodewise.

Objects come from files, from a cluster, or from both; files override the cluster. A cluster requires the rights to list
nodes, pods and the objects that agents read. Objects in nodewise's own namespace are not read, because the allocations
of pods are also in their annotations. Pods on nodes are read if an agent needs them. Nothing is written.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

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
from nodewise.base.option import Option
from nodewise.cli import terminal_output
from nodewise.cli.explain import pod_state
from nodewise.cli.extender_options import InputAndLogOptions
from nodewise.cli.options_from_settings import CommandLine, ReplicaOptions
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.devices import claim_templates, resource_claims
from nodewise.devices.device_allocation import requested_amounts
from nodewise.devices.device_inventory import DEVICE_CLASSES as CLASSES
from nodewise.engine import metric_values_endpoint, object_feed
from nodewise.engine.metric_values_endpoint import MetricValuesPage
from nodewise.engine.recording_file import AgentHeader
from nodewise.kube import object_files, replicas
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.http_client import HttpApi
from nodewise.kube.object_files import FileObjects
from nodewise.kube.replicas import AdminServer, Replica
from nodewise.kube.resource_kinds import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Resource,
)
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import metric_files, node_attributes, source_table
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import (
    MetricCatalog,
    MetricsSource,
    RefreshOptions,
    SeriesCatalog,
    SourceDependencies,
    create_metric_sources,
    merge_requests,
)
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.metrics.series import Series
from nodewise.metrics.source_table import AUTO, CLUSTER, SOURCES
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import policy_selection
from nodewise.policies.state import TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints, label_key, verdict_requirements

_MAX_LISTED: Final = 5
_NOT_FINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"
_WAITING: Final = f"spec.nodeName=,{_NOT_FINISHED}"
_BOUND: Final = f"spec.nodeName!=,{_NOT_FINISHED}"
_MAX_CHECKED: Final = 20  # similar names of which a source is asked whether they have series
_YEAR_S: Final = 365.2425 * 86400

ObjectsByKey = Mapping[ObjectKey, Any]


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


class _NativeMetadata(msgspec.Struct, frozen=True, gc=False):
    creationTimestamp: str | None = None  # noqa: N815 - the API's name


class _NativePodFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that native mode reads. The extender does not, so other agents may declare them otherwise."""

    metadata: _NativeMetadata = _NativeMetadata()
    spec: NodeConstraints = NodeConstraints()


class MetricOptions(CommandOptions, frozen=True, kw_only=True):
    """The sources of metrics. The settings file of the extender may name them."""

    metrics: Annotated[
        tuple[str, ...],
        Option(
            metavar="SOURCE",
            environment="NODEWISE_METRICS",
            shows_default=False,
            help=source_table.option_help(),
        ),
    ] = InputAndLogOptions().metrics


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


class ObjectsAndMetrics(NamedTuple):
    """All objects by namespace and name, and the metrics of files."""

    kinds: Sequence[AgentKind]
    nodes: ObjectsByKey
    pods: ObjectsByKey
    objects: Mapping[str, ObjectsByKey]
    """By the name in `Watched`."""
    snapshot: MetricsSnapshot
    refused: frozenset[str] = frozenset()
    """The names in `Watched` of objects that count as absent because the rights to read them are missing."""

    @property
    def node_names(self) -> list[str]:
        return [name for _, name in self.nodes]


class MetricSettings(NamedTuple):
    """How to fetch metrics."""

    names: Sequence[str]
    """The values of `--metrics`."""
    refresh: RefreshOptions
    prometheus: PrometheusOptions


def metric_settings(command_line: CommandLine) -> MetricSettings:
    """How the command line says to fetch metrics."""
    return MetricSettings(
        command_line.settings(MetricOptions).metrics,
        command_line.settings(RefreshOptions),
        command_line.settings(PrometheusOptions),
    )


def print_uncovered_pods(
    pods: Iterable[Any], state: TelemetryState, objects: Mapping[str, ObjectsByKey]
) -> None:
    """Print a message for each of the first waiting pods that lack the label of a policy, and the number of others."""
    messages = []
    for pod in pods:
        keys = {requirement.key for requirement in verdict_requirements(pod.spec)}
        for key in state.selection.select(pod) if not pod.spec.nodeName else ():
            # a pod may name a TASPolicy that does not exist
            policy_state = state.policies.get(key)
            if policy_state is None or label_key(policy_state.policy.uid) in keys:
                continue
            policy = policy_state.policy
            of_label = pod_state.policy_of_label(policy, objects, selects=True)
            if policy_selection.is_enforced_for(policy, pod) and of_label.is_labelled:
                why = pod_state.why_not_covering(of_label, pod.metadata.creationTimestamp or "")
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                messages.append(
                    f"native mode does not apply {of_label.policy} to pod {name}: {why}; create the pod again"
                )
    for message in messages[:_MAX_LISTED]:
        terminal_output.print_message(message)
    if len(messages) > _MAX_LISTED:
        terminal_output.print_message(
            f"{len(messages) - _MAX_LISTED:,} more policies of waiting pods have no effect in native mode"
        )


class _ObjectQuery(NamedTuple):
    """A kind of objects with selectors, which apply to the cluster only."""

    watched: Watched
    namespace: str = ""
    """Empty: all."""
    fields: str = ""
    """As a `fieldSelector`."""


class ObjectSources(NamedTuple):
    """The sources of objects; a later source overrides an earlier one."""

    api: Api | None
    files: FileObjects
    policies: FileObjects


def read_files(selection: InputSelection, api: Api | None) -> ObjectSources:
    """The sources of a command's objects, with the claims of pods with claim templates. Standard input can be read only
    once. `BadInput` names what cannot be read in files.
    """
    plain, _ = metric_files.split_paths(selection.paths)
    files = claim_templates.add_claims(object_files.read(plain), terminal_output.print_message)
    return ObjectSources(api, files, object_files.read(selection.policies))


async def read_objects(
    selection: InputSelection, sources: ObjectSources, more: Sequence[Watched] = ()
) -> ObjectsAndMetrics:
    """All inputs except the metrics of live sources, with more kinds than agents read."""
    kinds = [agents.load(name) for name in selection.options]
    _, tables = metric_files.split_paths(selection.paths)
    all_watched = object_feed.watched_objects(kinds, selection.options)
    _warn_of_misspelled_kinds(sources, [NODES, PODS, *(watched.resource for watched in all_watched)])
    node_type = object_feed.merge_node_types(kinds)
    pod_type = merge("Pod", PodPlacement, _NativePodFields, *(kind.pod_fields for kind in kinds))
    pods_of_cluster = _NOT_FINISHED if selection.running else _WAITING
    own = [watched for watched in all_watched if watched.resource != PODS and not watched.own_namespace]
    others = [*own, *more]
    refused: set[str] = set()
    nodes, pods, *lists = await _run_queries(
        sources,
        [
            _ObjectQuery(Watched("nodes", NODES, node_type)),
            _ObjectQuery(Watched("pods", PODS, pod_type), selection.namespace, pods_of_cluster),
            # claims of all namespaces have devices
            *(
                _ObjectQuery(watched, "" if watched.resource == RESOURCE_CLAIMS else selection.namespace)
                for watched in others
            ),
        ],
        refused,
    )
    objects = {watched.name: listed for watched, listed in zip(others, lists, strict=True)}

    if not selection.agents:
        concerned = partial(_has_work, selection, objects, nodes, pods)
        kinds = list(filter(concerned, kinds))
    objects |= await _read_bound_pods(sources, kinds, selection)
    snapshot = metric_files.read_snapshot(sources.files, tables, node_facts(nodes))
    return ObjectsAndMetrics(kinds, nodes, pods, objects, snapshot, frozenset(refused))


async def read_waiting_pods(
    selection: InputSelection, sources: ObjectSources, fields: type[msgspec.Struct]
) -> list[Any]:
    """The waiting pods of the selected namespace, with the fields of a struct and `PodPlacement`."""
    watched = Watched("pods", PODS, merge("Pod", PodPlacement, fields))
    [pods] = await _run_queries(sources, [_ObjectQuery(watched, selection.namespace, _WAITING)])
    return [
        pod
        for (namespace, _), pod in pods.items()
        if selection.namespace in {"", namespace} and not pod.spec.nodeName
    ]


def _has_work(
    selection: InputSelection,
    objects: Mapping[str, ObjectsByKey],
    nodes: ObjectsByKey,
    pods: ObjectsByKey,
    kind: AgentKind,
) -> bool:
    """Whether one of the agent's objects exists, other than namespaces, or the agent says that it has work.

    An agent that reads DeviceClasses has work if a pod requests a resource that one of them counts.
    """
    options = selection.options[kind.name]
    all_watched = kind.watched(options)
    if any(
        objects.get(watched.name)
        for watched in all_watched
        if watched.resource != NAMESPACES and not watched.is_optional
    ) or kind.concerns(options, nodes.values(), pods.values()):
        return True
    classes = [
        each
        for watched in all_watched
        if watched.resource == DEVICE_CLASSES
        for each in objects[watched.name].values()
    ]
    counted = resource_claims.classes_by_resource(classes)
    return bool(counted) and any(
        not counted.keys().isdisjoint(extended_resources(pod)) for pod in pods.values()
    )


def offered_resources(inputs: ObjectsAndMetrics) -> dict[str, frozenset[str]]:
    """By node, the resources that it offers itself and that a DeviceClass counts; nodes without any are omitted.

    Empty without an agent that reads DeviceClasses.
    """
    counted = resource_claims.classes_by_resource(inputs.objects.get(CLASSES, {}).values())
    offered: dict[str, frozenset[str]] = {}
    for (_, name), node in inputs.nodes.items() if counted else ():
        amounts = msgspec.json.decode(node.status.allocatable)
        own = counted.keys() & (amounts if isinstance(amounts, dict) else {})
        positive = frozenset(resource for resource in own if str(amounts[resource]) != "0")
        if positive:
            offered[name] = positive
    return offered


def extended_resources(pod: Any) -> set[str]:
    """The extended resources that the containers of a pod request."""
    spec = pod.spec
    containers = (*(spec.containers or ()), *(spec.initContainers or ()))
    return {name for each in containers for name in requested_amounts(each) if "/" in name}


async def _read_bound_pods(
    sources: ObjectSources, kinds: Sequence[AgentKind], selection: InputSelection
) -> dict[str, ObjectsByKey]:
    """The pods that agents watch, by the name in `Watched`."""
    all_watched = object_feed.watched_objects(kinds, selection.options)
    queries = [_ObjectQuery(watched, fields=_BOUND) for watched in all_watched if watched.resource == PODS]
    lists = await _run_queries(sources, queries)
    return {query.watched.name: listed for query, listed in zip(queries, lists, strict=True)}


def node_facts(nodes: ObjectsByKey) -> NodeAttributes:
    """The attributes by which sources of metrics name nodes."""
    return cooperative_scheduling.run_without_pauses(node_attributes.read_node_attributes(nodes.values()))


def _warn_of_misspelled_kinds(sources: ObjectSources, resources: Iterable[Resource]) -> None:
    """Warn of objects whose kind is nearly one that is read: without them, the decision would be another one."""
    kinds: dict[str, set[str]] = {}
    for resource in resources:
        kinds.setdefault(resource.group, set()).add(resource.kind)
    for files in (sources.files, sources.policies):
        for group, kind in files.kinds():
            known = kinds.get(group, set())
            is_read = kind in known or kind == RESOURCE_CLAIM_TEMPLATES.kind
            if not is_read and (similar := closest_name(kind, sorted(known))):
                where = files.entries(group, kind)[0].where
                terminal_output.print_message(
                    f"Warning: {where}: an object of the unknown kind {shown(kind)} is ignored; "
                    f'did you mean "{similar}"?'
                )


async def read_nodes(
    paths: Sequence[str], api: Api | None, more: Sequence[Watched] = ()
) -> ObjectsAndMetrics:
    """The nodes, more kinds of objects, and the metrics of files, for a command that decides no pods."""
    plain, tables = metric_files.split_paths(paths)
    files = object_files.read(plain) if plain else FileObjects({})
    queries = [
        _ObjectQuery(Watched("nodes", NODES, object_feed.merge_node_types(()))),
        *map(_ObjectQuery, more),
    ]
    nodes, *lists = await _run_queries(ObjectSources(api, files, FileObjects({})), queries)
    objects = {watched.name: listed for watched, listed in zip(more, lists, strict=True)}
    snapshot = metric_files.read_snapshot(files, tables, node_facts(nodes))
    return ObjectsAndMetrics((), nodes, {}, objects, snapshot)


async def _run_queries(
    sources: ObjectSources, queries: Sequence[_ObjectQuery], refused: set[str] | None = None
) -> list[ObjectsByKey]:
    """The objects of the cluster and of files for each query, by namespace and name; `refused` as in
    `_list_from_cluster`.
    """
    listed = await _list_from_cluster(sources.api, queries, refused) if sources.api else [{} for _ in queries]
    return [
        dict(listed_objects)
        | {
            (item.metadata.namespace, item.metadata.name): item
            for files in (sources.files, sources.policies)
            for item in object_feed.select_watched_file_objects(files, query.watched)
        }
        for query, listed_objects in zip(queries, listed, strict=True)
    ]


async def _list_from_cluster(
    api: Api, queries: Sequence[_ObjectQuery], refused: set[str] | None
) -> list[ObjectsByKey]:
    """The objects of the cluster for each query; the requests run concurrently. `refused` gets the names of objects
    that cannot be read.
    """
    counts: dict[str, int] = {}

    def show_count(name: str, count: int) -> None:
        counts[name] = count
        progress.say("reading " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))

    async def list_objects(query: _ObjectQuery) -> ObjectsByKey:
        watched, namespace, fields = query
        resource = watched.resource
        try:
            return await object_feed.list_once(
                api, watched, namespace, fields, partial(show_count, watched.name)
            )
        except NotFound:
            if not watched.is_optional:
                name = f"{resource.plural}.{resource.group}".rstrip(".")
                messages.append(f"the cluster knows no {name}: is its definition (CRD) installed?")
        except Refused as error:
            if not watched.is_optional:
                raise
            if refused is not None:
                refused.add(watched.name)
            messages.append(f"{resource.plural} cannot be read and count as absent: {error}")
        return {}

    messages: list[str] = []
    with Progress() as progress:
        listed = await asyncio.gather(*map(list_objects, queries))
    for message in messages:
        terminal_output.print_message(message)
    return listed


class LoadedMetrics:
    """A source of metrics that were read already. Standard input, for example, cannot be read again."""

    name = source_table.FILE

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def supports(self, request: MetricRequest) -> bool:
        return bool(request.metric) and not (request.by_pod or request.device_label)

    async def fetch(self, request: MetricRequest, now: float) -> Series:  # noqa: ARG002 - the contract of a source
        series = metric_files.select_series(self._snapshot, request)
        if series is None:
            raise metric_files.missing_from_files(request.metric, "these files", self._snapshot)
        return series


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
    keys = {
        request.key for request in requests if metric_files.select_series(inputs.snapshot, request) is None
    }
    known = running.only(frozenset(keys))
    for key in known.failures.keys() - known.series.keys():
        logs.emit("metric_failed", metric=key, error=known.failures[key])
    rest = frozenset(request for request in requests if not known.was_fetched(request.key))
    if not rest:
        return known
    registry = MetricsRegistry()
    async with _open_sources(inputs, settings, api, registry) as sources:
        refresher = MetricsRefresher(sources, settings.refresh, clock.SystemClock(), registry)
        with Progress() as progress:
            progress.say("requesting metrics")
            refresher.set_requests(rest)
            await refresher.settle()
        return known.with_older(refresher.snapshot)


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
    nodes = node_facts(inputs.nodes)

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
            if isinstance(source, object_feed.ClosableSource):
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

    replicas: Sequence[Replica | AdminServer]
    """Those that were read: one of the extender, one of the controller, or both."""
    agents: Mapping[str, AgentHeader]
    """By name, in the order of the chain."""
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


async def read_running_configuration(api: HttpApi, options: ReplicaOptions) -> RunningConfiguration:
    """The configuration of the nodewise that runs in the cluster, or of the replicas of `--server`.

    In native mode the controller has the agent telemetry and an extender may have others, so one replica of each is
    read. A `NodewiseError` if there is no replica, or none can be read.
    """
    read: list[tuple[Replica | AdminServer, list[MetricValuesPage]]] = []
    if options.servers:
        servers = [AdminServer(url) for url in options.servers]
        return _combine([(server, await _read_pages(api, server)) for server in servers])
    running_replicas = await replicas.find_replicas(api, options.nodewise_namespaces, TIMEOUT_S)
    for component in (replicas.EXTENDER, replicas.CONTROLLER):
        group = [replica for replica in running_replicas if replica.component == component]
        problems = []
        for replica in group:
            try:
                read.append((replica, await _read_pages(api, replica)))
                break
            except (Unavailable, BadInput) as error:
                problems.append(Problem(str(replica), str(error), ""))
        else:
            if group:
                raise Unavailable("no replica of nodewise answers", problems)
    return _combine(read)


async def _read_pages(api: HttpApi, replica: Replica | AdminServer) -> list[MetricValuesPage]:
    pages: list[MetricValuesPage] = []
    after = ""
    while True:
        query = {"after": after} if after else {}
        body = await _read_page(api, replica, query)
        page = metric_values_endpoint.decode_page(body)
        pages.append(page)
        keys = page.metrics.series.keys() | page.metrics.failures.keys()
        if page.is_last or not keys:
            return pages
        after = max(keys)


async def _read_page(api: HttpApi, replica: Replica | AdminServer, query: Mapping[str, str]) -> bytes:
    path = metric_values_endpoint.PATH
    if isinstance(replica, AdminServer):
        return await replicas.get_from_server(replica, path, query, TIMEOUT_S)
    [answer] = await replicas.ask(api, [replica], path, query, TIMEOUT_S)
    if answer.body is None:
        raise Unavailable(f"{path}: {answer.error}")
    return answer.body


def _combine(read: Sequence[tuple[Replica | AdminServer, list[MetricValuesPage]]]) -> RunningConfiguration:
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
    running_replicas = [replica for replica, _ in read]
    return RunningConfiguration(running_replicas, by_agent, settings, list(sources), metrics, at)


def apply_to_command_line(running: RunningConfiguration, command_line: CommandLine) -> CommandLine:
    """The command line with the settings of the running nodewise where the user has given none."""
    names = set(agents.names())
    by_agent = {name: agent.options for name, agent in running.agents.items() if name in names}
    sources = tuple(name for name in running.sources if name in _SOURCES_OF_THE_API_SERVER)
    return command_line.with_running_settings({**running.settings, "metrics": sources}, by_agent)


def selects_other_sources(command_line: CommandLine) -> bool:
    """Whether the user names sources of metrics, whose values are then used instead of those of the replica."""
    return any(command_line.is_given(field) for field in _SOURCE_FIELDS)
