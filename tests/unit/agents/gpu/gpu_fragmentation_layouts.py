"""Layouts of nodes with equal GPUs, and a direct calculation of fragmentation for comparison."""

from collections.abc import Mapping, Sequence

import numpy as np

from nodewise.agents.gpu import gpu_arrays, node_allocations
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.gpu_arrays import GpuLayout, GpuUsage
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from nodewise.agents.gpu.typical_pods import PodClass

COUNT = "nvidia.com/gpu"
MILLI = "nvidia.com/gpu-milli"
WHOLE = 1000


def board(*nodes: Sequence[int], models: Mapping[int, Sequence[str]] | None = None) -> GpuLayout:
    """A layout with these free amounts of each GPU by node, in thousandths of a GPU."""
    rows = [_node(free, (models or {}).get(at)) for at, free in enumerate(nodes)]
    return layout_of(rows, "")


def layout_of(nodes: Sequence[tuple[NodeGpus, GpuUsage]], subdevices: str) -> GpuLayout:
    """The layout of nodes that are numbered in this order."""
    return gpu_arrays.build_layout(nodes, np.arange(len(nodes) + 1), subdevices)


def _node(
    free: Sequence[int], models: Sequence[str] | None
) -> tuple[NodeGpus, node_allocations.NodeAllocations]:
    names = tuple(f"card{at}" for at in range(len(free)))
    capacity = {COUNT: (WHOLE,) * len(free), MILLI: (WHOLE,) * len(free)}
    held = {name: {MILLI: WHOLE - left} for name, left in zip(names, free, strict=True)}
    gpus = NodeGpus(names, capacity, tuple(models or [""] * len(free)))
    return gpus, node_allocations.EMPTY._replace(amounts=held)


def share(milli: int, gpus: int = 1, cpu_milli: int = 0, models: Sequence[str] | None = None) -> PodClass:
    wanted = Amounts({COUNT: 1, MILLI: milli})
    return PodClass(gpus, wanted, cpu_milli, None if models is None else frozenset(models))


def demand(milli: int, gpus: int = 1, cpu_milli: int = 0) -> Demand:
    container = ContainerDemand("main", gpus, Amounts({COUNT: 1, MILLI: milli}))
    return Demand((container,), cpu_milli=cpu_milli)


def plain(
    classes: Mapping[PodClass, float], free: Sequence[int], cpu_milli: float, models: Sequence[str]
) -> float:
    """The fragmentation of one node in GPUs, by the formula of the paper."""
    total = sum(classes.values())
    fragmentation = 0.0
    for profile, often in classes.items():
        wanted = profile.per_gpu[MILLI]
        fit = [
            left
            for left, model in zip(free, models, strict=True)
            if left >= wanted and (profile.models is None or model in profile.models)
        ]
        hosted = len(fit) >= profile.gpus and cpu_milli >= profile.cpu_milli
        fragmentation += often / total * (sum(free) - (sum(fit) if hosted else 0))
    return fragmentation / WHOLE
