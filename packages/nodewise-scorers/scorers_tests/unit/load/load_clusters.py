"""Cluster states for the agent load: nodes of 10 cores and 10 GiB, bound pods, and samples of their usage."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.agent.state import NODES, Change
from nodewise.base import cooperative_scheduling
from nodewise.base.quantity import NANO
from nodewise.kube import struct_type_merge
from nodewise.metrics import series
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise_scorers.load import bound_pods
from nodewise_scorers.load.bound_load import POD_REQUESTS, EstimateFunction
from nodewise_scorers.load.bound_pods import BOUND_PODS, AccountedPod
from nodewise_scorers.load.state import (
    NODE_REQUESTS,
    PRESSURE_REQUESTS,
    LoadState,
    LoadStateBuilder,
    NodeFields,
)
from nodewise_scorers.statistics import load_annotations

NOW = 1_800_000_000.0
GIB = 2**30
NODE = struct_type_merge.merge("Node", NodeFields)


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def node(name: str, cpu: str = "10", memory: str = "10Gi") -> Any:
    body = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": memory}}}
    return msgspec.json.decode(json.dumps(body), type=NODE)


def pod_body(name: str, node_name: str = "", cpu: str = "1", **more: Any) -> dict[str, Any]:
    """A pod as the API server has it; `bound` and `started` are seconds before NOW."""
    limits = {"limits": {"cpu": more["limit"]}} if "limit" in more else {}
    container = {
        "name": "main",
        "image": more.get("image", "web:1"),
        "resources": {"requests": {"cpu": cpu}, **limits},
    }
    status: dict[str, Any] = {"phase": more.get("phase", "Pending")}
    if "bound" in more:
        at = rfc3339(NOW - more["bound"])
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]
    if "started" in more:
        at = rfc3339(NOW - more["started"])
        running = {
            "name": "main",
            "restartCount": more.get("restarts", 0),
            "state": {"running": {"startedAt": at}},
        }
        status |= {"phase": "Running", "startTime": at, "containerStatuses": [running]}
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": more.get("namespace", "default"),
        "uid": f"uid-{name}",
    }
    if owner := more.get("owner"):
        kind, owner_name = owner.split("/")
        metadata["ownerReferences"] = [{"kind": kind, "name": owner_name, "controller": True}]
        metadata["labels"] = {"pod-template-hash": "5d4f"}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node_name, "containers": [container]},
        "status": status,
    }


def bound_pod(name: str, node_name: str, cpu: str = "1", **more: Any) -> AccountedPod:
    """A bound pod as it is stored."""
    decoded = msgspec.json.decode(json.dumps(pod_body(name, node_name, cpu, **more)), type=AccountedPod)
    reduced = bound_pods.reduce_pod(decoded)
    assert reduced is not None
    return reduced


def metric(key: str, values: Mapping[str, float], at: float, window_s: float = 30.0) -> Series:
    samples = {name: Sample(round(value * NANO), at, window_s) for name, value in values.items()}
    packed = cooperative_scheduling.run_without_pauses(series.pack_samples(samples))
    return Series(key, "resource", at, packed)


class LoadCluster:
    """A cluster whose cluster states follow from calls. Times are seconds after NOW."""

    def __init__(self, *nodes: str, estimate: EstimateFunction | None = None) -> None:
        self._estimate = estimate
        self.builder = LoadStateBuilder(estimate)
        self.nodes = {("", name): node(name) for name in nodes}
        self.index = NodeIndex(nodes)
        self.pods: dict[tuple[str, str], AccountedPod] = {}
        self.metrics = MetricsSnapshot()
        self.now = NOW
        self._changes: dict[str, dict[tuple[str, str], Change[Any]]] | None = None

    def bind(self, *pods: AccountedPod) -> None:
        for pod in pods:
            key = (pod.metadata.namespace, pod.metadata.name)
            self._change(BOUND_PODS, key, Change(self.pods.get(key), pod))
            self.pods[key] = pod

    def delete(self, *names: str) -> None:
        for name in names:
            self._change(BOUND_PODS, ("default", name), Change(self.pods.pop(("default", name)), None))

    def set_nodes(self, *nodes: str) -> None:
        self.nodes = {("", name): node(name) for name in nodes}
        self.index = NodeIndex(nodes)
        for key, changed in self.nodes.items():
            self._change(NODES, key, Change(None, changed))

    def set_capacity(self, name: str, cpu: str) -> None:
        before = self.nodes["", name]
        self.nodes["", name] = node(name, cpu)
        self._change(NODES, ("", name), Change(before, self.nodes["", name]))

    def measure(
        self, cpu: Mapping[str, float], *, at: float = 0.0, window_s: float = 30.0, **memory: float
    ) -> None:
        """Cores in use by node, and GiB by node, or one GiB on all of them."""
        used_memory = {name: amount * GIB for name, amount in (memory or dict.fromkeys(cpu, 1.0)).items()}
        by_request = ((NODE_REQUESTS[0], cpu), (NODE_REQUESTS[1], used_memory))
        for request, values in by_request:
            self.metrics = self.metrics.with_series(metric(request.key, values, NOW + at, window_s))

    def measure_pods(self, cpu: Mapping[str, float], *, at: float = 0.0) -> None:
        """Cores in use by pod."""
        values = {f"default/{name}": value for name, value in cpu.items()}
        self.metrics = self.metrics.with_series(metric(POD_REQUESTS[0].key, values, NOW + at))

    def press(self, cpu: Mapping[str, float], *, at: float = 0.0) -> None:
        """The share of the time in which tasks wait for the CPU."""
        self.metrics = self.metrics.with_series(metric(PRESSURE_REQUESTS[0].key, cpu, NOW + at))

    def cluster_state(self, at: float = 0.0) -> ClusterState:
        changes, self._changes = self._changes, {}
        return ClusterState(
            self.index,
            {BOUND_PODS: dict(self.pods)},
            self.metrics,
            NOW + at,
            dict(self.nodes),
            changes=changes,
        )

    def state(self, at: float = 0.0) -> LoadState:
        return cooperative_scheduling.run_without_pauses(self.builder.build(self.cluster_state(at)))

    def snapshot(self, at: float = 0.0) -> Snapshot:
        return Snapshot(self.index, {"load": self.state(at)}, NOW + at)

    def restart(self) -> None:
        """nodewise restarts: only the objects and the statistics are left."""
        self.builder = LoadStateBuilder(self._estimate)
        self.read_again()

    def read_again(self) -> None:
        """All objects are new, as after a lost watch."""
        self._changes = None

    def _change(self, kind: str, key: tuple[str, str], change: Change[Any]) -> None:
        if self._changes is not None:
            earlier = self._changes.setdefault(kind, {}).get(key)
            self._changes[kind][key] = change if earlier is None else Change(earlier.old, change.new)


def in_flight_milli(state: LoadState) -> list[int]:
    """The estimated CPU of pods in flight, by node."""
    rounded: list[int] = state.in_flight[0, :-1].round().astype(int).tolist()
    return rounded


def names(items: Iterable[Any]) -> list[str]:
    return [item.metadata.name for item in items]


def seconds(text: str) -> float:
    return load_annotations.time(text)
