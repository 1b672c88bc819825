"""Resource requests of pods and allocatable resources of nodes, calculated as in kube-scheduler.

Amounts are whole numbers: `cpu` in milli-cores, everything else in units (bytes, pieces); fractions are
rounded up after all sums. Sources: k8s.io/component-helpers v0.36.3 resource/helpers.go (PodRequests), and the
API server's defaults, kubernetes v1.36.3 pkg/apis/core/v1/defaults.go (a limit replaces a missing request).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodewise import quantity
from nodewise.errors import BadInput, Problem, shown

Amounts = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

_MILLI: Final = quantity.NANO // 1000

_AS_SCORED: Final[Amounts] = {CPU: 100 * _MILLI, MEMORY: 200 * 2**20 * quantity.NANO}
"""Requests that scores assume for containers without CPU or memory requests, in nano-units."""


def allocatable(status: Mapping[str, Any]) -> Amounts:
    """Allocatable resources of a node; its capacity if it reports none."""
    field = "allocatable" if status.get("allocatable") else "capacity"
    return _round_up_to_units(_parse_quantities(status.get(field), f"status.{field}"))


def requests_that_must_fit(spec: Mapping[str, Any]) -> Amounts:
    """Requests that must fit: the sum of all containers, or the peak of the init containers if that is larger."""
    return _round_up_to_units(_pod_requests(spec, {}))


def scored(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Requests of a bound pod for scores: milli-cores and bytes, with defaults for containers without requests."""
    amounts = _round_up_to_units(_pod_requests(spec, _AS_SCORED))
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


def container_requests_for_scoring(spec: Mapping[str, Any]) -> tuple[int, int]:
    """Requests of an unplaced pod for LeastAllocated, which ignores pod-level requests.

    Observed with kube-scheduler 1.36.3.
    """
    return scored({**spec, "resources": None})


def add_amounts(left: Amounts, right: Amounts) -> dict[str, int]:
    """Sum of two sets of amounts."""
    return dict(left) | {name: left.get(name, 0) + amount for name, amount in right.items()}


def _pod_requests(spec: Mapping[str, Any], if_missing: Amounts) -> Amounts:
    total: Amounts = {}
    for container, field in _container_list_requests(spec, "containers"):
        total = add_amounts(total, _container_requests(container, field, if_missing))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, field in _container_list_requests(spec, "initContainers"):
        own = _container_requests(container, field, if_missing)
        if container.get("restartPolicy") == "Always":
            total, sidecars = add_amounts(total, own), add_amounts(sidecars, own)
            peak = _elementwise_maximum(peak, sidecars)
        else:
            peak = _elementwise_maximum(peak, add_amounts(own, sidecars))
    total = _elementwise_maximum(total, peak)
    overhead = _parse_quantities(spec.get("overhead"), "spec.overhead")
    return add_amounts({**total, **_pod_level_requests(spec, total)}, overhead)


def _container_list_requests(spec: Mapping[str, Any], key: str) -> Sequence[tuple[Mapping[str, Any], str]]:
    return [(container, f"spec.{key}[{index}]") for index, container in enumerate(spec.get(key) or ())]


def _container_requests(container: Mapping[str, Any], field: str, if_missing: Amounts) -> Amounts:
    resources = container.get("resources") or {}
    limits = _parse_quantities(resources.get("limits"), f"{field}.resources.limits")
    requests = _parse_quantities(resources.get("requests"), f"{field}.resources.requests")
    return {**if_missing, **limits, **requests}


def _pod_level_requests(spec: Mapping[str, Any], containers: Amounts) -> Amounts:
    """Pod-level requests override those of containers; pod-level limits apply only to resources without either."""
    resources = spec.get("resources") or {}
    requests = _parse_quantities(resources.get("requests"), "spec.resources.requests")
    limits = _parse_quantities(resources.get("limits"), "spec.resources.limits")
    defaults = {name: amount for name, amount in limits.items() if name not in containers}
    return {name: amount for name, amount in {**defaults, **requests}.items() if _is_pod_level_resource(name)}


def _is_pod_level_resource(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def _elementwise_maximum(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


def _parse_quantities(amounts: Mapping[str, Any] | None, field: str) -> Amounts:
    """Nano-units by resource; BadInput names the field with an invalid quantity."""
    return {name: _parse_quantity(value, f"{field}.{name}") for name, value in (amounts or {}).items()}


def _parse_quantity(value: Any, field: str) -> int:
    try:
        return quantity.parse(str(value))
    except ValueError:
        problem = Problem(field, shown(value), quantity.EXPECTED)
        raise BadInput("an object of the cluster cannot be read", [problem]) from None


def _round_up_to_units(nano: Amounts) -> Amounts:
    return {name: -(-amount // (_MILLI if name == CPU else quantity.NANO)) for name, amount in nano.items()}
