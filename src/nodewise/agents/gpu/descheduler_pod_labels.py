"""Labels for the descheduler, on pods that hold a GPU or sub-device from which pods are to be evicted.

Labels of telemetry policies name these GPUs and sub-devices (`telemetry_policy_gpu_labels`). A pod gets the label as
soon as it is bound, and loses it when no policy asks for it any more or when the pod ends. The allocations say which
pod holds which GPU, so annotations that a tenant changes on a pod bound by nodewise have no effect.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_allocations import PodAllocation
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.state import GpuState

LABEL: Final = "gpu.aware.scheduling/deschedule-pod"
VALUE: Final = "gpu"
_STRIDE: Final = 256
"""Pods per part of the work."""


class LabelChange(NamedTuple):
    """A pod whose label has to be added or removed."""

    pod: AllocatedPod
    is_wanted: bool


def changes(agent_state: GpuState) -> Generator[None, None, list[LabelChange]]:
    """The labels to write. A label with another value belongs to another owner, unless the pod must be evicted."""
    wanted = yield from _pods_to_evict(agent_state)
    result = []
    for number, pod in enumerate(agent_state.pods.by_key.values()):
        labels, left = pod.metadata.labels, wanted.get(pod.metadata.uid)
        goes = left is not None and left == pod.spec.nodeName
        if (labels is not None and labels.deschedule == VALUE) != goes:
            result.append(LabelChange(pod, goes))
        if number % _STRIDE == 0:
            yield
    return result


def patch(change: LabelChange) -> Mapping[str, Any]:
    """A merge patch, which also works without existing labels. The uid protects a pod that was recreated."""
    labels = {LABEL: VALUE if change.is_wanted else None}
    return {"metadata": {"uid": change.pod.metadata.uid, "labels": labels}}


def _pods_to_evict(agent_state: GpuState) -> Generator[None, None, Mapping[str, str]]:
    """By uid, the pods to be evicted and the node of each."""
    node_by_uid: dict[str, str] = {}
    for number, (name, node) in enumerate(agent_state.nodes.items()):
        if node.gpus.descheduled or node.gpus.subdevices_descheduled:
            node_by_uid.update(
                (uid, name)
                for uid, held in node.allocations.by_uid.items()
                if holds_gpu_to_evict(held, node.gpus)
            )
        if number % _STRIDE == 0:
            yield
    return node_by_uid


def holds_gpu_to_evict(held: PodAllocation, gpus: NodeGpus) -> bool:
    """Whether a pod holds a GPU or a sub-device whose pods are to be evicted."""
    if any(not gpus.descheduled.isdisjoint(names) for names in held.gpus):
        return True
    return any(
        not held.subdevices.get(gpu, _NONE).isdisjoint(off)
        for gpu, off in gpus.subdevices_descheduled.items()
    )


_NONE: Final[frozenset[int]] = frozenset()
