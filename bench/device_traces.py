"""Replay of a published GPU trace with devices of DRA: nodes are ResourceSlices, and pods have ResourceClaims.

A GPU is a device that claims share by thousandths, and the accepted models are a CEL selector. kube-scheduler's part is
its allocator (`nodewise.devices.device_allocation`) and its scores for free CPU and memory, with all nodes scored; the
gpu agent scores nodes with a weight. Pods arrive one after another, and those that fit nowhere fail.
"""

import json
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from tests.cluster import device_objects
from tests.cluster.api_client import Object

from bench.gpu_traces import GPU_MILLI, Trace, TraceNode, TracePod
from nodewise.agent import ClusterState, Names, NodeIndex, ObjectKey, Snapshot
from nodewise.agent.state import Change
from nodewise.agents.gpu import device_placement
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.device_placement import MOST_STEPS_OF_COMMANDS, DevicePredictions
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod, RequestedGpuPod
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions, Placement
from nodewise.agents.gpu.state import PODS, GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import PROFILES
from nodewise.base import cooperative_scheduling
from nodewise.devices import device_allocation, device_inventory
from nodewise.devices.device_allocation import NotPredicted
from nodewise.devices.device_inventory import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import (
    AllocatedDevice,
    ClaimConsumer,
    DeviceClassObject,
    ResourceClaim,
    ResourceClaimObject,
    parse_device_class,
    parse_resource_claim,
)
from nodewise.devices.resource_slices import EMPTY, ResourceSliceObject, parse_resource_slice
from nodewise.metrics.metrics_snapshot import MetricsSnapshot

Strategy = Literal["LeastAllocated", "MostAllocated"]
ENTRY_WEIGHT: Final = 20
"""The weight of the extender's entry."""
_SCORE_FACTOR: Final = 10  # kube-scheduler multiplies an extender's scores by this and by the weight
_NAMESPACE: Final = "trace"


def slice_document(node: TraceNode) -> Object:
    """The ResourceSlice of a node."""
    policy = {"default": str(GPU_MILLI), "validRange": {"min": "1"}}
    capacity = {"milli": {"value": str(GPU_MILLI), "requestPolicy": policy}}
    devices = [
        device_objects.device(
            f"gpu-{number}",
            attributes={"model": node.model},
            capacity=capacity,
            allowMultipleAllocations=True,
        )
        for number in range(node.gpus)
    ]
    return device_objects.resource_slice(node.name, devices)


def claim_document(name: str, pod: TracePod) -> Object:
    """The ResourceClaim of a pod with GPUs."""
    models = f'device.attributes["{device_objects.DRIVER}"].model in {json.dumps([*pod.models])}'
    capacity = {"requests": {"milli": str(pod.gpu_milli)}}
    request = device_objects.request(
        "gpu", *([models] if pod.models else []), count=pod.gpus, capacity=capacity
    )
    return device_objects.claim(name, request)


def run(trace: Trace, pods: list[TracePod], strategy: Strategy, placement: Placement | None) -> float:
    """Place pods one after another; without a placement by kube-scheduler alone. Returns the allocated share of all
    GPUs in per cent.
    """
    cluster = _DeviceCluster(trace, strategy, placement)
    for number, pod in enumerate(pods):
        cluster.place(pod, f"pod-{number}")
    return 100 * cluster.allocated_milli / trace.gpus_milli


class _DeviceCluster:
    """Nodes, their free CPU and memory, and the agent's state."""

    def __init__(self, trace: Trace, strategy: Strategy, placement: Placement | None) -> None:
        profile = PROFILES["nvidia"]
        self._agent = None if placement is None else GpuAgent(GpuOptions(gpu_placement=placement), profile)
        self._strategy = strategy
        self._predictions = DevicePredictions()
        self._builder = GpuStateBuilder(profile)
        self._index = NodeIndex(node.name for node in trace.nodes)
        self._nodes = {
            ("", node.name): msgspec.convert(
                {"metadata": {}, "status": {"allocatable": msgspec.Raw(b'{"cpu":"%dm"}' % node.cpu_milli)}},
                GpuNode,
            )
            for node in trace.nodes
        }
        self._has = np.array([(node.cpu_milli, node.memory_mib) for node in trace.nodes], np.int64)
        self._free = self._has.copy()
        device_class = parse_device_class(msgspec.convert(device_objects.device_class(), DeviceClassObject))
        slices = [
            parse_resource_slice(msgspec.convert(slice_document(node), ResourceSliceObject))
            for node in trace.nodes
            if node.gpus
        ]
        self._objects: dict[str, dict[ObjectKey, Any]] = {
            DEVICE_CLASSES: {("", device_objects.DRIVER): device_class},
            RESOURCE_SLICES: {("", each.metadata.name): each for each in slices},
            RESOURCE_CLAIMS: {},
            PODS: {},
        }
        self._state = self._build(None)
        self.allocated_milli = 0

    def _build(self, changes: dict[str, dict[ObjectKey, Change[Any]]] | None) -> GpuState:
        cluster_state = ClusterState(
            self._index, self._objects, MetricsSnapshot(), 0.0, self._nodes, changes=changes
        )
        state: GpuState = cooperative_scheduling.run_without_pauses(self._builder.build(cluster_state))
        return state

    def place(self, pod: TracePod, name: str) -> None:
        """Place a pod for the rest of the run if it fits."""
        wanted, claim = np.array([pod.cpu_milli, pod.memory_mib]), None
        candidates = np.flatnonzero((self._free >= wanted).all(axis=1))
        requests = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
        spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
        if pod.gpus:
            spec["resourceClaims"] = [{"name": name, "resourceClaimName": name}]
        document = {"metadata": {"name": name, "namespace": _NAMESPACE, "uid": name}, "spec": spec}
        requested = msgspec.convert(document, RequestedGpuPod)
        if pod.gpus:
            claim = parse_resource_claim(msgspec.convert(claim_document(name, pod), ResourceClaimObject))
            self._objects[RESOURCE_CLAIMS][_NAMESPACE, name] = claim
            demand = device_placement.DeviceDemand((claim,))
            layout = self._state.device_layout
            columns = layout.layout.rows[candidates]
            classes = self._state.device_classes
            scored = self._predictions.score(layout, classes, demand, columns, MOST_STEPS_OF_COMMANDS)
            candidates = candidates[scored.fits]
        if not len(candidates):
            return
        scores = self._scores(wanted, candidates)
        if self._agent is not None:
            snapshot = Snapshot(self._index, {GpuAgent.name: self._state}, 0.0)
            own = self._agent.score(requested, Names(self._index, candidates), snapshot)
            if own is not None:
                scores += own.points * ENTRY_WEIGHT * _SCORE_FACTOR
        node = int(candidates[int(scores.argmax())])
        self._free[node] -= wanted
        self.allocated_milli += pod.total_gpu_demand_milli
        self._bind(document, claim, str(self._index.names[node]))

    def _scores(self, wanted: NDArray[np.int64], candidates: NDArray[np.intp]) -> NDArray[np.int64]:
        """NodeResourcesFit by the strategy, and NodeResourcesBalancedAllocation."""
        has = self._has[candidates]
        used = has - self._free[candidates]
        after = used + wanted
        free = (has - after if self._strategy == "LeastAllocated" else after) * 100 // has
        before_share, share = used / has, after / has
        before, balance = (
            ((1 - np.abs(each[:, 0] - each[:, 1]) / 2) * 100).astype(np.int64)
            for each in (before_share, share)
        )
        scores: NDArray[np.int64] = free.sum(axis=1) // 2 + 50 + (50 + balance - before) // 2
        return scores

    def _bind(self, document: dict[str, Any], claim: ResourceClaim | None, node: str) -> None:
        document["spec"]["nodeName"] = node
        key = _NAMESPACE, document["metadata"]["name"]
        pod = msgspec.convert(document, AllocatedPod)
        changes: dict[str, dict[ObjectKey, Change[Any]]] = {PODS: {key: Change(None, pod)}}
        self._objects[PODS][key] = pod
        if claim is not None:
            devices = self._state.devices.of(node)
            prediction = device_allocation.predict_devices(
                devices.pools,
                (claim,),
                self._state.device_classes,
                device_inventory.device_use(devices),
                device_matches,
            )
            if prediction is None or isinstance(prediction, NotPredicted):
                raise AssertionError(f"{node} fits and has no devices: {prediction}")
            allocated = msgspec.structs.replace(
                claim,
                is_allocated=True,
                devices=tuple(
                    AllocatedDevice(
                        each.request, each.device.id, False, f"{key[1]}-{number}", each.consumed or EMPTY
                    )
                    for number, each in enumerate(prediction)
                ),
                reserved_for=(ClaimConsumer("pods", key[1]),),
            )
            self._objects[RESOURCE_CLAIMS][key] = allocated
            changes[RESOURCE_CLAIMS] = {key: Change(claim, allocated)}
        self._state = self._build(changes)
