"""What a pod asks for. The fields have the shapes that other agents declare of them (`kube.fields.merge`)."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from nodewise.statistics import amounts
from nodewise.statistics.amounts import MOST, Quantity


class RequestedResources(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, Quantity] | None = None


class RequestingContainer(msgspec.Struct, frozen=True, gc=False):
    resources: RequestedResources | None = None
    restartPolicy: str | None = None  # noqa: N815 - the API's name
    """`Always` makes an init container a sidecar."""


class RequestingSpec(msgspec.Struct, frozen=True, gc=False):
    containers: tuple[RequestingContainer, ...] | None = None
    initContainers: tuple[RequestingContainer, ...] | None = None  # noqa: N815 - the API's name


class RequestingPod(msgspec.Struct, frozen=True, gc=False):
    """What is read of a pod to know what it asks for."""

    spec: RequestingSpec = RequestingSpec()


class Request(NamedTuple):
    """What a pod asks for while it has most; whole numbers from 0 to `amounts.MOST`."""

    cpu_milli: int = 0
    memory_bytes: int = 0


def effective(pod: RequestingPod) -> Request:
    """For each resource: what all containers that run together ask for, or one init container if that is more.

    Sidecars run together with the containers. Pod overhead does not count, as in the older system.
    """
    init = pod.spec.initContainers or ()
    sidecars = (one for one in init if one.restartPolicy == "Always")
    running = (*(pod.spec.containers or ()), *sidecars)
    return Request(*(_most(running, init, resource) for resource in ("cpu", "memory")))


def together(pod: RequestingPod, resource: str) -> int:
    """What the containers ask for, without those that initialise: CPU in milli, anything else in whole units."""
    return _sum(pod.spec.containers or (), resource)


def _most(running: Iterable[RequestingContainer], init: Iterable[RequestingContainer], resource: str) -> int:
    return max(_sum(running, resource), *(_sum((one,), resource) for one in init), 0)


def _sum(containers: Iterable[RequestingContainer], resource: str) -> int:
    read = amounts.milli if resource == "cpu" else amounts.units
    asked = ((one.resources.requests or {}).get(resource) for one in containers if one.resources)
    return min(sum(map(read, asked)), MOST)
