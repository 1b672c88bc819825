"""Resource requests of pods and allocatable resources of nodes, calculated as in kube-scheduler.

Amounts are whole numbers: `cpu` in milli-cores, everything else in units (bytes, pieces); fractions are
rounded up after all sums. `statistics.pod_requests` has the rules; this module checks quantities, as it reads files.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from nodewise.base import quantity
from nodewise.base.errors import BadInput, Problem, shown
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, RequestedResources, RequestingSpec, ResizeStatus

Amounts = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

_MILLI: Final = quantity.NANO // 1000

_UNREADABLE: Final = "an object of the cluster cannot be read"


class _SimulatedPod(msgspec.Struct, frozen=True, gc=False):
    spec: HoldingSpec = HoldingSpec()
    status: ResizeStatus = ResizeStatus()


_AS_SCORED: Final[Amounts] = {CPU: 100 * _MILLI, MEMORY: 200 * 2**20 * quantity.NANO}
"""Requests that scores assume for containers without CPU or memory requests, in nano-units."""


def allocatable(status: Mapping[str, Any]) -> Amounts:
    """Allocatable resources of a node; its capacity if it reports none."""
    field = "allocatable" if status.get("allocatable") else "capacity"
    return _round_up_to_units(_parse_quantities(status.get(field), f"status.{field}"))


def requests_that_must_fit(pod: Mapping[str, Any]) -> Amounts:
    """Requests of a pod that must fit; those of a pod on a node respect a resize. BadInput names an invalid field."""
    spec, status, names = _parse_pod(pod)
    return _round_up_to_units(_nano_requests(spec, status, names))


def scored(pod: Mapping[str, Any]) -> tuple[int, int]:
    """Requests of a bound pod for scores: milli-cores and bytes, with defaults for containers without requests.

    If the pod itself has requests, only a resource that neither it nor any container requests has a default.
    """
    spec, status, names = _parse_pod(pod)
    defaults = _AS_SCORED
    if any(map(pod_requests.is_pod_level_resource, (spec.resources and spec.resources.requests) or ())):
        defaults = {name: amount for name, amount in _AS_SCORED.items() if name not in names}
    amounts = _round_up_to_units(_nano_requests(spec, status, tuple(_AS_SCORED), defaults))
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


def container_requests_for_scoring(pod: Mapping[str, Any]) -> tuple[int, int]:
    """Requests of an unplaced pod for LeastAllocated, which ignores pod-level requests.

    Observed with kube-scheduler 1.36.3; the same in kubernetes v1.37.2
    pkg/scheduler/framework/plugins/noderesources/fit.go.
    """
    return scored({**pod, "spec": {**(pod.get("spec") or {}), "resources": None}})


def add_amounts(left: Amounts, right: Amounts) -> dict[str, int]:
    """Sum of two sets of amounts."""
    return dict(left) | {name: left.get(name, 0) + amount for name, amount in right.items()}


def _parse_pod(pod: Mapping[str, Any]) -> tuple[RequestingSpec, ResizeStatus | None, tuple[str, ...]]:
    """The fields of a pod that tell its requests, and the resources that they name.

    The status counts for a pod on a node. BadInput for an invalid quantity, with its field, or another shape.
    """
    try:
        parsed = msgspec.convert(
            {"spec": pod.get("spec") or {}, "status": pod.get("status") or {}}, _SimulatedPod
        )
    except msgspec.ValidationError as error:
        problem = Problem("spec and status", str(error), "a Pod as the API server returns it")
        raise BadInput(_UNREADABLE, [problem]) from None
    spec, status = parsed.spec, parsed.status
    _check_quantities(spec, status)
    return spec, status if spec.nodeName else None, pod_requests.named_resources(spec, status)


def _nano_requests(
    spec: RequestingSpec,
    status: ResizeStatus | None,
    names: Sequence[str],
    if_missing: Amounts = MappingProxyType({}),
) -> Amounts:
    amounts = pod_requests.nano_requests(spec, names, status, if_missing)
    return {name: amount for name, amount in zip(names, amounts, strict=True) if amount}


def _check_quantities(spec: RequestingSpec, status: ResizeStatus) -> None:
    for key in ("containers", "initContainers"):
        for index, container in enumerate(getattr(spec, key) or ()):
            _check_resources(container.resources, f"spec.{key}[{index}].resources")
    for key in ("containerStatuses", "initContainerStatuses"):
        for index, container in enumerate(getattr(status, key) or ()):
            _check_resources(container.resources, f"status.{key}[{index}].resources")
            _parse_quantities(container.allocatedResources, f"status.{key}[{index}].allocatedResources")
    _check_resources(spec.resources, "spec.resources")
    _check_resources(status.resources, "status.resources")
    _parse_quantities(status.allocatedResources, "status.allocatedResources")
    _parse_quantities(spec.overhead, "spec.overhead")


def _check_resources(resources: RequestedResources | None, field: str) -> None:
    if resources is not None:
        _parse_quantities(resources.requests, f"{field}.requests")
        _parse_quantities(resources.limits, f"{field}.limits")


def _parse_quantities(amounts: Mapping[str, Any] | None, field: str) -> Amounts:
    """Nano-units by resource; BadInput names the field with an invalid quantity."""
    return {name: _parse_quantity(value, f"{field}.{name}") for name, value in (amounts or {}).items()}


def _parse_quantity(value: Any, field: str) -> int:
    try:
        return quantity.parse(str(value))
    except ValueError:
        problem = Problem(field, shown(value), quantity.EXPECTED)
        raise BadInput(_UNREADABLE, [problem]) from None


def _round_up_to_units(nano: Amounts) -> Amounts:
    return {name: -(-amount // (_MILLI if name == CPU else quantity.NANO)) for name, amount in nano.items()}
