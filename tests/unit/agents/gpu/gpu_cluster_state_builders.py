"""Nodes, pods, allocation records and cluster states in short notation."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agent.bind_plugin_interface import RESERVATIONS_ANNOTATION, AllocationRecordLease
from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_allocations import GPUS, SUBDEVICES
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, PODS, GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from tests.unit.incremental_agent_states import built

PREFIX = "gpu.intel.com/"
SHORT = {"mc": "millicores", "mem": "memory.max", "t": "tiles", "mon": "i915_monitoring"}
ONE = "i915=1 mc=100"


def amounts(text: str) -> dict[str, int]:
    """Parse amounts such as `i915=1 mc=100`, with the full resource names as keys."""
    pairs = (part.split("=") for part in text.split())
    return {PREFIX + SHORT.get(name, name): int(value) for name, value in pairs}


def node(
    allocatable: str = "i915=4 mc=2000", numbers: str = "0.1", *, cpu: str = "", **labels: str
) -> GpuNode:
    metadata = {"labels": {f"{PREFIX}gpu-numbers": numbers, **labels}}
    allocatable_quantities = {name: str(amount) for name, amount in amounts(allocatable).items()}
    allocatable_quantities |= {"cpu": cpu} if cpu else {}
    return decode(GpuNode, {"metadata": metadata, "status": {"allocatable": allocatable_quantities}})


def pod(
    name: str,
    on: str = "",
    gpus: str | None = None,
    requests: Iterable[str] = (ONE,),
    *,
    subdevices: str | None = None,
    uid: str = "",
    phase: str = "Running",
    cpu: str = "",
) -> AllocatedPod:
    """A pod with a container per entry of `requests`. Each container also requests `cpu`."""
    notes = {key: value for key, value in {GPUS: gpus, SUBDEVICES: subdevices}.items() if value is not None}
    containers = [
        {"name": f"c{number}", "resources": {"requests": amounts(text) | ({"cpu": cpu} if cpu else {})}}
        for number, text in enumerate(requests)
    ]
    metadata = {"name": name, "namespace": "d", "uid": uid or f"uid-{name}", "annotations": notes}
    spec = {"nodeName": on, "containers": containers}
    return decode(AllocatedPod, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def entry(
    name: str, gpus: str, seen: str = "5", charged: Iterable[str] = (ONE,), subdevices: str = ""
) -> Reservation:
    return Reservation(f"d/{name}", gpus, subdevices, 7.0, seen, tuple(amounts(text) for text in charged))


def lease(on: str, version: str = "1", **entries: Reservation | Any) -> AllocationRecordLease:
    """A Lease with entries by pod uid; values other than reservations are used unchanged."""
    plain = {
        uid.replace("_", "-"): dict(allocation_record.reservation_to_json(reservation))
        if isinstance(reservation, Reservation)
        else reservation
        for uid, reservation in entries.items()
    }
    return lease_of(on, json.dumps(plain), version)


def lease_of(on: str, text: str, version: str = "1") -> AllocationRecordLease:
    metadata = {"name": f"gpu-{on}", "namespace": "nw", "resourceVersion": version}
    return decode(
        AllocationRecordLease, {"metadata": {**metadata, "annotations": {RESERVATIONS_ANNOTATION: text}}}
    )


def decode(type_: type[Any], value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type_)


def cluster_state(
    nodes: Mapping[str, GpuNode],
    pods: Iterable[AllocatedPod] = (),
    leases: Iterable[AllocationRecordLease] = (),
    version: str = "10",
    index: NodeIndex | None = None,
) -> ClusterState:
    objects: dict[str, Any] = {
        PODS: {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods},
        ALLOCATION_RECORDS: {(lease.metadata.namespace, lease.metadata.name): lease for lease in leases},
    }
    by_key = {("", name): node for name, node in nodes.items()}
    return ClusterState(
        index or NodeIndex(nodes),
        objects,
        MetricsSnapshot(),
        0.0,
        by_key,
        {PODS: version, ALLOCATION_RECORDS: version},
    )


def agent_state(cluster: ClusterState, state: GpuStateBuilder | None = None) -> GpuState:
    gpu_state: GpuState = built(state or GpuStateBuilder(INTEL), cluster)
    return gpu_state


def charged_amounts(gpu_state: GpuState, on: str = "n1") -> dict[str, dict[str, int]]:
    """The allocated amounts of each GPU of a node. Resource names have no prefix."""
    allocations = gpu_state.nodes[on].allocations
    return {
        gpu: {name.removeprefix(PREFIX): amount for name, amount in held.items()}
        for gpu, held in allocations.amounts.items()
    }


def cpu_free(gpu_state: GpuState) -> dict[str, int]:
    """The free CPU of each node with GPUs."""
    assert gpu_state.cpu_free is not None
    return {name: int(gpu_state.cpu_free[row]) for name, row in gpu_state.rows.items()}


def laid_out(gpu_state: GpuState) -> dict[str, Any]:
    """The free amounts of each GPU in the layout, for each node with GPUs."""
    layout = gpu_state.layout
    return {
        name: {
            gpu: {
                resource: int(layout.free[resource][place, row])
                for resource in sorted(layout.free)
                if layout.capacity[resource][place, row]
            }
            for place, gpu in enumerate(layout.gpus(row))
        }
        for name, row in gpu_state.rows.items()
    }
