"""The allocations as `GET /state/gpu` exports them: per node its GPUs, their allocated amounts, and the pods.

?node=NAME   one node only
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from nodewise.agents.gpu.state import GpuState, NodeState

_encode = msgspec.json.encode


def export_state(agent_state: GpuState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
    """JSON, built node by node: `{"nodes": {name: {"cards", "pods", "problems"}}}`, in the order of names."""
    wanted = query.get("node")
    names: Iterable[str] = (
        sorted(agent_state.nodes) if wanted is None else {wanted} & agent_state.nodes.keys()
    )
    parts = []
    for name in names:
        parts.append(_encode(name) + b": " + _encode(_export_node(agent_state.nodes[name])))
        yield
    return b'{"nodes": {' + b",\n".join(parts) + b"}}\n"


def _export_node(node: NodeState) -> dict[str, Any]:
    return {
        "cards": {name: _export_gpu(node, at, name) for at, name in enumerate(node.gpus.names)},
        "pods": {
            uid: {
                "pod": allocation.pod,
                "containers": allocation.gpus,
                "cards": allocation.amounts,
                "by": allocation.source,
            }
            for uid, allocation in node.allocations.by_uid.items()
        },
        "problems": node.problems,
    }


def _export_gpu(node: NodeState, at: int, name: str) -> dict[str, Any]:
    gpus = node.gpus
    return {
        "model": gpus.models[at],
        "usable": name not in gpus.unusable,
        "capacity": {resource: amounts[at] for resource, amounts in gpus.capacity.items() if amounts[at]},
        "held": node.allocations.amounts.get(name, {}),
        "tiles_held": sorted(node.allocations.subdevices.get(name, ())),
        "tiles_off": sorted(gpus.subdevices_off.get(name, ())),
    }
