"""Nodes and pods with the fields that the scheduler reads, their resources, and nodes with their pods.

They are immutable: a change creates a new one. `obj` is the whole object for extenders; it is sent as in
kube-scheduler, without kind, version and managed fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import clock, quantity
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
    return spec, status if spec.nodeName else None, pod_requests.named_resources(spec, status)


def _nano_requests(
    spec: RequestingSpec,
    status: ResizeStatus | None,
    names: Sequence[str],
    if_missing: Amounts = MappingProxyType({}),
) -> Amounts:
    amounts = pod_requests.nano_requests(spec, names, status, if_missing)
    return {name: amount for name, amount in zip(names, amounts, strict=True) if amount}


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


Object = dict[str, Any]
"""An object as decoded JSON."""

_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""The two built-in priority classes."""

_NOT_SENT: Final = ("apiVersion", "kind")


class Taint(msgspec.Struct, frozen=True):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True)
class Node:
    """A node. `is_cordoned` is `spec.unschedulable`."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_cordoned: bool
    allocatable: Amounts
    obj: Object

    @cached_property
    def raw(self) -> msgspec.Raw:
        """The object as it is sent to extenders."""
        return _encode_for_extender(self.obj)


@dataclass(frozen=True)
class Pod:
    """A pod. `node` is empty for a pod without a node.

    `requests` must fit; `scored` are the milli-cores and bytes for scores.
    """

    namespace: str
    name: str
    uid: str
    priority: int
    requests: Amounts
    scored: tuple[int, int]
    node: str
    obj: Object

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.obj.get("spec") or {}
        return spec

    @cached_property
    def raw(self) -> msgspec.Raw:
        """The object as it is sent to extenders."""
        return _encode_for_extender(self.obj)


def node(obj: Object) -> Node:
    """Decode a Node; BadInput if it is invalid."""
    spec, metadata = obj.get("spec") or {}, obj.get("metadata") or {}
    return Node(
        name=_object_name(obj, "Node"),
        labels=metadata.get("labels") or {},
        taints=_parse_taints(spec.get("taints") or []),
        is_cordoned=bool(spec.get("unschedulable")),
        allocatable=allocatable(obj.get("status") or {}),
        obj=obj,
    )


def pod(obj: Object) -> Pod:
    """Decode a Pod; BadInput if it is invalid."""
    metadata, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    return Pod(
        namespace=metadata.get("namespace") or "default",
        name=_object_name(obj, "Pod"),
        uid=metadata.get("uid") or "",
        priority=_parse_priority(spec),
        requests=requests_that_must_fit(obj),
        scored=scored(obj),
        node=spec.get("nodeName") or "",
        obj=obj,
    )


def pod_as_stored(pod: Pod, uid: str, created_s: float) -> Pod:
    """The pod as the API server stores it: with namespace, uid and creation time (Unix time)."""
    defaults = {"namespace": pod.namespace, "creationTimestamp": clock.format_rfc3339(created_s)}
    metadata = {**defaults, "uid": pod.uid or uid, **pod.obj["metadata"]}
    return replace(pod, uid=metadata["uid"], obj={**pod.obj, "metadata": metadata})


def bound(pod: Pod, node_name: str, now_s: float) -> Pod:
    """The pod bound to a node and running since `now_s` (Unix time)."""
    condition = {"type": "PodScheduled", "status": "True"}
    status = {"phase": "Running", "conditions": [condition], "startTime": clock.format_rfc3339(now_s)}
    obj = {**pod.obj, "spec": {**pod.spec, "nodeName": node_name}, "status": status}
    return replace(pod, node=node_name, obj=obj)


def rejected(pod: Pod, reason: str, message: str) -> Pod:
    """The pod with the condition PodScheduled=False in its status."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return replace(pod, obj={**pod.obj, "status": {"phase": "Pending", "conditions": [condition]}})


def has_ended(obj: Object) -> bool:
    """Whether a pod has ended and released its resources."""
    return (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _encode_for_extender(obj: Object) -> msgspec.Raw:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    kept = {key: value for key, value in obj.items() if key not in _NOT_SENT}
    return msgspec.Raw(msgspec.json.encode({**kept, "metadata": metadata}))


def _object_name(obj: Object, kind: str) -> str:
    name = (obj.get("metadata") or {}).get("name")
    if isinstance(name, str) and name:
        return name
    raise BadInput(f"a {kind} cannot be read", [Problem("metadata.name", shown(name), "a name")])


def _parse_taints(taints: object) -> tuple[Taint, ...]:
    try:
        return msgspec.convert(taints, tuple[Taint, ...])
    except msgspec.ValidationError as error:
        problem = Problem("spec.taints", str(error), "taints with key and effect")
        raise BadInput("a Node cannot be read", [problem]) from None


def _parse_priority(spec: Mapping[str, Any]) -> int:
    named_class = spec.get("priorityClassName")
    priority = spec.get("priority", _SYSTEM_PRIORITIES.get(str(named_class), None if named_class else 0))
    if isinstance(priority, int):
        return priority
    problem = Problem("spec.priority", shown(priority), f"the number of the class {named_class!r} as well")
    raise BadInput("a Pod cannot be read", [problem], remedy="objects of kind PriorityClass are not read")


_NOTHING: Final[Amounts] = MappingProxyType({})


class NodeInfo(NamedTuple):
    """`requested` and `scored` (milli-cores, bytes) are the sums over `pods`."""

    node: Node
    pods: tuple[Pod, ...] = ()
    requested: Amounts = _NOTHING
    scored: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return self.node.name

    def with_additional_pods(self, *pods: Pod) -> "NodeInfo":
        """Return a copy with additional pods."""
        requested, (cpu, memory) = self.requested, self.scored
        for pod in pods:
            requested = add_amounts(requested, pod.requests)
            cpu, memory = cpu + pod.scored[0], memory + pod.scored[1]
        return self._replace(pods=(*self.pods, *pods), requested=requested, scored=(cpu, memory))

    def without(self, *pods: Pod) -> "NodeInfo":
        """Return a copy without these pods."""
        gone = {pod.key for pod in pods}
        return node_info_with_pods(self.node, [pod for pod in self.pods if pod.key not in gone])


def node_info_with_pods(node: Node, pods: Sequence[Pod]) -> NodeInfo:
    """Create the NodeInfo of a node with pods."""
    return NodeInfo(node).with_additional_pods(*pods)
