"""What pods ask for and what nodes have, as kube-scheduler counts it.

Amounts are whole numbers: `cpu` in milli-cores, everything else in units (bytes, pieces); what is finer is
rounded up, after all sums. Sources: k8s.io/component-helpers v0.36.3 resource/helpers.go (PodRequests), and the
API server's defaults, kubernetes v1.36.3 pkg/apis/core/v1/defaults.go (a limit stands for a missing request).
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
"""Scores count a container that asks for no processor or no memory as if it asked for this; in nano-units."""


def allocatable(status: Mapping[str, Any]) -> Amounts:
    """What pods may use of a node; all of its capacity where the node does not say."""
    field = "allocatable" if status.get("allocatable") else "capacity"
    return _rounded(_quantities(status.get(field), f"status.{field}"))


def requested(spec: Mapping[str, Any]) -> Amounts:
    """What a pod needs to fit: all its containers together, or its hungriest moment while it starts."""
    return _rounded(_pod(spec, {}))


def scored(spec: Mapping[str, Any]) -> tuple[int, int]:
    """What a pod on a node weighs in scores: milli-cores and bytes, of which no container has none."""
    amounts = _rounded(_pod(spec, _AS_SCORED))
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


def scored_by_containers(spec: Mapping[str, Any]) -> tuple[int, int]:
    """What a pod that is not placed yet weighs in LeastAllocated, which overlooks requests of the pod as a whole.

    Seen on kube-scheduler 1.36.3.
    """
    return scored({**spec, "resources": None})


def plus(left: Amounts, right: Amounts) -> dict[str, int]:
    """Both together."""
    return dict(left) | {name: left.get(name, 0) + amount for name, amount in right.items()}


def _pod(spec: Mapping[str, Any], if_missing: Amounts) -> Amounts:
    total: Amounts = {}
    for container, field in _listed(spec, "containers"):
        total = plus(total, _container(container, field, if_missing))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, field in _listed(spec, "initContainers"):
        own = _container(container, field, if_missing)
        if container.get("restartPolicy") == "Always":
            total, sidecars = plus(total, own), plus(sidecars, own)
            peak = _larger(peak, sidecars)
        else:
            peak = _larger(peak, plus(own, sidecars))
    total = _larger(total, peak)
    overhead = _quantities(spec.get("overhead"), "spec.overhead")
    return plus({**total, **_pod_level(spec, total)}, overhead)


def _listed(spec: Mapping[str, Any], key: str) -> Sequence[tuple[Mapping[str, Any], str]]:
    return [(container, f"spec.{key}[{index}]") for index, container in enumerate(spec.get(key) or ())]


def _container(container: Mapping[str, Any], field: str, if_missing: Amounts) -> Amounts:
    wanted = container.get("resources") or {}
    limits = _quantities(wanted.get("limits"), f"{field}.resources.limits")
    requests = _quantities(wanted.get("requests"), f"{field}.resources.requests")
    return {**if_missing, **limits, **requests}


def _pod_level(spec: Mapping[str, Any], containers: Amounts) -> Amounts:
    """Requests of the pod as a whole stand above those of its containers; its limits only where both are silent."""
    wanted = spec.get("resources") or {}
    requests = _quantities(wanted.get("requests"), "spec.resources.requests")
    limits = _quantities(wanted.get("limits"), "spec.resources.limits")
    silent = {name: amount for name, amount in limits.items() if name not in containers}
    return {name: amount for name, amount in {**silent, **requests}.items() if _is_pod_level(name)}


def _is_pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def _larger(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


def _quantities(amounts: Mapping[str, Any] | None, field: str) -> Amounts:
    """Nano-units by resource; BadInput names the field that is no quantity."""
    return {name: _quantity(value, f"{field}.{name}") for name, value in (amounts or {}).items()}


def _quantity(value: Any, field: str) -> int:
    try:
        return quantity.parse(str(value))
    except ValueError:
        problem = Problem(field, shown(value), quantity.WANTED)
        raise BadInput("an object of the cluster cannot be read", [problem]) from None


def _rounded(nano: Amounts) -> Amounts:
    return {name: -(-amount // (_MILLI if name == CPU else quantity.NANO)) for name, amount in nano.items()}
