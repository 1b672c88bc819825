"""Metrics of the allocations for Prometheus: totals, and series per GPU and node where there are few of these.

Rendering 1,000 series takes the metrics page 7 ms, during which no other request is answered.
"""

from collections.abc import Generator, Mapping
from typing import Final

from nodewise.agents.gpu import allocation_record_limits
from nodewise.agents.gpu.state import GpuState, NodeState
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile

MetricKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels."""

GPU_SHARE: Final = "gpu_card_held_share"
PROBLEMS: Final = "gpu_node_problems"


def totals(agent_state: GpuState, profile: ResourceProfile) -> Mapping[MetricKey, float]:
    """Totals of all nodes; this takes a few milliseconds for 40,000 GPUs."""
    layout = agent_state.layout
    exists = layout.name_codes >= 0
    held = has = 0.0
    for resource in profile.counts:
        if resource in layout.capacity:
            capacity = layout.capacity[resource]
            some = capacity > 0
            has += float(capacity[some].sum(dtype=float))
            held += float((capacity[some] - layout.free[resource][some]).sum(dtype=float))
    return {
        ("gpu_nodes", ()): layout.size,
        ("gpu_cards", (("state", "usable"),)): int(layout.usable.sum()),
        ("gpu_cards", (("state", "unusable"),)): int((exists & ~layout.usable).sum()),
        ("gpu_held_share", ()): held / has if has else 0.0,
        ("gpu_pods", ()): sum(len(node.allocations.by_uid) for node in agent_state.nodes.values()),
        ("gpu_fullest_record_share", ()): _fullest_record_share(agent_state),
        ("gpu_nodes_with_problems", ()): sum(bool(node.problems) for node in agent_state.nodes.values()),
    }


def _fullest_record_share(agent_state: GpuState) -> float:
    """Of the records that can be written, the size of the largest as a share of `RECORD_BYTES`."""
    sizes = agent_state.layout.record_bytes[0, : agent_state.layout.size]
    sizes = sizes[sizes != allocation_record_limits.NO_RECORD]
    return float(sizes.max(initial=0)) / allocation_record_limits.RECORD_BYTES


def details(
    agent_state: GpuState, profile: ResourceProfile, most: int
) -> Generator[None, None, Mapping[MetricKey, float]]:
    """Metrics by GPU, and by node with problems; none if there would be more than `most` series."""
    gpus = int((agent_state.layout.name_codes >= 0).sum())
    if gpus + sum(bool(node.problems) for node in agent_state.nodes.values()) > most:
        return {}
    yield
    values: dict[MetricKey, float] = {}
    for name, node in agent_state.nodes.items():
        for at, gpu in enumerate(node.gpus.names):
            labels = (("node", name), ("card", gpu))
            values[GPU_SHARE, labels] = _held_gpu_share(node, at, gpu, profile)
        if node.problems:
            values[PROBLEMS, (("node", name),)] = len(node.problems)
        yield
    return values


def _held_gpu_share(node: NodeState, at: int, gpu: str, profile: ResourceProfile) -> float:
    """The held share of the GPU's counting resource, from 0 to 1; above 1 if overcommitted."""
    capacity = sum(
        node.gpus.capacity[resource][at] for resource in profile.counts if resource in node.gpus.capacity
    )
    held = sum(node.allocations.amounts.get(gpu, {}).get(resource, 0) for resource in profile.counts)
    return held / capacity if capacity else 0.0
