"""Nodes and pods with the fields that the scheduler reads.

They are immutable: a change creates a new one. `obj` is the whole object for extenders; it is sent as in
kube-scheduler, without kind, version and managed fields.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import msgspec

from nodewise.base import clock
from nodewise.base.errors import BadInput, Problem, shown
from nodewise.scheduling_model import resource_requests
from nodewise.scheduling_model.resource_requests import Amounts

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
    """A pod. `node` is its node, `nominated` its nominated node; both are empty for none.

    `requests` must fit; `scored` are the milli-cores and bytes for scores. `started_s` is Unix time, infinite for a pod
    that has not started; `grace_s` is its termination grace period.
    """

    namespace: str
    name: str
    uid: str
    priority: int
    requests: Amounts
    scored: tuple[int, int]
    node: str
    nominated: str
    started_s: float
    grace_s: float
    is_leaving: bool
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
        allocatable=resource_requests.allocatable(obj.get("status") or {}),
        obj=obj,
    )


def pod(obj: Object) -> Pod:
    """Decode a Pod; BadInput if it is invalid."""
    metadata, spec, status = obj.get("metadata") or {}, obj.get("spec") or {}, obj.get("status") or {}
    return Pod(
        namespace=metadata.get("namespace") or "default",
        name=_object_name(obj, "Pod"),
        uid=metadata.get("uid") or "",
        priority=_parse_priority(spec),
        requests=resource_requests.requests_that_must_fit(obj),
        scored=resource_requests.scored(obj),
        node=spec.get("nodeName") or "",
        nominated=status.get("nominatedNodeName") or "",
        started_s=_parse_start_time_s(status.get("startTime")),
        grace_s=float(spec.get("terminationGracePeriodSeconds", 30)),
        is_leaving="deletionTimestamp" in metadata,
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
    return replace(pod, node=node_name, nominated="", started_s=now_s, obj=obj)


def rejected(pod: Pod, reason: str, message: str, nominated: str) -> Pod:
    """The pod with the condition PodScheduled=False in its status."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    status: Object = {"phase": "Pending", "conditions": [condition]}
    if nominated:
        status["nominatedNodeName"] = nominated
    return replace(pod, nominated=nominated, obj={**pod.obj, "status": status})


def pod_with_deletion_timestamp(pod: Pod, end_s: float) -> Pod:
    """The pod with a deletion timestamp (Unix time)."""
    metadata = {**pod.obj["metadata"], "deletionTimestamp": clock.format_rfc3339(end_s)}
    return replace(pod, is_leaving=True, obj={**pod.obj, "metadata": metadata})


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


def _parse_start_time_s(timestamp: object) -> float:
    try:
        return clock.parse_rfc3339(str(timestamp)) if timestamp else math.inf
    except ValueError:
        problem = Problem("status.startTime", shown(timestamp), "a time such as 2026-11-21T00:43:47Z")
        raise BadInput("a Pod cannot be read", [problem]) from None


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
