"""The CPU of nodes that no pod requests: a pod can use the free GPUs of a node only with some CPU.

Pods without GPUs use CPU as well. There are many of them, so only their CPU is kept, and a change recomputes only the
nodes that it concerns.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import gpu_pod_fields, node_allocations
from nodewise.agents.gpu.gpu_pod_fields import (
    AllocatedMetadata,
    AllocatedPod,
    cpu_milli,
)
from nodewise.agents.gpu.node_allocations import NodeAllocations, PodIndex
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE
from nodewise.kube.pod_requests import HoldingSpec, RequestedResources, RequestingContainer

Cpu = NDArray[np.int64]

UNLIMITED: Final = 2**61
"""The milli-CPU of a node without allocatable CPU."""
_STRIDE: Final = 512
"""Nodes per part of the work."""


def keep_gpu_pod(pod: AllocatedPod) -> AllocatedPod | None:
    """Keep only pods that may hold GPUs, without the fields that are not for GPUs."""
    return gpu_pod_fields.reduce_gpu_pod(pod) if node_allocations.may_hold_gpus(pod) else None


def reduce_non_gpu_pod_to_cpu(pod: AllocatedPod) -> AllocatedPod | None:
    """Keep pods that may hold GPUs; of other pods on a node only the CPU that they take."""
    if node_allocations.may_hold_gpus(pod):
        return gpu_pod_fields.reduce_gpu_pod(pod)
    milli, metadata = cpu_milli_on_node(pod), pod.metadata
    if not milli:
        return None
    return AllocatedPod(
        metadata=AllocatedMetadata(
            name=metadata.name,
            namespace=sys.intern(metadata.namespace),
            uid=metadata.uid,
            resourceVersion=metadata.resourceVersion,
        ),
        spec=HoldingSpec(
            nodeName=sys.intern(pod.spec.nodeName), containers=_containers_with_cpu_request(milli)
        ),
    )


@lru_cache(1024)
def _containers_with_cpu_request(milli: int) -> tuple[RequestingContainer, ...]:
    """The same object for all pods with this request."""
    return (RequestingContainer(resources=RequestedResources(requests={"cpu": f"{milli}m"})),)


def cpu_milli_on_node(pod: AllocatedPod) -> int:
    """The milli-CPU that a pod takes on its node."""
    return cpu_milli(pod, pod.status) if pod.spec.nodeName and not node_allocations.has_ended(pod) else 0


def cpu_of_gpu_pods(allocations: NodeAllocations, bound: Iterable[AllocatedPod], pods: PodIndex) -> int:
    """The milli-CPU of pods with GPUs on a node, including those with a reservation that are not bound yet."""
    return sum(map(cpu_milli_on_node, bound)) + sum(
        cpu_milli(pod)
        for uid, allocation in allocations.by_uid.items()
        if allocation.source == "ledger" and (pod := pods.by_key.get(allocation.key)) is not None
        if pod.metadata.uid == uid and not pod.spec.nodeName
    )


class _Allocatable(msgspec.Struct, frozen=True):
    cpu: str | int | float | None = None


def allocatable_cpu(node: GpuNode) -> int:
    """The allocatable milli-CPU of a node."""
    try:
        resources = msgspec.json.decode(node.status.allocatable, type=_Allocatable | None)
        cpu = resources.cpu if resources is not None else None
        return UNLIMITED if cpu is None else _parse_allocatable_milli(str(cpu))
    except UNREADABLE:
        return UNLIMITED


@lru_cache
def _parse_allocatable_milli(text: str) -> int:
    try:
        return min(max(quantity.parse(text) * 1000 // quantity.NANO, 0), UNLIMITED)
    except ValueError:
        return UNLIMITED


class FreeCpu:
    """The allocatable CPU of nodes and the CPU of pods without GPUs, kept up to date by changes."""

    def __init__(self) -> None:
        self._allocatable: dict[str, int] = {}
        self._plain: dict[str, int] = {}
        """By node, the milli-CPU of pods without GPUs."""
        self._moved: set[str] = set()
        self._rows: Mapping[str, int] = {}
        self._free: Cpu = np.full(1, UNLIMITED, np.int64)

    def node(self, name: str, node: GpuNode | None) -> None:
        """Apply a changed node; None if it was deleted."""
        if node is None:
            self._allocatable.pop(name, None)
        else:
            self._allocatable[name] = allocatable_cpu(node)
        self._moved.add(name)

    def apply_pod_change(self, old: AllocatedPod | None, new: AllocatedPod | None) -> None:
        """Apply a changed pod without GPUs; None if it is new or was deleted."""
        for pod, sign in ((old, -1), (new, 1)):
            milli = cpu_milli_on_node(pod) if pod is not None else 0
            if pod is not None and milli:
                node = pod.spec.nodeName
                self._plain[node] = self._plain.get(node, 0) + sign * milli
                if not self._plain[node]:
                    del self._plain[node]
                self._moved.add(node)

    def mark_node_changed(self, name: str) -> None:
        """Mark a node whose pods with GPUs may have changed."""
        self._moved.add(name)

    def free(self, rows: Mapping[str, int], held: Callable[[str], int]) -> Generator[None, None, Cpu]:
        """(N+1): the free milli-CPU by column of the layout.

        `rows` are the columns by node name, and `held` returns the CPU of pods with GPUs.
        """
        moved: Iterable[str] = self._moved & rows.keys()
        if rows is not self._rows:
            self._rows, self._free, moved = rows, np.full(len(rows) + 1, UNLIMITED, np.int64), rows
        elif moved:
            self._free = self._free.copy()
        for number, name in enumerate(moved):
            left = self._allocatable.get(name, UNLIMITED) - self._plain.get(name, 0)
            self._free[rows[name]] = left - held(name)
            if number % _STRIDE == 0:
                yield
        self._moved.clear()
        return self._free
