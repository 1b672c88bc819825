"""The nodes and pods of a cluster, each pod counted on the node that it is on. No time passes here."""

import uuid
from collections.abc import Mapping

from nodewise.simulate import node_info, scheduler_objects
from nodewise.simulate.node_info import NodeInfo
from nodewise.simulate.scheduler_objects import Node, Pod


class Inventory:
    """Nodes by name, in the order in which they came; pods by namespace/name."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._pods: dict[str, Pod] = {}
        self._nominated: dict[str, Pod] = {}
        self._made = 0

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        return self._nodes

    @property
    def pods(self) -> Mapping[str, Pod]:
        return self._pods

    @property
    def nominated(self) -> list[Pod]:
        """The pods that wait for a node where others make room for them."""
        return list(self._nominated.values())

    def put_node(self, node: Node) -> None:
        """A node that is new, or has changed; pods may have been there before it."""
        if known := self._nodes.get(node.name):
            self._nodes[node.name] = known.of(node)
        else:
            on_it = [pod for pod in self._pods.values() if pod.node == node.name]
            self._nodes[node.name] = node_info.holding(node, on_it)

    def remove_node(self, name: str) -> None:
        """A node that is gone; its pods are left to the caller."""
        del self._nodes[name]

    def make(self, pod: Pod, now_s: float) -> Pod:
        """A new pod, with what the API server adds to it (Unix time). It takes the place of one of its name."""
        self._made += 1
        uid = uuid.uuid5(uuid.NAMESPACE_URL, f"{pod.key}#{self._made}")
        made = scheduler_objects.named(pod, str(uid), now_s)
        self.put(made)
        return made

    def put(self, pod: Pod) -> None:
        """A pod that has changed."""
        self.remove(pod.key)
        self._pods[pod.key] = pod
        if pod.nominated:
            self._nominated[pod.key] = pod
        if pod.node in self._nodes and not scheduler_objects.is_over(pod.obj):
            self._nodes[pod.node] = self._nodes[pod.node].adding(pod)

    def remove(self, key: str) -> None:
        """A pod that is gone; one that is gone already stays so."""
        pod = self._pods.pop(key, None)
        self._nominated.pop(key, None)
        if pod and pod.node in self._nodes:
            self._nodes[pod.node] = self._nodes[pod.node].without(pod)
