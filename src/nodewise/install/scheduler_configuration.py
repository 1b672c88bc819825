"""Builds a configuration of kube-scheduler with entries for nodewise; docs/scheduler.md explains each field.

Checked against kube-scheduler v0.36 `apis/config/validation` and `apis/config/v1/types.go`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from nodewise.base.errors import BadSettings, Problem
from nodewise.server.options import is_loopback

DEFAULT_SCHEDULER: Final = "default-scheduler"
DEFAULT_WEIGHT: Final = 10
_MAX_WEIGHT: Final = 10_000
"""Small enough that the sum of a node's scores over all plugins and extenders fits into 64 bits."""


class AgentRole(NamedTuple):
    """The verbs and resources of an agent."""

    agent: str
    filters: bool
    prioritizes: bool
    binds: bool
    resources: Mapping[str, bool]
    """Resources that mark the agent's pods; True if no node needs to have the resource (`ignoredByScheduler`). Empty:
    the agent handles all pods."""
    keeps_memory: bool = False
    """Whether the agent stores what it learns."""
    entry_weight: int | None = None
    """The weight of an entry of this agent alone; None for the default."""


class EntryFiles(NamedTuple):
    """Paths of the TLS files as kube-scheduler sees them; empty if not used."""

    ca: str = ""
    cert: str = ""
    key: str = ""


class SchedulerOptions(NamedTuple):
    """Options of a configuration."""

    url: str
    files: EntryFiles = EntryFiles()
    plain_http: bool = False
    """Whether unencrypted requests may leave the machine."""
    whole_nodes: bool = False
    filter_all_pods: bool = False
    """Whether the filter applies to pods that no resource marks. None of them is scheduled while nodewise is down."""
    one_entry_per_agent: bool = False
    weights: Mapping[str, int] = {}
    """Weights by agent. The empty name is the weight of a common entry and of agents that are not listed."""
    scheduler_name: str = DEFAULT_SCHEDULER
    kubeconfig: str = ""
    """Path of the kubeconfig as kube-scheduler sees it; empty: the permissions of its pod."""


def build_scheduler_configuration(roles: Sequence[AgentRole], options: SchedulerOptions) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. `BadSettings` for options that do not work or that do not fail closed."""
    problems = [
        *_url_problems(options),
        *_weight_problems(roles, options),
        *_agent_role_problems(roles, options),
    ]
    if problems:
        raise BadSettings("settings", problems)
    own = {"leaderElection": {"leaderElect": True, "resourceName": options.scheduler_name}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **({"clientConnection": {"kubeconfig": options.kubeconfig}} if options.kubeconfig else {}),
        **(own if options.scheduler_name != DEFAULT_SCHEDULER else {}),
        "profiles": [{"schedulerName": options.scheduler_name}],
        "extenders": [
            entry
            for path, group in _group_agents_by_entry(roles, options)
            for entry in (_build_entry(path, group, options), *_build_resource_entries(group, options))
        ],
    }


def agents_without_filter(roles: Sequence[AgentRole], options: SchedulerOptions) -> list[str]:
    """Agents whose filter is not called, because no resource marks their pods."""
    groups = (
        group for _, group in _group_agents_by_entry(roles, options) if not _needs_filter(group, options)
    )
    return [role.agent for group in groups for role in group if role.filters]


def _group_agents_by_entry(
    roles: Sequence[AgentRole], options: SchedulerOptions
) -> list[tuple[str, list[AgentRole]]]:
    if options.one_entry_per_agent:
        return [(f"agents/{role.agent}", [role]) for role in roles]
    return [("scheduler", list(roles))]


def _build_resource_entries(roles: Sequence[AgentRole], options: SchedulerOptions) -> list[dict[str, Any]]:
    """Separate entries for resources, if the common entry receives all pods. Empty if not needed.

    nodewise binds only pods that request a resource of the agent that binds. kube-scheduler ignores a resource that
    marks pods only if an entry names it, also one without verbs, which it never calls.
    """
    if _managed_resources_of_entry(roles, options):
        return []
    return [
        {
            "urlPrefix": f"{options.url.rstrip('/')}/agents/{role.agent}",
            **({"bindVerb": "bind"} if role.binds else {}),
            "nodeCacheCapable": not options.whole_nodes,
            "httpTimeout": "5s" if role.binds else "1s",
            "ignorable": not role.binds,
            "managedResources": _managed_resources(role.resources),
            **_tls_fields(options),
        }
        for role in roles
        if role.resources
    ]


def _managed_resources(resources: Mapping[str, bool]) -> list[dict[str, Any]]:
    return [
        {"name": name, **({"ignoredByScheduler": True} if is_mark else {})}
        for name, is_mark in resources.items()
    ]


def _build_entry(path: str, roles: Sequence[AgentRole], options: SchedulerOptions) -> dict[str, Any]:
    resources = _managed_resources_of_entry(roles, options)
    filters, binds = _needs_filter(roles, options), bool(resources) and any(role.binds for role in roles)
    weight = options.weights.get(
        roles[0].agent if options.one_entry_per_agent else "", options.weights.get("", DEFAULT_WEIGHT)
    )
    entry: dict[str, Any] = {"urlPrefix": f"{options.url.rstrip('/')}/{path}"}
    if filters:
        entry["filterVerb"] = "filter"
    if any(role.prioritizes for role in roles):
        entry |= {"prioritizeVerb": "prioritize", "weight": weight}
    if filters:
        entry["preemptVerb"] = "preempt"
    if binds:
        entry["bindVerb"] = "bind"
    entry |= {
        "nodeCacheCapable": not options.whole_nodes,
        "httpTimeout": "5s" if options.whole_nodes or binds else "1s",
        "ignorable": not filters,
    }
    if resources:
        entry["managedResources"] = _managed_resources(resources)
    return entry | _tls_fields(options)


def _tls_fields(options: SchedulerOptions) -> dict[str, Any]:
    if _split_url(options.url).scheme != "https":
        return {}
    names = {"caFile": options.files.ca, "certFile": options.files.cert, "keyFile": options.files.key}
    return {"enableHTTPS": True, "tlsConfig": names}


def _needs_filter(roles: Iterable[AgentRole], options: SchedulerOptions) -> bool:
    """Whether an entry has the filter verb: if a resource marks its pods, or if the options ask for it."""
    roles = list(roles)
    return any(role.filters for role in roles) and (
        options.filter_all_pods or bool(_managed_resources_of_entry(roles, options))
    )


def _managed_resources_of_entry(roles: Sequence[AgentRole], options: SchedulerOptions) -> dict[str, bool]:
    """The resources that select the pods of an entry; empty if it receives all pods."""
    if options.filter_all_pods or not all(role.resources for role in roles):
        return {}
    return {name: is_mark for role in roles for name, is_mark in role.resources.items()}


def _agent_role_problems(roles: Sequence[AgentRole], options: SchedulerOptions) -> Iterable[Problem]:
    """Problems of the agents. A missing response must not accept a pod, so an agent that filters marked pods needs its
    filter.
    """
    if not roles:
        yield Problem("--agents", "no agent", "at least one agent")
    binders = [role.agent for role in roles if role.binds]
    if len(binders) > 1:
        yield Problem("--agents", ", ".join(binders), "one agent that binds")
    for _, group in _group_agents_by_entry(roles, options):
        if not _needs_filter(group, options):
            yield from _problems_of_entry_without_filter(group)


def _problems_of_entry_without_filter(group: Sequence[AgentRole]) -> Iterable[Problem]:
    guards = [role.agent for role in group if role.filters and role.resources]
    others = [role.agent for role in group if not role.resources]
    if guards:
        actual = f"{', '.join(guards)} for pods that ask for a resource, {', '.join(others)} for all pods"
        yield Problem("--agents", actual, "--one-entry-per-agent, or --filter-all-pods")
    elif not any(role.prioritizes for role in group):
        actual = f"{group[0].agent} filters, and nothing marks its pods" if group else "none"
        yield Problem("--agents", actual, "--filter-all-pods")


def _weight_problems(roles: Sequence[AgentRole], options: SchedulerOptions) -> Iterable[Problem]:
    known = {role.agent for role in roles} if options.one_entry_per_agent else set()
    for agent, weight in options.weights.items():
        if agent and agent not in known:
            expected = (
                "one of " + ", ".join(sorted(known)) if known else "--one-entry-per-agent, or one number"
            )
            yield Problem("--weights", repr(agent), expected)
        if not 1 <= weight <= _MAX_WEIGHT:
            yield Problem("--weights", str(weight), f"a whole number from 1 to {_MAX_WEIGHT}")


def _url_problems(options: SchedulerOptions) -> Iterable[Problem]:
    parts, files = _split_url(options.url), options.files
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        yield Problem("--url", repr(options.url), "https://HOST:PORT, without a path")
    elif parts.scheme == "https":
        missing = [f"--{name}" for name, value in files._asdict().items() if not value]
        if missing:
            expected = "file names as kube-scheduler sees them; without a CA it does not verify nodewise"
            yield Problem(", ".join(missing), "not given", expected)
    else:
        if any(files):
            yield Problem("--url", repr(options.url), "https://, as certificates are given")
        if not (options.plain_http or is_loopback(parts.hostname)):
            expected = (
                "https://, a loopback address, or --plain-http: an attacker on the network could respond"
            )
            yield Problem("--url", repr(options.url), expected)


def _split_url(url: str) -> SplitResult:
    """The parts of a URL; empty parts if it is invalid."""
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return urlsplit("")
    return parts if re.fullmatch(r"[\x21-\x7e]+", url) else urlsplit("")
