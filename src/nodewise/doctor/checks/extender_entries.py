"""Checks of nodewise's entries in kube-scheduler's configuration: fields, addresses and calls, and of other scorers."""

import contextlib
import shlex
from collections.abc import Iterator
from typing import Final, cast

from nodewise.agent import LoadScoring
from nodewise.agents import find_agent_kind
from nodewise.agents.gpu.vendor_resource_names import PROFILES
from nodewise.base import clock
from nodewise.base.errors import BadInput, list_first, short
from nodewise.devices import resource_claims
from nodewise.doctor.facts import (
    Controllers,
    Extenders,
    NodewiseWorkload,
    Pods,
    Policies,
    Registration,
    Registrations,
    ReplicaMetrics,
    SchedulerInfo,
    Schedulers,
    Service,
    UnavailableFact,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, check, finding, kubectl
from nodewise.doctor.parsing import objects, scheduler_configuration
from nodewise.doctor.parsing.scheduler_configuration import (
    ExtenderEntry,
    SchedulerConfiguration,
    split_url,
)
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.install.scheduler_versions import SchedulerVersion, parse_image_version
from nodewise.server.options import is_loopback

_LOAD_AWARE_PLUGINS: Final = {
    "TargetLoadPacking": "Trimaran",
    "LoadVariationRiskBalancing": "Trimaran",
    "LowRiskOverCommitment": "Trimaran",
    "Peaks": "Trimaran",
    "Dynamic": "Crane",
    "LoadAwareScheduling": "Koordinator",
    "usage": "Volcano",
}
"""Score plugins of other projects that use measured load, with the project."""
_MARK_REMEDY: Final = (
    "send all pods to nodewise: nodewise configure render-scheduler --filter-all-pods; delete the admission policies"
    " nodewise-extender-pods, which add the resource, and create the pod again"
)
_GPU_RESOURCES: Final = tuple({profile.prefix: None for profile in PROFILES.values()})
_NAMES_TIMEOUT_S: Final = 1.0
_LARGE_TIMEOUT_S: Final = 5.0  # bodies with whole nodes, and binds, take longer
_MAX_TIMEOUT_S: Final = 10.0
_LAST_MINOR_TO_LOG_KEYS: Final = 37
_MAX_REFUSALS: Final = 5


def agents_of_entry(registration: Registration, extenders: Extenders) -> frozenset[str]:
    """The agents that an entry calls, as far as that is known.

    They are those of the extender in the scheduler's pod, of those in the Service's namespace, or of all.
    """
    if registration.entry.agent:
        return frozenset({registration.entry.agent})
    own = extender_in_scheduler_pod(registration.scheduler, extenders)
    _, namespace, kind, *_ = [*split_url(registration.entry.url)[1].split("."), "", "", ""]
    near = [item for item in extenders if kind == "svc" and item.workload.namespace == namespace]
    behind = [own] if own is not None else near or extenders
    return frozenset(agent for extender in behind for agent in extender.agents)


def extender_in_scheduler_pod(scheduler: SchedulerInfo, extenders: Extenders) -> NodewiseWorkload | None:
    """The extender in the scheduler's own pod."""
    where = scheduler.workload.where if scheduler.workload else ""
    return next((extender for extender in extenders if where and extender.workload.where == where), None)


def create_entry_finding(
    id_: str, registration: Registration, actual: str, expected: str, remedy: str = "", command: str = ""
) -> Finding:
    """A finding about a field of an entry."""
    actual = f"{registration.entry.field}{actual}"
    return finding(id_, registration.where, actual, expected, remedy=remedy, command=command)


@check("scheduler-configuration-refused", "plugin-name-misspelt")
def check_configuration_is_accepted(  # complexity: what is known of a scheduler, one after another
    registrations: Registrations,  # noqa: ARG001 - declares that every configuration is needed
    schedulers: Schedulers = (),
    cluster_version: SchedulerVersion | None = None,
) -> Iterator[Finding]:
    """Whether kube-scheduler starts with each configuration, by its strict decoder and its validation, and uses all of
    its plugins. Forks contain another version of it, or have a configuration of their own.
    """
    for scheduler in schedulers:
        containers = scheduler.workload.containers if scheduler.workload else ()
        if containers and not any(objects.runs(container, "kube-scheduler") for container in containers):
            continue
        configuration = scheduler.configuration
        refusals = [scheduler.refusal] if scheduler.refusal else []
        if isinstance(configuration, SchedulerConfiguration) and configuration.document is not None:
            version = _image_version(scheduler) or cluster_version
            refusals += [f"{path}: duplicate key" for path in configuration.duplicate_keys]
            refusals += scheduler_configuration.list_refusals(configuration.document, version)
        if refusals:
            id_, expected = (
                "scheduler-configuration-refused",
                "a configuration with which kube-scheduler starts",
            )
            yield finding(id_, scheduler.where, list_first(refusals, _MAX_REFUSALS, "; "), expected)
        elif isinstance(configuration, SchedulerConfiguration) and configuration.document is not None:
            misspelt = scheduler_configuration.list_plugins_without_effect(configuration.document)
            if misspelt:
                actual = list_first(misspelt, _MAX_REFUSALS, "; ")
                yield finding("plugin-name-misspelt", scheduler.where, actual, "names of plugins")


@check("names-not-used")
def check_node_cache_capable(registrations: Registrations, extenders: Extenders = ()) -> Iterator[Finding]:
    """Whether nodes are sent whole exactly if nodewise has no API server."""
    id_ = "names-not-used"
    for registration in registrations:
        own = extender_in_scheduler_pod(registration.scheduler, extenders)
        needs_nodes = own is not None and own.is_set("no_cluster")
        if needs_nodes and registration.entry.node_cache_capable:
            expected = "false, as this nodewise runs with --no-cluster"
            remedy = f"set nodeCacheCapable: {expected}"
            yield create_entry_finding(id_, registration, ".nodeCacheCapable is true", expected, remedy)
        elif not needs_nodes and not registration.entry.node_cache_capable:
            yield create_entry_finding(id_, registration, ".nodeCacheCapable is not true", "true")


@check("http-timeout-missing", "http-timeout-short", "http-timeout-long")
def check_http_timeout(registrations: Registrations) -> Iterator[Finding]:
    for registration in registrations:
        entry, timeout = registration.entry, registration.entry.http_timeout
        least_s = _LARGE_TIMEOUT_S if entry.bind_verb or not entry.node_cache_capable else _NAMES_TIMEOUT_S
        id_, actual, expected = "http-timeout-missing", f".httpTimeout: {timeout}", f"{least_s:g}s"
        if not timeout:
            actual = ".httpTimeout is not set"
        else:
            try:
                timeout_s = clock.parse_duration(timeout)
            except ValueError:
                continue  # scheduler-configuration-refused reports it
            if least_s <= timeout_s <= _MAX_TIMEOUT_S:
                continue
            id_ = "http-timeout-short"
            if timeout_s > _MAX_TIMEOUT_S:
                id_, expected = "http-timeout-long", f"{expected}, at most {_MAX_TIMEOUT_S:g}s"
        remedy = f"set httpTimeout: {least_s:g}s in the entry"
        yield create_entry_finding(id_, registration, actual, expected, remedy)


@check("key-in-configuration")
def check_private_key_is_in_a_file(
    registrations: Registrations, cluster_version: SchedulerVersion | None = None
) -> Iterator[Finding]:
    """kube-scheduler logs keyData up to 1.37. An unknown version counts as one of these."""
    for registration in registrations:
        version = _image_version(registration.scheduler) or cluster_version
        if registration.entry.has_key_data and (version is None or version.minor <= _LAST_MINOR_TO_LOG_KEYS):
            logs = "" if version is None else f", which kube-scheduler {version} logs"
            actual = f".tlsConfig.keyData is set{logs}"
            yield create_entry_finding("key-in-configuration", registration, actual, "tlsConfig.keyFile")


def _image_version(scheduler: SchedulerInfo) -> SchedulerVersion | None:
    """By the tag of its image; None if that is unknown. It is never newer than the API server."""
    containers = scheduler.workload.containers if scheduler.workload else ()
    for container in containers:
        if objects.runs(container, "kube-scheduler"):
            with contextlib.suppress(BadInput):
                return parse_image_version(container.image)
    return None


@check("wrong-ignorable")
def check_ignorable(registrations: Registrations) -> Iterator[Finding]:
    for registration in registrations:
        if registration.entry.filter_verb and registration.entry.ignorable:
            actual = ".ignorable is true beside filterVerb"
            yield create_entry_finding("wrong-ignorable", registration, actual, "false")


@check("bind-verb-missing")
def check_entry_verbs(registrations: Registrations, extenders: Extenders = ()) -> Iterator[Finding]:
    id_, expected = "bind-verb-missing", "preemptVerb: preempt"
    for registration in registrations:
        yield from _check_entry_of_gpus(registration, registrations, extenders)
        entry = registration.entry
        if entry.filter_verb and not entry.preempt_verb:
            actual, command = (
                f"{entry.field} has filterVerb and no preemptVerb",
                _render_command(registration, extenders),
            )
            yield finding(id_, registration.where, actual, expected, command=command, severity="warning")


def _check_entry_of_gpus(  # complexity: entries of one agent, of several, and what each lacks
    registration: Registration, registrations: Registrations, extenders: Extenders
) -> Iterator[Finding]:
    """The verbs and resources of the gpu agent may be in one of several entries of a scheduler."""
    id_, entry, command = "bind-verb-missing", registration.entry, _render_command(registration, extenders)
    has_resources = _names_gpu_resource(entry)
    others = _other_entries(registration, registrations, extenders, "gpu")
    if not extenders and has_resources and entry.agent in ("", "gpu"):
        reason = "names GPU resources"  # the agents of a nodewise outside of the cluster are unknown
    elif "gpu" in agents_of_entry(registration, extenders):
        if not has_resources and any(map(_names_gpu_resource, others)):
            return
        reason = "calls the gpu agent"
    else:
        return
    filters_elsewhere = any(other.filter_verb and not other.managed_resources for other in others)
    for name, verb in (("bind", entry.bind_verb), ("filter", entry.filter_verb or filters_elsewhere)):
        if not verb:
            actual, expected = f" has no {name}Verb, and {reason}", f"{name}Verb: {name}"
            yield create_entry_finding(id_, registration, actual, expected, command=command)
    if not has_resources:
        actual, expected = ".managedResources names no GPU resource", "gpu.intel.com/i915 and the like"
        yield create_entry_finding(id_, registration, actual, expected, command=command)


def _render_command(registration: Registration, extenders: Extenders) -> str:
    """A command that prints an entry with the same address and files; empty if the entry lacks a file."""
    entry = registration.entry
    default = "telemetry,gpu" if _names_gpu_resource(entry) else "telemetry"
    agents = ",".join(sorted(agents_of_entry(registration, extenders))) or default
    scheme, host, _, port = split_url(entry.url)
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    words = ["nodewise", "configure", "render-scheduler", f"--agents={agents}", f"--url={address}"]
    if scheme == "https":
        files = {"ca": entry.ca_file, "cert": entry.cert_file, "key": entry.key_file}
        words += [f"--{name}={file}" for name, file in files.items()]
        return shlex.join(words) if all(files.values()) else ""
    return shlex.join(words) if is_loopback(host) else ""


def _names_gpu_resource(entry: ExtenderEntry) -> bool:
    return any(resource.name.startswith(_GPU_RESOURCES) for resource in entry.managed_resources)


def _other_entries(
    registration: Registration, registrations: Registrations, extenders: Extenders, agent: str
) -> list[ExtenderEntry]:
    return [
        other.entry
        for other in registrations
        if other.configuration is registration.configuration
        and other.entry != registration.entry
        and agent in agents_of_entry(other, extenders)
    ]


@check("resource-not-ignored")
def check_managed_resources(
    registrations: Registrations, node_resources: frozenset[str], node_count: int
) -> Iterator[Finding]:
    """kube-scheduler counts GPUs, too. It must not count a resource that only marks pods, unless nodes have it."""
    for registration in registrations if node_count else ():
        for resource in registration.entry.managed_resources:
            is_gpu = resource.name.startswith(_GPU_RESOURCES)
            if not resource.is_ignored and not is_gpu and resource.name not in node_resources:
                actual = f".managedResources: {resource.name} is counted, and no node has it"
                expected = "ignoredByScheduler: true"
                remedy = f"set ignoredByScheduler: true beside {resource.name} in managedResources"
                yield create_entry_finding("resource-not-ignored", registration, actual, expected, remedy)


@check("resource-not-ignored")
def check_marked_pods_with_devices(registrations: Registrations, pods: Pods = ()) -> Iterator[Finding]:
    """A waiting pod with an extended resource of a DeviceClass and an ignored one; the first one is enough."""
    ignored = {
        resource.name
        for registration in registrations
        for resource in registration.entry.managed_resources
        if resource.is_ignored
    }
    for pod in pods:
        marks = sorted(ignored & {*pod.resources})
        if not pod.node and marks and resource_claims.UNKNOWN_RESOURCE_MESSAGE in pod.message:
            actual = f"requests {marks[0]} beside a resource of a DeviceClass, and kube-scheduler counts both"
            expected = "a pod without the resource that only marks it"
            yield finding("resource-not-ignored", pod.where, actual, expected, remedy=_MARK_REMEDY)
            return


@check("weight-zero")
def check_entry_weight(
    registrations: Registrations, extenders: Extenders = (), policies: Policies = ()
) -> Iterator[Finding]:
    for registration in registrations:
        entry = registration.entry
        if entry.prioritize_verb:
            if not _has_weight(entry):
                weight = "not set" if entry.weight is None else entry.weight
                expected = "5 or more; kube-scheduler does not start without"
                yield create_entry_finding(
                    "weight-zero", registration, f".weight is {weight} beside prioritizeVerb", expected
                )
            continue
        unused = [
            agent
            for agent in _scoring_agents(agents_of_entry(registration, extenders), policies)
            if not any(map(_has_weight, _other_entries(registration, registrations, extenders, agent)))
        ]
        if unused:
            actual = f" has no prioritizeVerb, and no entry requests the scores of {', '.join(unused)}"
            expected = "prioritizeVerb: prioritize, weight: 10"
            yield create_entry_finding("weight-zero", registration, actual, expected)


def _has_weight(entry: ExtenderEntry) -> bool:
    return bool(entry.prioritize_verb) and (entry.weight or 0) > 0


def _scoring_agents(agents: frozenset[str], policies: Policies) -> list[str]:
    scorers = sorted(name for name in agents if _agent_load_scoring_share(name) != "none")
    is_scoring = "telemetry" in agents and any(policy.scores_nodes for policy in policies)
    return [*scorers, *(["telemetry"] if is_scoring else [])]


@check("filters-own-pods")
def check_own_pods_need_no_extender(registrations: Registrations, extenders: Extenders) -> Iterator[Finding]:
    """nodewise's own pods must not need nodewise to be scheduled."""
    for registration in registrations:
        entry = registration.entry
        if not entry.filter_verb or entry.managed_resources or entry.ignorable:
            continue
        for workload in (extender.workload for extender in extenders):
            is_fixed = workload.is_static or workload.node != ""
            if registration.configuration.has_profile_for_scheduler(workload.scheduler_name) and not is_fixed:
                actual = f" filters all pods of {workload.scheduler_name}, {workload.where} among them"
                expected = "managedResources, or another scheduler"
                yield create_entry_finding("filters-own-pods", registration, actual, expected)


@check("two-load-aware-scorers")
def check_load_aware_scorers(  # complexity: agents and plugins of each profile
    registrations: Registrations,
    schedulers: Schedulers = (),
    extenders: Extenders = (),
    policies: Policies = (),
) -> Iterator[Finding]:
    """Score plugins of other projects together with nodewise's scores, or with each other."""
    for scheduler in schedulers:
        agents = {
            agent
            for registration in registrations
            if registration.scheduler.where == scheduler.where and registration.entry.prioritize_verb
            for agent in _scoring_agents(agents_of_entry(registration, extenders), policies)
        }
        titles = {"telemetry": "the preferences of policies"}
        own = ", ".join(sorted(titles.get(agent, agent) for agent in agents))
        for profile in scheduler.profiles:
            plugins = [
                f"{name} ({_LOAD_AWARE_PLUGINS[name]})"
                for name in profile.plugins
                if name in _LOAD_AWARE_PLUGINS
            ]
            if plugins and (own or len(plugins) > 1):
                actual = f"profile {profile.scheduler_name} has {', '.join(plugins)}"
                actual += f", and nodewise scores by {own}" if own else ""
                remedy = _score_plugins_remedy(plugins, own)
                yield finding("two-load-aware-scorers", scheduler.where, actual, "one of them", remedy=remedy)


def _score_plugins_remedy(plugins: list[str], own: str) -> str:
    """Which of the plugins to remove: all beside nodewise's `own` scores, otherwise all but the first."""
    names = " and ".join(plugin.partition(" (")[0] for plugin in plugins[0 if own else 1 :])
    alternative = ", or prioritizeVerb from the entry of nodewise" if own else ""
    return f"remove {names} from plugins.score.enabled of the profile{alternative}"


@check("two-load-aware-scorers")
def check_agents_with_similar_scores(extenders: Extenders = ()) -> Iterator[Finding]:
    """Agents whose scores are about the same. That may be intended, as --weights adds them."""
    for extender in extenders:
        similar = [name for name in extender.agents if _agent_load_scoring_share(name) == "whole"]
        if len(similar) > 1:
            actual = f"--agents has {', '.join(similar)}, whose scores are added by --weights"
            where, expected = extender.workload.where, "one, or intended weights"
            yield finding("two-load-aware-scorers", where, actual, expected, severity="note")


def _agent_load_scoring_share(agent: str) -> LoadScoring:
    """How much an agent scores by load, as it declares; `none` for an agent that is not installed here."""
    kind = find_agent_kind(agent)
    return "none" if kind is None else kind.load_scoring


_IDLE_S: Final = 600.0  # a replica without a call for this long is not called
_QUEUE_S: Final = 120.0  # a younger pod may still be in a scheduler's queue behind many others
_UNKNOWN_QUEUE_S: Final = 5.0  # the same if no known scheduler serves its schedulerName
_REFUSED_REMEDY: Final = (
    "connection refused: the host responds, and no process listens at this port. The process has ended, has"
    " another port, or no pod behind the Service is ready; a firewall would let the call time out"
)
_CALL_ERRORS: Final = {
    "connection refused": f"{_REFUSED_REMEDY}. Start nodewise, or correct the port in urlPrefix",
    "no such host": (
        "correct the host in urlPrefix, or set dnsPolicy: ClusterFirstWithHostNet in the scheduler's manifest"
    ),
    "dial tcp": "let kube-scheduler's host reach the address: check routes, network policies and firewalls",
    "context deadline": (
        "nodewise responds too slowly, or packets are lost: see the log of the replicas and their CPU, and"
        " set httpTimeout:"
        " 5s in the entry"
    ),
    "failed calling extender": "the message has the cause; the log of the replicas has refused requests",
}
"""Parts of messages of kube-scheduler in lower case, the most specific first, each with the remedy."""
_REMOTE: Final = "call doctor on a host of the control plane, or where the address can be reached"


@check("extender-not-registered")
def check_extender_registered(  # complexity: the evidence in its order
    registrations: tuple[Registration | UnavailableFact, ...] = (),
    schedulers: Schedulers = (),
    pods: Pods = (),
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
    extenders: Extenders = (),
    controllers: Controllers = (),
    *,
    uses_native_mode: bool = False,
) -> Iterator[Result]:
    """Whether an entry leads to nodewise. Calls of a scheduler whose configuration is hidden prove that one does."""
    id_ = "extender-not-registered"
    if (controllers or uses_native_mode) and not extenders:  # a stock kube-scheduler enforces policies
        return
    known = {item.scheduler.where for item in registrations if isinstance(item, Registration)}
    if known:
        yield from _check_static_pods(known, schedulers)
        return
    if any(metrics.calls for metrics in replica_metrics):
        return
    if actual := _format_missing_calls(pods, replica_metrics):
        where = ", ".join(metrics.pod for metrics in replica_metrics)
        yield finding(id_, where, actual, "an entry in a scheduler's extenders")
        return
    for unavailable in registrations:
        yield NotChecked(id_, cast("UnavailableFact", unavailable))
    if not registrations:
        where = ", ".join(scheduler.where for scheduler in schedulers)
        yield finding(id_, where, "no entry in extenders leads to nodewise", "one that does")


def _check_static_pods(known: set[str], schedulers: Schedulers) -> Iterator[Finding]:
    """Hosts of the control plane that differ: after the next leader election a scheduler without nodewise leads."""
    pods = [item for item in schedulers if item.workload and item.workload.is_static and item.profiles]
    missing = [item.where for item in pods if item.where not in known]
    for where in missing if len(missing) < len(pods) else ():
        actual = "no entry in extenders leads to nodewise, and on other hosts one does"
        remedy = (
            "run nodewise configure on this host, too: with --print-plan, a host that has the entry prints"
            " a script for it"
        )
        yield finding("extender-not-registered", where, actual, "the same on all hosts", remedy=remedy)


def _format_missing_calls(pods: Pods, replica_metrics: tuple[ReplicaMetrics, ...]) -> str:
    """Says that pods were created for which a scheduler should have called nodewise; empty if that is unknown."""
    uptime_s = min((metrics.uptime_s for metrics in replica_metrics), default=0.0)
    created = [pod for pod in pods if pod.policy and pod.age_s < uptime_s - _QUEUE_S and not pod.is_gated]
    if not created or any(pod.scheduler_name != DEFAULT_SCHEDULER for pod in created):
        return ""
    name = f"{created[0].namespace}/{created[0].name}"
    return f"no scheduler has called a replica in {uptime_s:.0f} s, and {name} was created meanwhile"


@check("extender-not-reached")
def check_entry_addresses(
    registrations: Registrations,
    extenders: Extenders | None = None,
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
) -> Iterator[Result]:
    is_called = any(metrics.calls for metrics in replica_metrics)
    for registration in registrations:
        host, service = split_url(registration.entry.url)[1], registration.service
        workload = registration.scheduler.workload
        if not host:
            remedy = "set urlPrefix to https://HOST:PORT/scheduler, with the host and the port of nodewise"
            yield _extender_not_reached_finding(registration, "is no address", "https://HOST:PORT", remedy)
        elif isinstance(service, Service):
            yield from _check_endpoints(registration, service)
            yield from () if is_called else _check_name_resolution(registration)
        elif is_loopback(host) and workload is not None and not workload.host_network:
            if extenders is not None and not extender_in_scheduler_pod(registration.scheduler, extenders):
                actual = "leads to the scheduler's own pod, and no nodewise runs in it"
                expected = "a container with nodewise extender, or a Service"
                remedy = (
                    "set urlPrefix to the address of nodewise's Service; or run a scheduler with nodewise"
                    " in its pod, which"
                    " nodewise configure --mode second-scheduler prints"
                )
                yield _extender_not_reached_finding(registration, actual, expected, remedy)
        elif isinstance(service, UnavailableFact):
            yield NotChecked("extender-not-reached", service)
        else:
            yield from _check_server_reachable(registration, is_called=is_called)


def _check_server_reachable(registration: Registration, *, is_called: bool) -> Iterator[Result]:
    server = registration.server
    if not server.address and server.is_refused:
        actual = f"leads to no server: {'; '.join(server.attempts)}"
        remedy = f"{_REFUSED_REMEDY}. Start nodewise there, or correct host and port of urlPrefix"
        yield _extender_not_reached_finding(registration, actual, "a nodewise that listens there", remedy)
    elif not server.address and not is_called:
        reason = f"not reached from here: {short('; '.join(server.attempts) or 'not tried')}"
        unavailable = UnavailableFact(registration.entry.url, reason, remedy=_REMOTE)
        yield NotChecked("extender-not-reached", unavailable)


def _check_endpoints(registration: Registration, service: Service) -> Iterator[Result]:
    port = split_url(registration.entry.url)[3]
    if isinstance(service.ready_endpoints, UnavailableFact) and port in (service.ports or ()):
        yield NotChecked("extender-not-reached", service.ready_endpoints)
        return
    if service.ports is None:
        actual, expected = f"leads to {service.where}, which does not exist", "a Service that exists"
        remedy = (
            "set urlPrefix to the address of nodewise's Service, which the command lists, and restart"
            " kube-scheduler"
        )
        command = "kubectl get services --all-namespaces --selector=app.kubernetes.io/name=nodewise"
    elif port not in service.ports:
        ports = ", ".join(map(str, service.ports)) or "none"
        actual, expected = f"names port {port}, and {service.where} has {ports}", "one of these"
        remedy, command = f"set the port of urlPrefix to a port of the Service: {ports}", ""
    elif not service.ready_endpoints:
        actual, expected = f"leads to {service.where}, which has no ready endpoint", "at least one"
        remedy = (
            "make a pod ready that the Service's selector matches: the status and the log of the pods have"
            " the reason"
        )
        command = f"kubectl -n={shlex.quote(service.where.split('/')[1])} get pods --output=wide"
    else:
        return
    yield _extender_not_reached_finding(registration, actual, expected, remedy, command)


def _check_name_resolution(registration: Registration) -> Iterator[Finding]:
    """A pod on the host's network uses the host's DNS, which does not know Services."""
    workload = registration.scheduler.workload
    if workload and workload.host_network and workload.dns_policy != "ClusterFirstWithHostNet":
        host = split_url(registration.entry.url)[1]
        policy = f"hostNetwork with dnsPolicy {workload.dns_policy}"
        actual = f"names {host}, which {workload.where} cannot resolve: {policy}"
        expected = "dnsPolicy: ClusterFirstWithHostNet, or the cluster IP"
        remedy = (
            "set dnsPolicy: ClusterFirstWithHostNet in the scheduler's manifest, as nodewise configure"
            " does, or the"
            " Service's cluster IP in urlPrefix with its name in tlsConfig.serverName"
        )
        yield _extender_not_reached_finding(registration, actual, expected, remedy)


def _extender_not_reached_finding(
    registration: Registration, actual: str, expected: str, remedy: str, command: str = ""
) -> Finding:
    actual = f".urlPrefix {actual}"
    return create_entry_finding("extender-not-reached", registration, actual, expected, remedy, command)


@check("extender-not-reached")
def check_extender_calls(  # complexity: the conditions of one finding
    registrations: Registrations, pods: Pods = (), replica_metrics: tuple[ReplicaMetrics, ...] = ()
) -> Iterator[Finding]:
    uptime_s = min((metrics.uptime_s for metrics in replica_metrics), default=0.0)
    is_called = any(metrics.calls for metrics in replica_metrics)
    resources = {
        resource.name for registration in registrations for resource in registration.entry.managed_resources
    }
    waiting = [pod for pod in pods if not pod.node and (not resources or resources & {*pod.resources})]
    if registrations and waiting and uptime_s >= _IDLE_S and not is_called:
        replicas = ", ".join(metrics.pod for metrics in replica_metrics)
        actual = f"no call in {uptime_s:.0f} s, and {waiting[0].namespace}/{waiting[0].name} waits"
        remedy = (
            "restart kube-scheduler, which reads its configuration when it starts; if that does not help,"
            " look for"
            " extender in its log"
        )
        yield finding("extender-not-reached", replicas, actual, "calls of kube-scheduler", remedy=remedy)


@check("extender-not-reached")
def check_reported_call_errors(pods: Pods = ()) -> Iterator[Finding]:
    """A connection error that kube-scheduler reports on a pod that waits; the first one is enough."""
    for pod in pods:
        message = pod.message.lower()
        is_error = "extender" in message and any(error in message for error in _CALL_ERRORS)
        if not pod.node and is_error and "x509" not in message:
            actual = f"kube-scheduler reports: {short(pod.message)}"
            remedy = next(text for error, text in _CALL_ERRORS.items() if error in message)
            yield finding("extender-not-reached", pod.where, actual, "a response", remedy=remedy)
            return


@check("scheduler-not-running")
def check_pods_without_scheduler(
    pods: Pods, schedulers: Schedulers = ()
) -> Iterator[Finding]:  # complexity: the conditions of one finding
    serving: dict[str, list[str]] = {}
    for scheduler in schedulers:
        for name in dict.fromkeys(profile.scheduler_name for profile in scheduler.profiles):
            serving.setdefault(name, []).append(scheduler.where)
    by_name: dict[str, list[str]] = {}
    for pod in pods:
        is_known = pod.scheduler_name == DEFAULT_SCHEDULER or pod.scheduler_name in serving
        is_due = pod.age_s >= (_QUEUE_S if is_known else _UNKNOWN_QUEUE_S)
        if is_due and not (pod.node or pod.message or pod.is_gated):
            by_name.setdefault(pod.scheduler_name, []).append(f"{pod.namespace}/{pod.name}")
    for name, waiting in sorted(by_name.items()):
        where = (
            f"{', '.join(serving[name])} serves it" if name in serving else "no examined scheduler serves it"
        )
        actual = f"no scheduler has reported on {list_first(waiting, 1)}; {where}"
        expected = "a running scheduler of that name"
        yield finding("scheduler-not-running", f"schedulerName/{name}", actual, expected)


@check("scheduler-not-running")
def check_schedulers_without_pods(schedulers: Schedulers = ()) -> Iterator[Finding]:
    for workload in (scheduler.workload for scheduler in schedulers):
        if workload is not None and workload.replicas and workload.ready == 0:
            reasons = f": {'; '.join(workload.problems)}" if workload.problems else ""
            actual = f"0 of {workload.replicas} are ready{reasons}"
            remedy, command = (
                "the status and the log of its pods have the reason",
                kubectl("describe", workload.where),
            )
            yield finding(
                "scheduler-not-running",
                workload.where,
                actual,
                "at least 1",
                remedy=remedy,
                command=command,
                severity="warning",
            )
