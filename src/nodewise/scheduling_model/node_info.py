"""A node with its pods, including nominated ones.

NodeInfo is immutable: changes create a new one, so a scheduling attempt sees a consistent state.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from nodewise.scheduling_model import resource_requests
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, Pod
from nodewise.scheduling_model.resource_requests import Amounts

_NOTHING: Final[Amounts] = MappingProxyType({})


class NodeInfo(NamedTuple):
    """`requested` and `scored` (milli-cores, bytes) are the sums over `pods`."""

    node: Node
    pods: tuple[Pod, ...] = ()
    requested: Amounts = _NOTHING
    scored: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return self.node.name

    def with_additional_pods(self, *pods: Pod) -> "NodeInfo":
        """Return a copy with additional pods."""
        requested, (cpu, memory) = self.requested, self.scored
        for pod in pods:
            requested = resource_requests.add_amounts(requested, pod.requests)
            cpu, memory = cpu + pod.scored[0], memory + pod.scored[1]
        return self._replace(pods=(*self.pods, *pods), requested=requested, scored=(cpu, memory))

    def without(self, *pods: Pod) -> "NodeInfo":
        """Return a copy without these pods."""
        gone = {pod.key for pod in pods}
        return node_info_with_pods(self.node, [pod for pod in self.pods if pod.key not in gone])

    def with_node(self, node: Node) -> "NodeInfo":
        """Return a copy with a changed node and the same pods."""
        return self._replace(node=node)


def node_info_with_pods(node: Node, pods: Sequence[Pod]) -> NodeInfo:
    """Create the NodeInfo of a node with pods."""
    return NodeInfo(node).with_additional_pods(*pods)
