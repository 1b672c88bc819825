"""The requests of pods. The fields have the shapes that other agents declare of them
(`kube.struct_type_merge.merge`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.statistics import integer_quantities
from nodewise.statistics.integer_quantities import MAX_AMOUNT, Quantity

COMPLETED_PHASES: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold no resources."""
HOLDING_SELECTORS: Final[Mapping[str, str]] = {
    "fieldSelector": ",".join(
        ["spec.nodeName!=", *(f"status.phase!={phase}" for phase in sorted(COMPLETED_PHASES))]
    )
}
"""Selects the pods at the API server that hold their requests of a node."""


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
    """The fields of a pod that tell its requests."""

    spec: RequestingSpec = RequestingSpec()


class HoldingSpec(RequestingSpec, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class HoldingStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class PodRequest(NamedTuple):
    """The effective request of a pod in whole numbers from 0 to `integer_quantities.MAX_AMOUNT`."""

    cpu_milli: int = 0
    memory_bytes: int = 0


def holds_requests(pod: Any) -> bool:
    """Whether the pod holds its requests of a node: it is bound and not completed.

    The API server selects such pods already; objects that are read from files are not selected.
    """
    return bool(pod.spec.nodeName) and pod.status.phase not in COMPLETED_PHASES


def effective_request(pod: RequestingPod) -> PodRequest:
    """For each resource, the sum of the containers that run together, or an init container's request if it is greater.

    Sidecars run together with the containers. Pod overhead does not count, as in the older system.
    """
    init = pod.spec.initContainers or ()
    sidecars = (container for container in init if container.restartPolicy == "Always")
    running = (*(pod.spec.containers or ()), *sidecars)
    return PodRequest(*(_effective_amount(running, init, resource) for resource in ("cpu", "memory")))


def sum_of_container_requests(pod: RequestingPod, resource: str) -> int:
    """The sum of the containers without init containers: CPU in milli-CPU, other resources in whole units."""
    return _sum_of_requests(pod.spec.containers or (), resource)


def _effective_amount(
    running: Iterable[RequestingContainer], init: Iterable[RequestingContainer], resource: str
) -> int:
    return max(
        _sum_of_requests(running, resource),
        *(_sum_of_requests((container,), resource) for container in init),
        0,
    )


def _sum_of_requests(containers: Iterable[RequestingContainer], resource: str) -> int:
    read = integer_quantities.milli if resource == "cpu" else integer_quantities.units
    quantities = (
        (container.resources.requests or {}).get(resource) for container in containers if container.resources
    )
    return min(sum(map(read, quantities)), MAX_AMOUNT)
