"""Nodes and pods of the simulated cluster, with the pods of each node. The inventory does not use a clock."""

import uuid
from collections.abc import Mapping

from nodewise.scheduling_model import parsed_nodes_and_pods
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, Pod


class Inventory:
    """Nodes by name, in insertion order; pods by namespace/name."""

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
        """Pods with a nominated node: they wait for the eviction of others."""
        return list(self._nominated.values())

    def put_node(self, node: Node) -> None:
        """Add or update a node; pods that name it may exist already."""
        if known := self._nodes.get(node.name):
            self._nodes[node.name] = known.with_node(node)
        else:
            on_it = [pod for pod in self._pods.values() if pod.node == node.name]
            self._nodes[node.name] = parsed_nodes_and_pods.node_info_with_pods(node, on_it)

    def remove_node(self, name: str) -> None:
        """Remove a node; the caller removes its pods."""
        del self._nodes[name]

    def create(self, pod: Pod, now_s: float) -> Pod:
        """Add a new pod with the fields that the API server sets (`now_s` is Unix time), or replace one."""
        self._made += 1
        uid = uuid.uuid5(uuid.NAMESPACE_URL, f"{pod.key}#{self._made}")
        made = parsed_nodes_and_pods.pod_as_stored(pod, str(uid), now_s)
        self.put(made)
        return made

    def put(self, pod: Pod) -> None:
        """Add or replace a pod."""
        self.remove(pod.key)
        self._pods[pod.key] = pod
        if pod.nominated:
            self._nominated[pod.key] = pod
        if pod.node in self._nodes and not parsed_nodes_and_pods.has_ended(pod.obj):
            self._nodes[pod.node] = self._nodes[pod.node].with_additional_pods(pod)

    def remove(self, key: str) -> None:
        """Remove a pod; does nothing if there is none."""
        pod = self._pods.pop(key, None)
        self._nominated.pop(key, None)
        if pod and pod.node in self._nodes:
            self._nodes[pod.node] = self._nodes[pod.node].without(pod)
