"""Checks whether a scheduler calls nodewise, can reach it, and runs at all."""

from collections.abc import Iterator
from typing import Final, cast

from nodewise.base.errors import short
from nodewise.doctor.checks.extender_entries import extender_in_scheduler_pod
from nodewise.doctor.facts import (
    Controllers,
    Extenders,
    PodInfo,
    Pods,
    Registration,
    Registrations,
    ReplicaMetrics,
    Schedulers,
    Service,
    UnavailableFact,
)
from nodewise.doctor.findings import Finding, NotChecked, Result, check, finding
from nodewise.doctor.parsing.scheduler_configuration import split_url
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.server.options import is_loopback

_IDLE_S: Final = 600.0
"""A replica without a call for this long is not called."""
_QUEUE_S: Final = 120.0
"""A younger pod may still be in a scheduler's queue behind many others."""
_UNKNOWN_QUEUE_S: Final = 5.0
"""The same if no known scheduler serves its schedulerName."""
_CALL_ERRORS: Final = (
    "failed calling extender",
    "dial tcp",
    "no such host",
    "connection refused",
    "context deadline",
)
_REMOTE: Final = "call doctor on a host of the control plane, or where the address can be reached"


@check("extender-not-registered")
def check_extender_registered(
    registrations: tuple[Registration | UnavailableFact, ...] = (),
    schedulers: Schedulers = (),
    pods: Pods = (),
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
    extenders: Extenders = (),
    controllers: Controllers = (),
) -> Iterator[Result]:
    """Whether an entry leads to nodewise. Calls of a scheduler whose configuration is hidden prove that one does."""
    id_ = "extender-not-registered"
    if controllers and not extenders:  # a stock kube-scheduler enforces policies in native mode
        return
    if any(isinstance(registration, Registration) for registration in registrations):
        yield from _check_static_pods(registrations, schedulers)
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


def _format_missing_calls(pods: Pods, replica_metrics: tuple[ReplicaMetrics, ...]) -> str:
    """Says that pods were created for which a scheduler should have called nodewise; empty if that is unknown."""
    uptime_s = min((metrics.uptime_s for metrics in replica_metrics), default=0.0)
    created = [pod for pod in pods if pod.policy and pod.age_s < uptime_s - _QUEUE_S and not pod.is_gated]
    if not created or any(pod.scheduler_name != DEFAULT_SCHEDULER for pod in created):
        return ""
    name = f"{created[0].namespace}/{created[0].name}"
    return f"no scheduler has called a replica in {uptime_s:.0f} s, and {name} was created meanwhile"


def _check_static_pods(
    registrations: tuple[Registration | UnavailableFact, ...], schedulers: Schedulers
) -> Iterator[Finding]:
    """Hosts of the control plane that differ: after the next leader election a scheduler without nodewise leads."""
    names = {
        registration.scheduler.where
        for registration in registrations
        if isinstance(registration, Registration)
    }
    static = [
        scheduler
        for scheduler in schedulers
        if scheduler.workload and scheduler.workload.is_static and scheduler.profiles
    ]
    if any(scheduler.where in names for scheduler in static):
        for scheduler in static:
            if scheduler.where not in names:
                actual = "no entry in extenders leads to nodewise, and on other hosts one does"
                yield finding("extender-not-registered", scheduler.where, actual, "the same on all hosts")


@check("extender-not-reached")
def check_entry_addresses(
    registrations: Registrations,
    extenders: Extenders | None = None,
    replica_metrics: tuple[ReplicaMetrics, ...] = (),
) -> Iterator[Result]:
    """Whether the address of each entry leads to nodewise."""
    is_called = any(metrics.calls for metrics in replica_metrics)
    for registration in registrations:
        host, service = split_url(registration.entry.url)[1], registration.service
        workload = registration.scheduler.workload
        if not host:
            yield _extender_not_reached_finding(registration, "is no address", "https://HOST:PORT")
        elif isinstance(service, Service):
            yield from _check_endpoints(registration, service)
            yield from () if is_called else _check_name_resolution(registration)
        elif is_loopback(host) and workload is not None and not workload.host_network:
            yield from _check_extender_in_scheduler_pod(registration, extenders)
        elif isinstance(service, UnavailableFact):
            yield NotChecked("extender-not-reached", service)
        else:
            yield from _check_server_reachable(registration, is_called=is_called)


def _check_extender_in_scheduler_pod(
    registration: Registration, extenders: Extenders | None
) -> Iterator[Finding]:
    if extenders is not None and extender_in_scheduler_pod(registration.scheduler, extenders) is None:
        actual = "leads to the scheduler's own pod, and no nodewise runs in it"
        yield _extender_not_reached_finding(
            registration, actual, "a container with nodewise extender, or a Service"
        )


def _check_server_reachable(registration: Registration, *, is_called: bool) -> Iterator[Result]:
    server = registration.server
    if not server.address and server.is_refused:
        attempts = "; ".join(server.attempts)
        yield _extender_not_reached_finding(
            registration, f"leads to no server: {attempts}", "a nodewise that listens there"
        )
    elif not server.address and not is_called:
        reason = f"not reached from here: {short('; '.join(server.attempts) or 'not tried')}"
        unavailable = UnavailableFact(registration.entry.url, reason, remedy=_REMOTE)
        yield NotChecked("extender-not-reached", unavailable)


def _check_endpoints(registration: Registration, service: Service) -> Iterator[Result]:
    """Whether the Service exists, has the port, and has a ready endpoint."""
    port = split_url(registration.entry.url)[3]
    if service.ports is None:
        actual = f"leads to {service.where}, which does not exist"
        yield _extender_not_reached_finding(registration, actual, "a Service that exists")
    elif port not in service.ports:
        ports = ", ".join(map(str, service.ports)) or "none"
        actual = f"names port {port}, and {service.where} has {ports}"
        yield _extender_not_reached_finding(registration, actual, "one of these")
    elif isinstance(service.ready_endpoints, UnavailableFact):
        yield NotChecked("extender-not-reached", service.ready_endpoints)
    elif not service.ready_endpoints:
        actual = f"leads to {service.where}, which has no ready endpoint"
        yield _extender_not_reached_finding(registration, actual, "at least one")


def _check_name_resolution(registration: Registration) -> Iterator[Finding]:
    """A pod on the host's network uses the host's DNS, which does not know Services."""
    workload = registration.scheduler.workload
    if workload is None or not workload.host_network or workload.dns_policy == "ClusterFirstWithHostNet":
        return
    host = split_url(registration.entry.url)[1]
    actual = f"names {host}, which {workload.where} cannot resolve: hostNetwork with dnsPolicy {workload.dns_policy}"
    yield _extender_not_reached_finding(
        registration, actual, "dnsPolicy: ClusterFirstWithHostNet, or the cluster IP"
    )


def _extender_not_reached_finding(registration: Registration, actual: str, expected: str) -> Finding:
    field = f"{registration.entry.field}.urlPrefix"
    return finding("extender-not-reached", registration.where, f"{field} {actual}", expected)


@check("extender-not-reached")
def check_extender_calls(
    registrations: Registrations, pods: Pods = (), replica_metrics: tuple[ReplicaMetrics, ...] = ()
) -> Iterator[Finding]:
    """Replicas without any call, although an entry leads to them and pods wait."""
    uptime_s = min((metrics.uptime_s for metrics in replica_metrics), default=0.0)
    is_called = any(metrics.calls for metrics in replica_metrics)
    resources = {
        resource.name for registration in registrations for resource in registration.entry.managed_resources
    }
    waiting = [pod for pod in pods if _waits_for_nodewise(pod, resources)]
    if registrations and waiting and uptime_s >= _IDLE_S and not is_called:
        replicas = ", ".join(metrics.pod for metrics in replica_metrics)
        actual = f"no call in {uptime_s:.0f} s, and {waiting[0].namespace}/{waiting[0].name} waits"
        yield finding("extender-not-reached", replicas, actual, "calls of kube-scheduler")


def _waits_for_nodewise(pod: PodInfo, resources: set[str]) -> bool:
    return not pod.node and (not resources or not resources.isdisjoint(pod.resources))


@check("extender-not-reached")
def check_reported_call_errors(pods: Pods = ()) -> Iterator[Finding]:
    """A connection error that kube-scheduler reports on a pod that waits; the first one is enough."""
    for pod in pods:
        message = pod.message.lower()
        is_error = "extender" in message and any(error in message for error in _CALL_ERRORS)
        if not pod.node and is_error and "x509" not in message:
            actual = f"kube-scheduler reports: {short(pod.message)}"
            yield finding("extender-not-reached", pod.where, actual, "a response")
            return


@check("scheduler-not-running")
def check_pods_without_scheduler(pods: Pods, schedulers: Schedulers = ()) -> Iterator[Finding]:
    """Pods without a message of a scheduler, by their schedulerName."""
    served = {profile.scheduler_name for scheduler in schedulers for profile in scheduler.profiles}
    by_name: dict[str, list[PodInfo]] = {}
    for pod in pods:
        is_known = pod.scheduler_name == DEFAULT_SCHEDULER or pod.scheduler_name in served
        is_due = pod.age_s >= (_QUEUE_S if is_known else _UNKNOWN_QUEUE_S)
        if is_due and not (pod.node or pod.message or pod.is_gated):
            by_name.setdefault(pod.scheduler_name, []).append(pod)
    for name, waiting in sorted(by_name.items()):
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        first = f"{waiting[0].namespace}/{waiting[0].name}{more}"
        actual = f"no scheduler has reported on {first}; {_format_scheduler_of_name(name, schedulers)}"
        yield finding(
            "scheduler-not-running", f"schedulerName/{name}", actual, "a running scheduler of that name"
        )


@check("scheduler-not-running")
def check_schedulers_without_pods(schedulers: Schedulers = ()) -> Iterator[Finding]:
    for workload in (scheduler.workload for scheduler in schedulers):
        if workload is not None and workload.replicas and workload.ready == 0:
            reasons = f": {'; '.join(workload.problems)}" if workload.problems else ""
            actual = f"0 of {workload.replicas} are ready{reasons}"
            yield finding("scheduler-not-running", workload.where, actual, "at least 1", severity="warning")


def _format_scheduler_of_name(name: str, schedulers: Schedulers) -> str:
    where = [
        scheduler.where
        for scheduler in schedulers
        if any(profile.scheduler_name == name for profile in scheduler.profiles)
    ]
    return f"{', '.join(where)} serves it" if where else "no examined scheduler serves it"
