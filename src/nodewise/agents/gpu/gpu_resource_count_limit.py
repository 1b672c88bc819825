"""A cap on the number of different GPU resources that are kept over all nodes.

Each resource is an array over all GPUs of all nodes, so one node with resource names of its own would cost memory for
every node. The resources of most nodes are kept. The others count as absent, and their nodes report a problem.
"""

from collections import Counter
from typing import Final, TypeVar

from nodewise.agents.gpu.node_gpus import NodeGpus

_T = TypeVar("_T")

MOST: Final = 256
"""The most different resources; real clusters have about ten."""
LEAST: Final = 16
"""The number of resources that are kept for any number of GPUs."""
CELLS: Final = 2**23
"""The cells of all resources' arrays, of 16 bytes each: 128 MiB."""
_NAMED: Final = 3


class ResourceCap:
    """Follows the nodes. The kept resources depend on the nodes only, not on the order in which they were added."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeGpus] = {}
        self._having: Counter[str] = Counter()
        """By resource, the number of nodes that have it."""
        self._widths: Counter[int] = Counter()
        """By number of GPUs, the number of nodes."""
        self._kept: frozenset[str] | None = None
        """The kept resources; None if all are."""

    def put(self, node: str, gpus: NodeGpus | None) -> None:
        """Add, replace or (with None) remove a node."""
        self._count_resources(self._nodes.pop(node, None), -1)
        if gpus is not None and gpus.names:
            self._nodes[node] = gpus
            self._count_resources(gpus, 1)

    def _count_resources(self, gpus: NodeGpus | None, by: int) -> None:
        if gpus is None:
            return
        for resource in gpus.capacity:
            _change_count(self._having, resource, by)
        _change_count(self._widths, len(gpus.names), by)

    def __len__(self) -> int:
        """The number of different resources of all nodes."""
        return len(self._having) if self._kept is None else len(self._kept)

    def settle(self) -> list[str]:
        """Choose the kept resources again. Returns the nodes that are affected."""
        before, self._kept = self._kept, self._most_used_resources()
        if before == self._kept:
            return []
        return [
            name
            for name, gpus in self._nodes.items()
            if _gpus_with_kept_resources(gpus, before) != _gpus_with_kept_resources(gpus, self._kept)
        ]

    def _most_used_resources(self) -> frozenset[str] | None:
        cells = max(self._widths, default=1) * (len(self._nodes) + 1)
        room = max(LEAST, min(MOST, CELLS // cells))
        if len(self._having) <= room:
            return None
        ordered = sorted(self._having, key=lambda resource: (-self._having[resource], resource))
        return frozenset(ordered[:room])

    def limited(self, gpus: NodeGpus) -> NodeGpus:
        """The node without resources that are not kept."""
        kept = self._kept
        if kept is None or gpus.capacity.keys() <= kept:
            return gpus
        gone = sorted(gpus.capacity.keys() - kept)
        more = f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
        problem = (
            f"nodes have more than {len(kept)} different resources of GPUs; few have "
            f"{', '.join(gone[:_NAMED])}{more}, which count as absent"
        )
        capacity = {resource: row for resource, row in gpus.capacity.items() if resource in kept}
        return gpus._replace(capacity=capacity, problems=(*gpus.problems, problem))


def _gpus_with_kept_resources(gpus: NodeGpus, kept: frozenset[str] | None) -> frozenset[str]:
    return frozenset(gpus.capacity) if kept is None else kept.intersection(gpus.capacity)


def _change_count(counter: Counter[_T], key: _T, by: int) -> None:
    counter[key] += by
    if not counter[key]:
        del counter[key]
