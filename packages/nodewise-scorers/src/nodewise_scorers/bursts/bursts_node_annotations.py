"""Annotations of simulated nodes: those that `nodewise annotate` writes every minute, and `congestion-factor`.

The statistics summarize a window with one sample per minute. No nodewise component writes `congestion-factor`; in the
simulation it is the utilization, in per cent, of the node's busier resource in the last minute.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base import cooperative_scheduling
from nodewise.kube.struct_type_merge import merge
from nodewise_scorers.annotator import node_pod_fields
from nodewise_scorers.annotator.node_request_totals import allocation_by_node
from nodewise_scorers.annotator.node_usage import NodeUsage, ResourceUsage
from nodewise_scorers.annotator.options import AnnotatorConfig
from nodewise_scorers.annotator.patch_planning import NodeMeasurements, PatchRules, plan_patches
from nodewise_scorers.annotator.sample_statistics import summarize
from nodewise_scorers.bursts.bursts_workload import CPU_MILLI, MEMORY_BYTES, MINUTE_S
from nodewise_scorers.statistics.load_annotations import CONGESTION_FACTOR
from nodewise_scorers.statistics.prometheus_load_queries import WindowOptions

Object = dict[str, Any]
UsageArray = NDArray[np.float64]
"""Shape (2, nodes): milli-CPU and bytes."""

CAPACITY: Final = np.array([[CPU_MILLI], [MEMORY_BYTES]], np.float64)
_OPTIONS: Final = WindowOptions()
_RULES: Final = PatchRules(_OPTIONS.max_age_s)
_CONFIG: Final = AnnotatorConfig(usage=True, allocation=True)

_NODE: Final = merge("Node", node_pod_fields.AnnotatedNode)
_POD: Final = merge("Pod", node_pod_fields.BoundPod)


class AnnotatedNodes:
    """Nodes with their current annotations, and the window of samples that the statistics summarize."""

    def __init__(self, nodes: Sequence[Object], window_s: float = 900.0) -> None:
        self.objects = {node["metadata"]["name"]: node for node in nodes}
        self._read = {name: _read_node_object(node) for name, node in self.objects.items()}
        self._window: deque[UsageArray] = deque(maxlen=max(round(window_s / MINUTE_S), 1))
        self._pods: dict[str, Any] = {}

    def put_pod(self, pod: Object) -> None:
        """Add a pod that was bound to a node."""
        self._pods[pod["metadata"]["name"]] = msgspec.json.decode(msgspec.json.encode(pod), type=_POD)

    def remove_pod(self, name: str) -> None:
        del self._pods[name]

    def write(self, use: UsageArray, now: float) -> Mapping[str, Object]:
        """Add the usage of one minute and update the annotations. Return the changed nodes by name."""
        self._window.append(use)
        allocations = cooperative_scheduling.run_without_pauses(allocation_by_node(self._pods.values()))
        measurements = NodeMeasurements(self._measured_usage_by_node(), allocations, now)
        plans = cooperative_scheduling.run_without_pauses(
            plan_patches(self._read.values(), measurements, _CONFIG, _RULES)
        )
        factors = np.minimum(np.rint(100 * use / CAPACITY).max(axis=0), 100).astype(int).tolist()
        changed: dict[str, Object] = {}
        for plan, factor in zip(plans.nodes, factors, strict=True):
            changed |= self._patch_node(plan.name, {**plan.patch, CONGESTION_FACTOR: str(factor)})
        return changed

    def _measured_usage_by_node(self) -> Mapping[str, NodeUsage]:
        window = np.array(self._window)
        brief = len(window) < (self._window.maxlen or 0) / 2
        return {
            name: NodeUsage(
                _summarize_usage(window[:, 0, at]), _summarize_usage(window[:, 1, at]), is_brief=brief
            )
            for at, name in enumerate(self._read)
        }

    def _patch_node(self, name: str, patch: Mapping[str, str | None]) -> Mapping[str, Object]:
        """The patched node by its name; empty if the patch changes nothing."""
        node = self.objects[name]
        before = node["metadata"].get("annotations") or {}
        after = {key: text for key, text in {**before, **patch}.items() if text is not None}
        if after == before:
            return {}
        self.objects[name] = {**node, "metadata": {**node["metadata"], "annotations": after}}
        self._read[name] = _read_node_object(self.objects[name])
        return {name: self.objects[name]}


def _summarize_usage(values: NDArray[np.float64]) -> ResourceUsage:
    summary = summarize(values)
    return ResourceUsage(summary.mean, summary.deviation)


def _read_node_object(obj: Object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj), type=_NODE)
