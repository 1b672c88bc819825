"""Checks of nodewise's entries in kube-scheduler's configuration, and of other scorers."""

import contextlib
from collections.abc import Iterator
from typing import Final

from nodewise.agent import LoadScoring
from nodewise.agents import find_agent_kind as find_agent
from nodewise.base import clock
from nodewise.base.errors import BadInput
from nodewise.doctor.facts import (
    Extenders,
    NodewiseWorkload,
    Policies,
    Registration,
    Registrations,
    SchedulerInfo,
    Schedulers,
)
from nodewise.doctor.findings import Finding, check, finding
from nodewise.doctor.parsing import workloads
from nodewise.doctor.parsing.scheduler_configuration import ExtenderEntry, split_url
from nodewise.install.scheduler_versions import SchedulerVersion, parse_image_version

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
_GPU_RESOURCES: Final = ("gpu.intel.com/", "nvidia.com/")
_NAMES_TIMEOUT_S: Final = 1.0
_LARGE_TIMEOUT_S: Final = 5.0
"""Bodies with whole nodes, and binds, take longer."""
_MAX_TIMEOUT_S: Final = 10.0
_LAST_MINOR_TO_LOG_KEYS: Final = 37


def agents_of_entry(registration: Registration, extenders: Extenders) -> frozenset[str]:
    """The agents that an entry calls, as far as that is known."""
    if registration.entry.agent:
        return frozenset({registration.entry.agent})
    return frozenset(
        agent for extender in _extenders_behind_entry(registration, extenders) for agent in extender.agents
    )


def _extenders_behind_entry(registration: Registration, extenders: Extenders) -> Extenders:
    """The extenders that an entry's address leads to: that of the scheduler's pod, those of the Service's namespace,
    or all.
    """
    own = extender_in_scheduler_pod(registration.scheduler, extenders)
    if own is not None:
        return (own,)
    labels = split_url(registration.entry.url)[1].split(".")
    near = tuple(
        extender
        for extender in extenders
        if labels[2:3] == ["svc"] and extender.workload.namespace == labels[1]
    )
    return near or extenders


def extender_in_scheduler_pod(scheduler: SchedulerInfo, extenders: Extenders) -> NodewiseWorkload | None:
    """The extender in the scheduler's own pod."""
    where = scheduler.workload.where if scheduler.workload else ""
    return next((extender for extender in extenders if where and extender.workload.where == where), None)


def is_any_policy_scoring(policies: Policies) -> bool:
    """Whether a policy has nodes scored."""
    return any(policy.scores_nodes for policy in policies)


def create_entry_finding(
    id_: str, registration: Registration, actual: str, expected: str, remedy: str = ""
) -> Finding:
    """A finding about a field of an entry."""
    return finding(id_, registration.where, f"{registration.entry.field}{actual}", expected, remedy=remedy)


@check("names-not-used")
def check_node_cache_capable(registrations: Registrations, extenders: Extenders = ()) -> Iterator[Finding]:
    """Whether nodes are sent whole exactly if nodewise has no API server."""
    for registration in registrations:
        own = extender_in_scheduler_pod(registration.scheduler, extenders)
        needs_nodes = own is not None and own.is_set("no_cluster")
        if needs_nodes and registration.entry.node_cache_capable:
            expected = "false, as this nodewise runs with --no-cluster"
            yield create_entry_finding(
                "names-not-used", registration, ".nodeCacheCapable is true", expected, expected
            )
        elif not needs_nodes and not registration.entry.node_cache_capable:
            yield create_entry_finding(
                "names-not-used", registration, ".nodeCacheCapable is not true", "true"
            )


@check("http-timeout-missing", "http-timeout-short", "http-timeout-long")
def check_http_timeout(registrations: Registrations) -> Iterator[Finding]:
    for registration in registrations:
        entry = registration.entry
        is_large = bool(entry.bind_verb) or not entry.node_cache_capable
        least_s = _LARGE_TIMEOUT_S if is_large else _NAMES_TIMEOUT_S
        yield from _check_entry_timeout(registration, entry.http_timeout, least_s)


def _check_entry_timeout(registration: Registration, timeout: str, least_s: float) -> Iterator[Finding]:
    expected = f"{least_s:g}s"
    if not timeout:
        yield create_entry_finding("http-timeout-missing", registration, ".httpTimeout is not set", expected)
        return
    try:
        timeout_s = clock.parse_duration(timeout)
    except ValueError:
        actual = f".httpTimeout: invalid duration {timeout[:50]!r}"
        yield create_entry_finding("http-timeout-missing", registration, actual, expected)
        return
    actual = f".httpTimeout: {timeout}"
    if timeout_s < least_s:
        yield create_entry_finding("http-timeout-short", registration, actual, expected)
    elif timeout_s > _MAX_TIMEOUT_S:
        yield create_entry_finding(
            "http-timeout-long", registration, actual, f"{expected}, at most {_MAX_TIMEOUT_S:g}s"
        )


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
        if workloads.runs(container, "kube-scheduler"):
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
    """The verbs and resources of the gpu agent may be in one of several entries of a scheduler."""
    for registration in registrations:
        entry = registration.entry
        others = _other_entries(registration, registrations, extenders, "gpu")
        if "gpu" in agents_of_entry(registration, extenders) and (
            _gpu_resources(entry) or not any(map(_gpu_resources, others))
        ):
            yield from _check_gpu_verbs(registration)
        if entry.filter_verb and not entry.preempt_verb:
            actual = f"{entry.field} has filterVerb and no preemptVerb"
            expected = "preemptVerb: preempt"
            yield finding("bind-verb-missing", registration.where, actual, expected, severity="warning")


def _check_gpu_verbs(registration: Registration) -> Iterator[Finding]:
    entry = registration.entry
    for name, verb in (("bind", entry.bind_verb), ("filter", entry.filter_verb)):
        if not verb:
            actual = f" has no {name}Verb, and calls the gpu agent"
            yield create_entry_finding("bind-verb-missing", registration, actual, f"{name}Verb: {name}")
    if not _gpu_resources(entry):
        actual = ".managedResources names no GPU resource"
        yield create_entry_finding(
            "bind-verb-missing", registration, actual, "gpu.intel.com/i915 and the like"
        )


def _gpu_resources(entry: ExtenderEntry) -> list[str]:
    return [resource.name for resource in entry.managed_resources if resource.name.startswith(_GPU_RESOURCES)]


def _other_entries(
    registration: Registration, registrations: Registrations, extenders: Extenders, agent: str
) -> list[ExtenderEntry]:
    """The other entries of the same scheduler that call an agent."""
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
                yield create_entry_finding(
                    "resource-not-ignored", registration, actual, "ignoredByScheduler: true"
                )


@check("weight-zero")
def check_entry_weight(
    registrations: Registrations, extenders: Extenders = (), policies: Policies = ()
) -> Iterator[Finding]:
    for registration in registrations:
        entry = registration.entry
        if entry.prioritize_verb:
            if not _has_weight(entry):
                actual = (
                    f".weight is {'not set' if entry.weight is None else entry.weight} beside prioritizeVerb"
                )
                expected = "5 or more; kube-scheduler does not start without"
                yield create_entry_finding("weight-zero", registration, actual, expected)
            continue
        agents = agents_of_entry(registration, extenders)
        scorers = sorted(name for name in agents if _agent_load_scoring_share(name) != "none")
        scorers += ["telemetry"] if "telemetry" in agents and is_any_policy_scoring(policies) else []
        unused = [
            agent
            for agent in scorers
            if not any(map(_has_weight, _other_entries(registration, registrations, extenders, agent)))
        ]
        if unused:
            actual = f" has no prioritizeVerb, and no entry requests the scores of {', '.join(unused)}"
            yield create_entry_finding(
                "weight-zero", registration, actual, "prioritizeVerb: prioritize, weight: 10"
            )


def _has_weight(entry: ExtenderEntry) -> bool:
    return bool(entry.prioritize_verb) and (entry.weight or 0) > 0


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
def check_load_aware_scorers(
    registrations: Registrations,
    schedulers: Schedulers = (),
    extenders: Extenders = (),
    policies: Policies = (),
) -> Iterator[Finding]:
    """Score plugins of other projects together with nodewise's scores, or with each other."""
    id_ = "two-load-aware-scorers"
    for scheduler in schedulers:
        own_entries = [
            registration for registration in registrations if registration.scheduler.where == scheduler.where
        ]
        own = sorted(_agents_scoring_by_load(own_entries, extenders, policies))
        for profile in scheduler.profiles:
            names = [name for name in profile.plugins if name in _LOAD_AWARE_PLUGINS]
            plugins = [f"{name} ({_LOAD_AWARE_PLUGINS[name]})" for name in names]
            actual = f"profile {profile.scheduler_name} has {', '.join(plugins)}"
            if plugins and own:
                actual = f"{actual}, and nodewise scores by {', '.join(own)}"
                yield finding(id_, scheduler.where, actual, "one of them")
            elif len(plugins) > 1:
                yield finding(id_, scheduler.where, actual, "one of them")


@check("two-load-aware-scorers")
def check_agents_with_similar_scores(extenders: Extenders = ()) -> Iterator[Finding]:
    """Agents whose scores are about the same. That may be intended, as --weights adds them."""
    for extender in extenders:
        similar = [name for name in extender.agents if _agent_load_scoring_share(name) == "whole"]
        if len(similar) > 1:
            actual = f"--agents has {', '.join(similar)}, whose scores are added by --weights"
            where, expected = extender.workload.where, "one, or intended weights"
            yield finding("two-load-aware-scorers", where, actual, expected, severity="note")


def _agents_scoring_by_load(
    registrations: list[Registration], extenders: Extenders, policies: Policies
) -> set[str]:
    """The agents and strategies with which these entries score by load."""
    scorers: set[str] = set()
    for registration in registrations:
        if registration.entry.prioritize_verb:
            agents = agents_of_entry(registration, extenders)
            scorers |= {name for name in agents if _agent_load_scoring_share(name) != "none"}
            if "telemetry" in agents and is_any_policy_scoring(policies):
                scorers.add("the preferences of policies")
    return scorers


def _agent_load_scoring_share(agent: str) -> LoadScoring:
    """How much an agent scores by load, as it declares; `none` for an agent that is not installed here."""
    kind = find_agent(agent)
    return "none" if kind is None else kind.load_scoring
