"""The pods that are bound to nodes: their requests and limits, their owner, and when they were bound and started.

Requests are those of `nodewise.kube.pod_requests`: allocated resources during a resize and pod-level resources count.
"""

from functools import lru_cache
from math import inf, isnan
from sys import intern
from typing import Annotated, Final, NamedTuple

import msgspec

from nodewise.agent import ReadKeys, Resource, Watched
from nodewise.base import quantity
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import (
    HOLDING_SELECTORS,
    ContainerAllocation,
    RequestedResources,
    RequestingContainer,
    RequestingPod,
    RequestingSpec,
    ResizeCondition,
    ResizeStatus,
)
from nodewise_scorers.statistics import load_annotations

RESOURCES: Final = ("cpu", "memory")
LEAST_REQUEST: Final = (100.0, 200.0 * 2**20)
"""Milli-CPU and bytes that a pod with a smaller request counts with, as in kube-scheduler's scores."""
BOUND_PODS: Final = "bound_pods"
"""The key of the pods in `ClusterState.objects`."""
_HASH_LABEL: Final = "pod-template-hash"
"""A ReplicaSet of a Deployment is named after it and this label."""
_MAX_NAME: Final = 300
"""Characters of an owner's name that tell it from others."""


class ControllerReference(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class OwnedMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The metadata that tell a pod's owner."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    creationTimestamp: str | None = None  # noqa: N815 - the API's name
    labels: Annotated[dict[str, str] | None, ReadKeys((_HASH_LABEL,))] = None
    ownerReferences: tuple[ControllerReference, ...] | None = None  # noqa: N815 - the API's name


class ImageContainer(RequestingContainer, frozen=True, gc=False):
    image: str = ""


class OwnedSpec(RequestingSpec, frozen=True, gc=False):
    containers: tuple[ImageContainer, ...] | None = None


class OwnedPod(RequestingPod, frozen=True, gc=False, kw_only=True):
    """The fields of a pod to schedule that tell what it will use."""

    metadata: OwnedMetadata = OwnedMetadata()
    spec: OwnedSpec = OwnedSpec()


class BoundSpec(OwnedSpec, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class TimedCondition(ResizeCondition, frozen=True, gc=False):
    status: str = ""
    lastTransitionTime: str | None = None  # noqa: N815 - the API's name


class StartState(msgspec.Struct, frozen=True, gc=False):
    startedAt: str | None = None  # noqa: N815 - the API's name


class StartedState(msgspec.Struct, frozen=True, gc=False):
    running: StartState | None = None
    terminated: StartState | None = None


class StartedContainer(ContainerAllocation, frozen=True, gc=False):
    restartCount: int = 0  # noqa: N815 - the API's name
    state: StartedState | None = None


class BoundStatus(ResizeStatus, frozen=True, gc=False):
    phase: str = ""
    startTime: str | None = None  # noqa: N815 - the API's name
    conditions: tuple[TimedCondition, ...] | None = None
    containerStatuses: tuple[StartedContainer, ...] | None = None  # noqa: N815 - the API's name


class AccountedPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a pod on a node that are read."""

    metadata: OwnedMetadata
    spec: BoundSpec = BoundSpec()
    status: BoundStatus = BoundStatus()


class PodAmounts(NamedTuple):
    """By resource, in milli-CPU and bytes."""

    requests: tuple[float, float]
    """0 for a pod without a request."""
    limits: tuple[float, float]
    """Infinite for a pod without a limit."""

    @property
    def counted(self) -> tuple[float, float]:
        """The requests, at least `LEAST_REQUEST`: usage per requested unit is of these."""
        cpu, memory = self.requests
        return max(cpu, LEAST_REQUEST[0]), max(memory, LEAST_REQUEST[1])


def reduce_pod(pod: AccountedPod) -> AccountedPod | None:
    """A bound pod as it is stored, with one container for all; None for one that holds no resources.

    The reduced form of a reduced pod is the same.
    """
    if not pod_requests.holds_requests(pod):
        return None
    amounts = pod_amounts(pod.spec, pod.status)
    nano = zip(RESOURCES, pod_requests.nano_requests(pod.spec, RESOURCES, pod.status), strict=True)
    limits = zip(RESOURCES, amounts.limits, ("m", ""), strict=True)
    kind, name = owner_key(pod)[1:]
    started = _started_text(pod.status)
    bound = bound_time_text(pod)
    return AccountedPod(
        metadata=OwnedMetadata(
            name=pod.metadata.name,
            namespace=intern(pod.metadata.namespace),
            uid=pod.metadata.uid,
            creationTimestamp=bound,
            ownerReferences=_owner(kind, name),
        ),
        spec=BoundSpec(
            nodeName=intern(pod.spec.nodeName),
            containers=_containers(
                tuple((resource, f"{amount}n") for resource, amount in nano),
                tuple((resource, f"{limit:.0f}{unit}") for resource, limit, unit in limits if limit < inf),
            ),
        ),
        status=BoundStatus(phase=intern(pod.status.phase), startTime=started),
    )


@lru_cache(4096)
def _owner(kind: str, name: str) -> tuple[ControllerReference, ...]:
    return (ControllerReference(kind, name, controller=True),)


@lru_cache(4096)
def _containers(
    requests: tuple[tuple[str, str], ...], limits: tuple[tuple[str, str], ...]
) -> tuple[ImageContainer, ...]:
    return (ImageContainer(resources=RequestedResources(dict(requests), dict(limits))),)


def pod_amounts(spec: OwnedSpec, status: ResizeStatus | None = None) -> PodAmounts:
    """The requests and limits of a pod, on a node (with its status) or to be placed."""
    cpu, memory = pod_requests.whole_requests(spec, RESOURCES, status)
    limits = _limit(spec, status, "cpu"), _limit(spec, status, "memory")
    return PodAmounts((float(cpu), float(memory)), limits)


def _limit(  # complexity: the limits of the pod, of its status and of its containers
    spec: OwnedSpec, status: ResizeStatus | None, resource: str
) -> float:
    """The limit of a pod in milli-CPU or bytes: its own, else the sum of those of its containers if all have one."""
    own = [status.resources] if status is not None else []
    for resources in (*own, spec.resources):
        if amount := _limit_of(resources, resource):
            return amount
    statuses = (status.containerStatuses or ()) if status is not None else ()
    effective = {container.name: container.resources for container in statuses if container.resources}
    sidecars = (each for each in spec.initContainers or () if each.restartPolicy == "Always")
    total = 0.0
    for container in (*(spec.containers or ()), *sidecars):
        amount = _limit_of(effective.get(container.name, container.resources), resource)
        if not amount:
            return inf
        total += amount
    return total or inf


def _limit_of(resources: RequestedResources | None, resource: str) -> float:
    """0 for none."""
    if resources is None or not resources.limits:
        return 0.0
    whole = quantity.whole_milli if resource == "cpu" else quantity.whole_units
    return float(whole(quantity.nano(resources.limits.get(resource))))


OwnerKey = tuple[str, str, str]
"""Namespace, kind and name."""


def owner_key(pod: OwnedPod | AccountedPod) -> OwnerKey:  # complexity: one case for each kind of owner
    """The owner whose pods use about the same: the Deployment or Job, another controller, otherwise the first image.

    A ReplicaSet of a Deployment and a Job of a CronJob stand for these, so that a rollout changes nothing. Owners of
    different namespaces are different: the pods of a tenant do not affect the estimates of another tenant's.
    """
    metadata = pod.metadata
    owners = metadata.ownerReferences or ()
    owner = next((each for each in owners if each.controller), None)
    if owner is None or owner.kind == "Node":  # a static pod is owned by its node
        containers = pod.spec.containers or ()
        return metadata.namespace, "Image", (containers[0].image if containers else "")[:_MAX_NAME]
    kind, name = owner.kind[:_MAX_NAME], owner.name[:_MAX_NAME]
    stem, _, suffix = name.rpartition("-")
    if kind == "ReplicaSet" and stem and metadata.labels and suffix == metadata.labels.get(_HASH_LABEL):
        return metadata.namespace, "Deployment", stem
    if kind == "Job" and stem and suffix.isdecimal():
        return metadata.namespace, "CronJob", stem
    return metadata.namespace, intern(kind), name


def bound_time_text(pod: AccountedPod) -> str | None:
    """When the pod was bound, by the clock of the API server, which sets the condition PodScheduled with the node."""
    conditions = pod.status.conditions or ()
    times = (
        each.lastTransitionTime
        for each in conditions
        if each.type == "PodScheduled" and each.status == "True"
    )
    return next(times, None) or pod.metadata.creationTimestamp


def _started_text(status: BoundStatus) -> str | None:
    """When the last container of a pod started for the first time; None if one has not started.

    A container that was restarted started at an unknown time after the kubelet accepted the pod.
    """
    if status.phase != "Running":
        return None
    times = [status.startTime or ""]
    for container in status.containerStatuses or ():
        state = container.state or StartedState()
        started = state.running or state.terminated
        if container.restartCount:
            continue
        if started is None:
            return None
        times.append(started.startedAt or "")
    return max(times) or None  # times of one kubelet are in the same format, which sorts by time


class PodTimes(NamedTuple):
    """Seconds since 1970."""

    bound_at: float
    """-inf if unknown, as of a pod in a file: it is not in flight."""
    started_at: float
    """Infinite before the pod has started."""


def pod_times(pod: AccountedPod) -> PodTimes:
    """The times of a pod on a node, as they were reported."""
    bound_at = load_annotations.time(bound_time_text(pod))
    started_at = load_annotations.time(_started_text(pod.status))
    return PodTimes(
        -inf if isnan(bound_at) else bound_at,
        (bound_at if pod.status.phase == "Running" else inf) if isnan(started_at) else started_at,
    )


WATCHED: Final = Watched(
    BOUND_PODS,
    Resource("", "v1", "pods", "Pod"),
    AccountedPod,
    keep=reduce_pod,
    selectors=HOLDING_SELECTORS,
)
