"""Whether a scheduler is told of nodewise, reaches it, and runs at all."""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from nodewise.configure.doctor.configurations import parts
from nodewise.configure.doctor.entries import known, ours, place, unread
from nodewise.configure.doctor.facts import (
    Configuration,
    Entry,
    Facts,
    Numbers,
    Scheduler,
    Service,
    Unread,
    Waiting,
)
from nodewise.configure.doctor.findings import Answer, Finding, found, unlooked
from nodewise.visible import short

DEFAULT: Final = "default-scheduler"
_LONG_S: Final = 600.0
"""A replica that has been asked nothing for so long is not asked."""
_PATIENCE_S: Final = 120.0
"""Before this age a pod may be on its way: a scheduler has many others to look at."""
_SHORT_S: Final = 5.0
"""The same where nobody is known to serve the name."""
_BROKEN: Final = (
    "failed calling extender",
    "dial tcp",
    "no such host",
    "connection refused",
    "context deadline",
)


def check(facts: Facts) -> Iterator[Answer]:
    yield from _registered(facts)
    yield from _reached(facts)
    yield from _running(facts)


def numbers(facts: Facts) -> list[Numbers]:
    """What replicas count, as far as it could be read."""
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    return [one for extender in extenders for one in extender.numbers if isinstance(one, Numbers)]


def _registered(facts: Facts) -> Iterator[Answer]:
    id_ = "extender-not-registered"
    if any(True for _ in ours(facts)):
        yield from _hosts_without(facts)
        return
    counted = numbers(facts)
    if any(one.calls for one in counted):
        return  # a scheduler whose configuration nobody sees asks it
    if counted and (silent := _silence(facts, counted)):
        yield found(id_, ", ".join(one.pod for one in counted), silent, "an entry in a scheduler's extenders")
        return
    missed = list(unread(facts, id_))
    if missed:
        yield from missed
        return
    where = ", ".join(one.where for one in known(facts))
    yield found(id_, where, "no entry in extenders leads to nodewise", "one that does")


def _silence(facts: Facts, counted: Sequence[Numbers]) -> str:
    """Whether pods came that a scheduler should have asked about, and none did; empty: nobody can say."""
    up_s = min(one.up_s for one in counted)
    if isinstance(facts.pods, Unread):
        return ""
    came = [one for one in facts.pods if one.policy and one.age_s < up_s - _PATIENCE_S and not one.is_gated]
    if not came or any(one.scheduler != DEFAULT for one in came):
        return ""
    return f"no scheduler has called a replica in {up_s:.0f} s, and {came[0].namespace}/{came[0].name} came meanwhile"


def _hosts_without(facts: Facts) -> Iterator[Finding]:
    """Hosts of the control plane that differ: the scheduler that leads tomorrow does not ask nodewise."""
    by_name = {scheduler.where for scheduler, _ in ours(facts)}
    static = [one for one in known(facts) if one.pod and one.pod.is_static]
    if any(one.where in by_name for one in static):
        for one in static:
            if one.where not in by_name:
                seen = "no entry in extenders leads to nodewise, and on other hosts one does"
                yield found("extender-not-registered", one.where, seen, "the same on every host")


def _reached(facts: Facts) -> Iterator[Answer]:
    yield from unread(facts, "extender-not-reached")
    for scheduler, entry in ours(facts):
        yield from _address(facts, scheduler, entry)
    yield from _never_asked(facts)
    yield from _said(facts)


def _address(facts: Facts, scheduler: Scheduler, entry: Entry) -> Iterator[Answer]:
    host = parts(entry.url)[1]
    if not host:
        yield _unreached(scheduler, entry, "is no address", "https://HOST:PORT")
        return
    service, server = scheduler.services.get(entry.number), scheduler.servers.get(entry.number)
    if isinstance(service, Service):
        yield from _behind(scheduler, entry, service)
        yield from _resolved(facts, scheduler, entry)
    elif is_loopback(host) and scheduler.pod is not None and not scheduler.pod.host_network:
        if not _runs_beside(facts, scheduler):
            seen = "leads to the scheduler's own pod, and no nodewise runs in it"
            yield _unreached(scheduler, entry, seen, "a container with nodewise extender, or a Service")
    elif isinstance(service, Unread):
        yield from unlooked(service, "extender-not-reached")
    elif server is not None and not server.reached and server.is_refused:
        tried = "; ".join(server.tried)
        yield _unreached(scheduler, entry, f"leads to nobody: {tried}", "a nodewise that listens there")
    elif (server is None or not server.reached) and not any(one.calls for one in numbers(facts)):
        tried = "; ".join(server.tried) if server else "not tried"
        why = Unread(entry.url, f"not reached from here: {short(tried)}", remedy=_FROM_THERE)
        yield from unlooked(why, "extender-not-reached")


_FROM_THERE: Final = "call doctor on a host of the control plane, or where the address can be reached"


def _behind(scheduler: Scheduler, entry: Entry, service: Service) -> Iterator[Answer]:
    """Whether there is such a Service, with that port, and somebody ready behind it."""
    port = parts(entry.url)[3]
    if service.ports is None:
        yield _unreached(
            scheduler, entry, f"leads to {service.where}, which does not exist", "a Service there is"
        )
    elif port not in service.ports:
        there = ", ".join(map(str, service.ports)) or "none"
        yield _unreached(
            scheduler, entry, f"names port {port}, and {service.where} has {there}", "one of these"
        )
    elif isinstance(service.ready, Unread):
        yield from unlooked(service.ready, "extender-not-reached")
    elif not service.ready:
        yield _unreached(
            scheduler, entry, f"leads to {service.where}, which has no ready endpoint", "one at least"
        )


def _resolved(facts: Facts, scheduler: Scheduler, entry: Entry) -> Iterator[Finding]:
    """A pod of the host's network asks the host's DNS, which knows no Services."""
    pod = scheduler.pod
    is_called = any(one.calls for one in numbers(facts))
    if pod is not None and pod.host_network and pod.dns != "ClusterFirstWithHostNet" and not is_called:
        host = parts(entry.url)[1]
        seen = f"names {host}, which {pod.where} cannot resolve: hostNetwork with dnsPolicy {pod.dns}"
        yield _unreached(scheduler, entry, seen, "dnsPolicy: ClusterFirstWithHostNet, or the cluster IP")


def _unreached(scheduler: Scheduler, entry: Entry, seen: str, wanted: str) -> Finding:
    return found("extender-not-reached", place(scheduler, entry), f"{entry.field}.urlPrefix {seen}", wanted)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _runs_beside(facts: Facts, scheduler: Scheduler) -> bool:
    extenders = () if isinstance(facts.extenders, Unread) else facts.extenders
    where = scheduler.pod.where if scheduler.pod else ""
    return isinstance(facts.extenders, Unread) or any(one.pod.where == where for one in extenders)


def _never_asked(facts: Facts) -> Iterator[Answer]:
    """Replicas that have been up for long and were asked nothing, while a configuration has an entry."""
    entries = [entry for _, entry in ours(facts)]
    counted = numbers(facts)
    if not entries or not counted or any(one.calls for one in counted):
        return
    if min(one.up_s for one in counted) < _LONG_S or isinstance(facts.pods, Unread):
        return
    asked = {name.name for entry in entries for name in entry.resources}
    waits = [one for one in facts.pods if not one.node and (not asked or asked & set(one.asks))]
    if waits:
        pods = ", ".join(one.pod for one in counted)
        seen = f"no call since {min(one.up_s for one in counted):.0f} s, and {waits[0].namespace}/{waits[0].name} waits"
        yield found("extender-not-reached", pods, seen, "calls of kube-scheduler")


def _said(facts: Facts) -> Iterator[Finding]:
    """kube-scheduler's own words about pods that wait."""
    if isinstance(facts.pods, Unread):
        return
    for one in facts.pods:
        low = one.message.lower()
        if not one.node and "extender" in low and any(word in low for word in _BROKEN) and "x509" not in low:
            yield _told("extender-not-reached", one)
            return


def _told(id_: str, pod: Waiting) -> Finding:
    return found(
        id_, f"Pod/{pod.namespace}/{pod.name}", f"kube-scheduler says: {short(pod.message)}", "an answer"
    )


def _running(facts: Facts) -> Iterator[Answer]:
    """Pods that nobody has looked at, by the scheduler that they name."""
    id_ = "scheduler-not-running"
    if isinstance(facts.pods, Unread):
        yield from unlooked(facts.pods, id_)
        return
    by_name: dict[str, list[Waiting]] = {}
    for one in facts.pods:
        if not one.node and not one.message and not one.is_gated and one.age_s >= _patience_s(facts, one):
            by_name.setdefault(one.scheduler, []).append(one)
    for name, pods in sorted(by_name.items()):
        first = f"{pods[0].namespace}/{pods[0].name}" + (
            f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        )
        seen = f"no scheduler has said a word of {first}; {_who(facts, name)}"
        yield found(id_, f"schedulerName/{name}", seen, "a scheduler of that name that runs")
    yield from _not_ready(facts)


def _patience_s(facts: Facts, pod: Waiting) -> float:
    """How long a scheduler has to look at a pod; nobody waits for one that there is not."""
    serving = (one for each in known(facts) for one in _profiles(each))
    return _PATIENCE_S if pod.scheduler in (DEFAULT, *serving) else _SHORT_S


def _profiles(scheduler: Scheduler) -> list[str]:
    found_ = scheduler.configuration
    return [one.scheduler for one in found_.profiles] if isinstance(found_, Configuration) else []


def _not_ready(facts: Facts) -> Iterator[Finding]:
    for scheduler in () if isinstance(facts.schedulers, Unread) else facts.schedulers:
        pod = scheduler.pod
        if pod is not None and pod.wanted and pod.ready == 0:
            why = f": {'; '.join(pod.troubles)}" if pod.troubles else ""
            seen = f"none of {pod.wanted} is ready{why}"
            yield found("scheduler-not-running", pod.where, seen, "one that is", severity="warning")


def _who(facts: Facts, name: str) -> str:
    """Who should serve the name."""
    found_ = [one.where for one in known(facts) if name in _profiles(one)]
    return f"{', '.join(found_)} should" if found_ else "no scheduler that was found serves it"
