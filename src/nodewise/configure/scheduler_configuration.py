"""A configuration of kube-scheduler with entries for nodewise; docs/scheduler.md says why each field is as it is.

Checked against kube-scheduler v0.36 `apis/config/validation` and `apis/config/v1/types.go`.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from nodewise.errors import BadSettings, Problem

DEFAULT_SCHEDULER: Final = "default-scheduler"
DEFAULT_WEIGHT: Final = 10
_MOST_WEIGHT: Final = 10_000
"""Far from where a node's sum over all plugins and extenders could leave 64 bits."""


class Role(NamedTuple):
    """What an agent has to be asked."""

    agent: str
    filters: bool
    prioritizes: bool
    binds: bool
    resources: Mapping[str, bool]
    """Those by which its pods are known; true for one that no node need have. Empty: all pods are its business."""
    keeps_memory: bool = False
    """Whether it stores what it learns."""


class EntryFiles(NamedTuple):
    """Names of files as kube-scheduler will see them; empty for none."""

    ca: str = ""
    cert: str = ""
    key: str = ""


class SchedulerOptions(NamedTuple):
    """How kube-scheduler is to ask."""

    url: str
    papers: EntryFiles = EntryFiles()
    plain_http: bool = False
    """Whether unencrypted calls may leave the machine."""
    whole_nodes: bool = False
    filter_all_pods: bool = False
    """Whether pods are filtered that no resource marks, so that none is placed while nodewise does not answer."""
    one_entry_per_agent: bool = False
    weights: Mapping[str, int] = {}
    """By agent; of an entry for all, and of agents that are not named, by the empty name."""
    scheduler_name: str = DEFAULT_SCHEDULER
    kubeconfig: str = ""
    """File name as kube-scheduler will see it; empty: the rights of its pod."""


def configuration(roles: Sequence[Role], wish: SchedulerOptions) -> dict[str, Any]:
    """A KubeSchedulerConfiguration. `BadSettings` for all that would not work, or that would say yes by silence."""
    problems = [*_wrong_url(wish), *_wrong_weights(roles, wish), *_wrong_roles(roles, wish)]
    if problems:
        raise BadSettings("settings", problems)
    own = {"leaderElection": {"leaderElect": True, "resourceName": wish.scheduler_name}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **({"clientConnection": {"kubeconfig": wish.kubeconfig}} if wish.kubeconfig else {}),
        **(own if wish.scheduler_name != DEFAULT_SCHEDULER else {}),
        "profiles": [{"schedulerName": wish.scheduler_name}],
        "extenders": [
            entry
            for path, group in _groups(roles, wish)
            for entry in (_entry(path, group, wish), *_bind_entry(group, wish))
        ],
    }


def agents_without_filter(roles: Sequence[Role], wish: SchedulerOptions) -> list[str]:
    """Agents whose filter is not asked, because nothing marks their pods."""
    groups = (group for _, group in _groups(roles, wish) if not _filters(group, wish))
    return [role.agent for group in groups for role in group if role.filters]


def _groups(roles: Sequence[Role], wish: SchedulerOptions) -> list[tuple[str, list[Role]]]:
    """The entries: their path, and the agents behind it."""
    if wish.one_entry_per_agent:
        return [(f"agents/{role.agent}", [role]) for role in roles]
    return [("scheduler", list(roles))]


def _bind_entry(roles: Sequence[Role], wish: SchedulerOptions) -> list[dict[str, Any]]:
    """The bind verb apart, where the entry of these agents gets all pods: nodewise binds only those that request
    something from the agent that binds.
    """
    binder = next((role for role in roles if role.binds), None)
    if binder is None or _resources(roles):
        return []
    entry = {
        "urlPrefix": f"{wish.url.rstrip('/')}/agents/{binder.agent}",
        "bindVerb": "bind",
        "nodeCacheCapable": not wish.whole_nodes,
        "httpTimeout": "5s",
        "ignorable": False,
        "managedResources": _managed(binder.resources),
    }
    return [entry | _tls(wish)]


def _managed(resources: Mapping[str, bool]) -> list[dict[str, Any]]:
    return [
        {"name": name, **({"ignoredByScheduler": True} if is_mark else {})}
        for name, is_mark in resources.items()
    ]


def _entry(path: str, roles: Sequence[Role], wish: SchedulerOptions) -> dict[str, Any]:
    resources = _resources(roles)
    filters, binds = _filters(roles, wish), bool(resources) and any(role.binds for role in roles)
    weight = wish.weights.get(
        roles[0].agent if wish.one_entry_per_agent else "", wish.weights.get("", DEFAULT_WEIGHT)
    )
    entry: dict[str, Any] = {"urlPrefix": f"{wish.url.rstrip('/')}/{path}"}
    if filters:
        entry["filterVerb"] = "filter"
    if any(role.prioritizes for role in roles):
        entry |= {"prioritizeVerb": "prioritize", "weight": weight}
    if filters:
        entry["preemptVerb"] = "preempt"
    if binds:
        entry["bindVerb"] = "bind"
    entry |= {
        "nodeCacheCapable": not wish.whole_nodes,
        "httpTimeout": "5s" if wish.whole_nodes or binds else "1s",
        "ignorable": not filters,
    }
    if resources:
        entry["managedResources"] = _managed(resources)
    return entry | _tls(wish)


def _tls(wish: SchedulerOptions) -> dict[str, Any]:
    if _parts(wish.url).scheme != "https":
        return {}
    names = {"caFile": wish.papers.ca, "certFile": wish.papers.cert, "keyFile": wish.papers.key}
    return {"enableHTTPS": True, "tlsConfig": names}


def _filters(roles: Iterable[Role], wish: SchedulerOptions) -> bool:
    """A filter is asked about pods that a resource marks, and about all pods only where somebody wants it."""
    roles = list(roles)
    return any(role.filters for role in roles) and (wish.filter_all_pods or bool(_resources(roles)))


def _resources(roles: Sequence[Role]) -> dict[str, bool]:
    """Those by which kube-scheduler knows which pods to send; empty where an agent wants to see all pods."""
    if not all(role.resources for role in roles):
        return {}
    return {name: is_mark for role in roles for name, is_mark in role.resources.items()}


def _wrong_roles(roles: Sequence[Role], wish: SchedulerOptions) -> Iterable[Problem]:
    """No answer must never mean yes: an agent that guards marked pods must be asked about them."""
    if not roles:
        yield Problem("--agents", "none", "at least one")
    binders = [role.agent for role in roles if role.binds]
    if len(binders) > 1:
        yield Problem("--agents", ", ".join(binders), "one agent that binds")
    for _, group in _groups(roles, wish):
        if not _filters(group, wish):
            yield from _wrong_without_filter(group)


def _wrong_without_filter(group: Sequence[Role]) -> Iterable[Problem]:
    """Problems of an entry without the filter verb."""
    guards = [role.agent for role in group if role.filters and role.resources]
    others = [role.agent for role in group if not role.resources]
    if guards:
        seen = f"{', '.join(guards)} for pods that ask for a resource, {', '.join(others)} for all pods"
        yield Problem("--agents", seen, "--one-entry-per-agent, or --filter-all-pods")
    elif not any(role.prioritizes for role in group):
        seen = f"{group[0].agent} filters, and nothing marks its pods" if group else "none"
        yield Problem("--agents", seen, "--filter-all-pods")


def _wrong_weights(roles: Sequence[Role], wish: SchedulerOptions) -> Iterable[Problem]:
    known = {role.agent for role in roles} if wish.one_entry_per_agent else set()
    for agent, weight in wish.weights.items():
        if agent and agent not in known:
            wanted = "one of " + ", ".join(sorted(known)) if known else "--one-entry-per-agent, or one number"
            yield Problem("--weights", repr(agent), wanted)
        if not 1 <= weight <= _MOST_WEIGHT:
            yield Problem("--weights", str(weight), f"a whole number from 1 to {_MOST_WEIGHT}")


def _wrong_url(wish: SchedulerOptions) -> Iterable[Problem]:
    parts, papers = _parts(wish.url), wish.papers
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        yield Problem("--url", repr(wish.url), "https://HOST:PORT, without a path")
    elif parts.scheme == "https":
        missing = [f"--{name}" for name, value in papers._asdict().items() if not value]
        if missing:
            wanted = "file names as kube-scheduler sees them; without a CA it takes any server for nodewise"
            yield Problem(", ".join(missing), "not given", wanted)
    else:
        if any(papers):
            yield Problem("--url", repr(wish.url), "https://, as certificates are given")
        if not (wish.plain_http or _is_loopback(parts.hostname)):
            wanted = "https://, a loopback address, or --plain-http: anybody on the way could answer"
            yield Problem("--url", repr(wish.url), wanted)


def _parts(url: str) -> SplitResult:
    """The parts of an address; empty ones where it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return urlsplit("")
    return parts if re.fullmatch(r"[\x21-\x7e]+", url) else urlsplit("")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
