"""nodewise's own pods: whether they are ready, and whether they may do what they have to."""

from collections.abc import Iterator, Sequence
from typing import Final

from nodewise.configure import secondary
from nodewise.configure.doctor.entries import ours
from nodewise.configure.doctor.facts import Extender, Facts, Right, Server, Unread
from nodewise.configure.doctor.findings import Answer, found, unlooked
from nodewise.configure.doctor.settings import options

_FEW: Final = 6
_MOST_METRICS: Final = 20
USAGE: Final = ("cpu_usage", "memory_usage", "cpu_usage_share", "memory_usage_share")
"""Metrics of metrics.k8s.io."""


def check(facts: Facts) -> Iterator[Answer]:
    if isinstance(facts.extenders, Unread):
        yield from unlooked(facts.extenders, "replicas-not-ready", "rights-missing")
        return
    if not facts.extenders and not _is_reached(facts):
        where = ", ".join(f"Namespace/{name}" for name in facts.homes) or "cluster"
        seen, wanted = (
            "nothing here runs nodewise extender",
            "a Deployment that does, or -n with its namespace",
        )
        yield found("replicas-not-ready", where, seen, wanted, remedy="install it: docs/install.md")
    for one in facts.extenders:
        yield from _ready(one)
        yield from _rights(one)
        if one.unread is not None:
            yield from unlooked(one.unread, "rights-missing")


def _is_reached(facts: Facts) -> bool:
    """Whether somebody answers at an entry's address, be it no pod of this cluster."""
    return any(one.servers.get(entry.number, Server()).reached for one, entry in ours(facts))


def _ready(one: Extender) -> Iterator[Answer]:
    pod = one.pod
    if not pod.wanted:
        if pod.where.partition("/")[0] != "Pod":
            yield found("replicas-not-ready", pod.where, "is to have no replica", "one at least")
        return
    if pod.ready is None or pod.ready >= pod.wanted:
        return
    why = f": {'; '.join(dict.fromkeys(pod.troubles))}" if pod.troubles else ""
    seen = f"{pod.ready} of {pod.wanted} are ready{why}"
    yield found("replicas-not-ready", pod.where, seen, "all", severity="warning" if pod.ready else "error")


def _rights(one: Extender) -> Iterator[Answer]:
    if isinstance(one.rights, Unread):
        yield from unlooked(one.rights, "rights-missing")
    elif one.rights:
        more = f" and {len(one.rights) - _FEW} more" if len(one.rights) > _FEW else ""
        seen = f"may not {'; '.join(map(str, one.rights[:_FEW]))}{more}"
        account = f"ServiceAccount/{one.pod.namespace}/{one.pod.account}"
        yield found("rights-missing", account, seen, "the rights of deploy/*.yaml")


def needed(one: Extender, metrics: Sequence[str] = ()) -> list[Right]:
    """What its agents need of the API server, as deploy/*.yaml grant it; nothing without a cluster."""
    if one.says("no_cluster") or one.settings.get("objects_from"):
        return []
    agents = set(one.agents)
    everywhere, inside = list(secondary.CLUSTER_RULES), list(secondary.RULES)
    if "gpu" in agents:
        everywhere += secondary.GPU_CLUSTER_RULES
        inside += secondary.GPU_RULES
    if agents & {"pigeon", "learned"} and not one.settings.get("state"):
        inside += secondary.MEMORY_RULES
    rights = [right for rule in everywhere for right in _of_rule(rule, "")]
    rights += [right for rule in inside for right in _of_rule(rule, one.pod.namespace)]
    rights = [right for right in rights if not _is_without(one, right)]
    return list(dict.fromkeys([*rights, *_of_metrics(one, metrics)]))


def _of_metrics(one: Extender, metrics: Sequence[str]) -> Iterator[Right]:
    """Each metric is a resource of its own, as rules may name it; those of nodes' usage are another API's."""
    if "telemetry" not in one.agents or "prometheus_url" in one.settings:
        return
    sources = set(options(one.settings, "metrics") or ["auto"])
    usage = [name for name in metrics if name in USAGE]
    if usage and sources & {"auto", "resource"}:
        yield Right("list", "metrics.k8s.io", "nodes")
    if sources & {"auto", "custom"}:
        for name in [name for name in metrics if name not in USAGE][:_MOST_METRICS]:
            yield Right("get", "custom.metrics.k8s.io", f"nodes/{name}")


def _of_rule(rule: secondary.Rule, namespace: str) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(verb, group, resource, namespace, name)


def _is_without(one: Extender, right: Right) -> bool:
    """Whether these settings do without a right."""
    if right.group in ("metrics.k8s.io", "custom.metrics.k8s.io"):
        return True  # they follow from the policies
    if right.group == "telemetry.intel.com":
        return "telemetry" not in one.agents
    if right.resource == "namespaces":
        return "telemetry" not in one.agents or one.says("trust_all_namespaces")
    if right.resource == "nodes/status":
        return "advertise_resource" not in one.settings
    return False
