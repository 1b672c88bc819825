"""What is wrong with nodewise's entries in kube-scheduler's configuration, each by itself."""

from collections.abc import Callable, Iterator
from typing import Final

from nodewise import clock
from nodewise.configure.doctor.configurations import parts
from nodewise.configure.doctor.facts import Configuration, Entry, Extender, Facts, Scheduler, Unread
from nodewise.configure.doctor.findings import Answer, Finding, found, unlooked

SCORING: Final = frozenset({"safe", "congestion", "pigeon", "learned"})
"""nodewise's agents that only score."""
_CARDS: Final = ("gpu.intel.com/", "nvidia.com/")
_NAMES_S: Final = 1.0
_LARGE_S: Final = 5.0
_LONG_S: Final = 10.0


def ours(facts: Facts) -> Iterator[tuple[Scheduler, Entry]]:
    """nodewise's entries in every configuration that could be read."""
    for scheduler in known(facts):
        assert isinstance(scheduler.configuration, Configuration)
        for entry in scheduler.configuration.entries:
            if entry.is_ours:
                yield scheduler, entry


def known(facts: Facts) -> Iterator[Scheduler]:
    """Schedulers whose configuration could be read."""
    if not isinstance(facts.schedulers, Unread):
        yield from (one for one in facts.schedulers if isinstance(one.configuration, Configuration))


def agents(facts: Facts, scheduler: Scheduler, entry: Entry) -> frozenset[str]:
    """The agents that an entry asks, as far as that is known."""
    if entry.agent:
        return frozenset({entry.agent})
    return frozenset(agent for one in behind(facts, scheduler, entry) for agent in one.agents)


def behind(facts: Facts, scheduler: Scheduler, entry: Entry) -> tuple[Extender, ...]:
    """The replicas that an entry's address leads to: those in the scheduler's pod, those of its Service, or any."""
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    beside = _beside(facts, scheduler)
    if beside is not None:
        return (beside,)
    labels = parts(entry.url)[1].split(".")
    near = tuple(one for one in extenders if labels[2:3] == ["svc"] and one.pod.namespace == labels[1])
    return near or extenders


def check(facts: Facts) -> Iterator[Answer]:
    """Everything about entries but their certificates."""
    for each in _IDS:
        yield from unread(facts, each)
    for scheduler, entry in ours(facts):
        own = agents(facts, scheduler, entry)
        yield from _names(scheduler, entry, _beside(facts, scheduler))
        yield from _timeout(scheduler, entry)
        yield from _ignorable(scheduler, entry)
        yield from _verbs(facts, scheduler, entry, own)
        yield from _resources(facts, scheduler, entry)
        yield from _weight(facts, scheduler, entry, own)
        yield from _own_pods(facts, scheduler, entry)


_IDS: Final = (
    "names-not-used",
    "http-timeout-missing",
    "http-timeout-short",
    "http-timeout-long",
    "wrong-ignorable",
    "filters-own-pods",
    "bind-verb-missing",
    "resource-not-ignored",
    "weight-zero",
)


def unread(facts: Facts, id_: str) -> Iterator[Answer]:
    """What stands in the way of a check of all entries: a configuration that could not be read, or none at all."""
    if isinstance(facts.schedulers, Unread):
        yield from unlooked(facts.schedulers, id_)
        return
    if not facts.schedulers:
        yield from unlooked(_HIDDEN, id_)
    is_asked = any(True for _ in ours(facts))  # then nobody knows that this one has to ask nodewise as well
    for one in facts.schedulers:
        if isinstance(one.configuration, Unread):
            hidden = one.configuration
            yield from unlooked(hidden._replace(is_minor=True) if is_asked else hidden, id_)


_HIDDEN: Final = Unread(
    "kube-scheduler's configuration",
    "the cluster shows no kube-scheduler, as managed ones do not",
    remedy="--scheduler-config FILE with a copy of it, or --scheduler-url; on a managed cluster"
    " nodewise configure --mode second-scheduler, and -n with its namespace",
)


def _found(id_: str, scheduler: Scheduler, entry: Entry, seen: str, wanted: str, remedy: str = "") -> Finding:
    return found(id_, place(scheduler, entry), f"{entry.field}{seen}", wanted, remedy=remedy)


def place(scheduler: Scheduler, entry: Entry) -> str:
    """How an entry is called."""
    return f"{scheduler.where}, {entry.url}"


def _beside(facts: Facts, scheduler: Scheduler) -> Extender | None:
    """The extender in the scheduler's own pod."""
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    where = scheduler.pod.where if scheduler.pod else ""
    return next((one for one in extenders if where and one.pod.where == where), None)


def _names(scheduler: Scheduler, entry: Entry, beside: Extender | None) -> Iterator[Finding]:
    """Nodes have to come whole where nodewise asks no API server."""
    needs_nodes = beside is not None and beside.says("no_cluster")
    if entry.names_only == needs_nodes:
        seen, wanted = (".nodeCacheCapable is true", "false, as this nodewise runs with --no-cluster")
        if not needs_nodes:
            seen, wanted = (".nodeCacheCapable is not true", "true")
        yield _found("names-not-used", scheduler, entry, seen, wanted, "" if not needs_nodes else wanted)


def _timeout(scheduler: Scheduler, entry: Entry) -> Iterator[Finding]:
    """Bodies of whole nodes and binds take their time."""
    least_s = _LARGE_S if entry.bind or not entry.names_only else _NAMES_S
    wanted = f"{least_s:g}s"
    if not entry.timeout:
        yield _found("http-timeout-missing", scheduler, entry, ".httpTimeout is not given", wanted)
        return
    try:
        given_s = clock.parse_duration(entry.timeout)
    except ValueError:
        seen = f".httpTimeout: {entry.timeout[:50]!r} is no duration"
        yield _found("http-timeout-missing", scheduler, entry, seen, wanted)
        return
    if given_s < least_s:
        yield _found("http-timeout-short", scheduler, entry, f".httpTimeout: {entry.timeout}", wanted)
    elif given_s > _LONG_S:
        seen = f".httpTimeout: {entry.timeout}"
        yield _found("http-timeout-long", scheduler, entry, seen, f"{wanted}, at most {_LONG_S:g}s")


def _ignorable(scheduler: Scheduler, entry: Entry) -> Iterator[Finding]:
    if entry.filter and entry.ignorable:
        seen = ".ignorable is true beside filterVerb"
        yield _found("wrong-ignorable", scheduler, entry, seen, "false")


def _verbs(facts: Facts, scheduler: Scheduler, entry: Entry, own: frozenset[str]) -> Iterator[Finding]:
    """What the gpu agent has to be asked may stand in one of several entries."""
    marks = _marks(entry)
    if "gpu" in own and (marks or not _others(facts, scheduler, entry, "gpu", lambda one: bool(_marks(one)))):
        lacks = [f"{name}Verb" for name, verb in (("bind", entry.bind), ("filter", entry.filter)) if not verb]
        for verb in lacks:
            wanted = f"{verb}: {verb.removesuffix('Verb')}"
            seen = f" has no {verb}, and the gpu agent is behind it"
            yield _found("bind-verb-missing", scheduler, entry, seen, wanted)
        if not marks:
            seen = ".managedResources names no card"
            yield _found("bind-verb-missing", scheduler, entry, seen, "gpu.intel.com/i915 and the like")
    if entry.filter and not entry.preempt:
        seen = f"{entry.field} has filterVerb and no preemptVerb"
        where, wanted = place(scheduler, entry), "preemptVerb: preempt"
        yield found("bind-verb-missing", where, seen, wanted, severity="warning")


def _marks(entry: Entry) -> list[str]:
    return [one.name for one in entry.resources if one.name.startswith(_CARDS)]


def _resources(facts: Facts, scheduler: Scheduler, entry: Entry) -> Iterator[Answer]:
    """Cards are counted by kube-scheduler too; a mark must not be, unless nodes were given it."""
    marks = [one for one in entry.resources if not one.is_ignored and not one.name.startswith(_CARDS)]
    if marks and isinstance(facts.nodes, Unread):
        yield from unlooked(facts.nodes, "resource-not-ignored")
    elif facts.nodes:
        for one in marks:
            if one.name not in facts.offered:
                seen = f".managedResources: {one.name} is counted, and on no node"
                yield _found("resource-not-ignored", scheduler, entry, seen, "ignoredByScheduler: true")


def _others(
    facts: Facts, scheduler: Scheduler, entry: Entry, agent: str, does: Callable[[Entry], bool]
) -> bool:
    """Whether another entry of the same scheduler asks an agent what this one does not."""
    assert isinstance(scheduler.configuration, Configuration)
    return any(
        one.is_ours and one != entry and agent in agents(facts, scheduler, one) and does(one)
        for one in scheduler.configuration.entries
    )


def prefers(facts: Facts) -> bool:
    """Whether a policy has nodes scored."""
    policies = () if isinstance(facts.policies, Unread) else facts.policies
    return any("scheduleonmetric" in one.strategies for one in policies)


def _weight(facts: Facts, scheduler: Scheduler, entry: Entry, own: frozenset[str]) -> Iterator[Finding]:
    if entry.prioritize and not (entry.weight or 0) > 0:
        seen = f".weight is {'not given' if entry.weight is None else entry.weight} beside prioritizeVerb"
        yield _found(
            "weight-zero", scheduler, entry, seen, "5 or more; kube-scheduler does not start without"
        )
        return
    scorers = sorted(own & SCORING) + (["telemetry"] if "telemetry" in own and prefers(facts) else [])
    unasked = [name for name in scorers if not _others(facts, scheduler, entry, name, _counts)]
    if not entry.prioritize and unasked:
        seen = f" has no prioritizeVerb, and the scores of {', '.join(unasked)} are asked by nobody"
        yield _found("weight-zero", scheduler, entry, seen, "prioritizeVerb: prioritize, weight: 10")


def _counts(entry: Entry) -> bool:
    return bool(entry.prioritize) and (entry.weight or 0) > 0


def _own_pods(facts: Facts, scheduler: Scheduler, entry: Entry) -> Iterator[Answer]:
    """Pods of nodewise that are placed by a scheduler which asks nodewise about every pod."""
    if not entry.filter or entry.resources or entry.ignorable:
        return
    if isinstance(facts.extenders, Unread):
        yield from unlooked(facts.extenders, "filters-own-pods")
        return
    assert isinstance(scheduler.configuration, Configuration)
    served = {profile.scheduler for profile in scheduler.configuration.profiles}
    for one in facts.extenders:
        if one.pod.scheduler in served and not one.pod.is_static and one.pod.node == "":
            seen = f" filters all pods of {one.pod.scheduler}, {one.pod.where} among them"
            yield _found("filters-own-pods", scheduler, entry, seen, "managedResources, or another scheduler")
