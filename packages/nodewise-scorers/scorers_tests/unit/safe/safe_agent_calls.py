"""Nodes with statistics, and calls of the safe agent with them."""

import json
from functools import cache

import msgspec

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.kube import struct_type_merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.safe import KIND, SafeOptions

NODE = struct_type_merge.merge("Node", KIND.node_fields)
POD = struct_type_merge.merge("Pod", KIND.pod_fields)
NOW = 1_800_000_000.0
GIB = 2**30
ROOM = {"cpu": "4", "memory": "8Gi"}
KEYS = {
    "cpu": "mean-free-cpu",
    "cpu_std": "std-free-cpu",
    "cpu_forecast": "forcasted-free-cpu",
    "memory": "mean-free-memory",
    "memory_std": "std-free-memory",
    "memory_forecast": "forcasted-free-memory",
    "at": "nodewise.io/annotated-at",
}


def node(name="n1", room=None, **statistics):
    annotations = {KEYS[key]: str(value) for key, value in statistics.items()}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"allocatable": ROOM if room is None else room},
    }
    return msgspec.json.decode(json.dumps(body), type=NODE)


def loaded(mean, deviation, name="n1", room=None):
    """A node whose CPU usage has this mean and deviation, as shares of 4 CPUs."""
    return node(name, room, cpu=repr(4000 * (1 - mean)), cpu_std=repr(4000 * deviation))


def pod(uid="", **requests):
    return pod_with({"containers": [{"resources": {"requests": requests}}]}, uid)


def pod_with(spec, uid=""):
    return msgspec.convert({"metadata": {"name": "p", "uid": uid}, "spec": spec}, POD)


@cache
def agent(options):
    """The agent with these options. It is cached, because its creation computes curves."""
    return KIND.agent(options)


class AgentCall:
    """The safe agent, and a snapshot of these nodes."""

    def __init__(self, *nodes, metrics_snapshot=None, now=NOW, **options):
        self.options = SafeOptions(**options)
        self.agent = agent(self.options)
        self.state = KIND.state(self.options, 5.0)
        index = NodeIndex([node_object.metadata.name for node_object in nodes])
        objects = {("", node_object.metadata.name): node_object for node_object in nodes}
        cluster_state = ClusterState(index, {}, metrics_snapshot or MetricsSnapshot(), now, objects)
        self.snapshot = Snapshot(
            index, {"safe": cooperative_scheduling.run_without_pauses(self.state.build(cluster_state))}, now
        )
        self.names = index.named(list(index.known))

    def filter(self, pod, names=None):
        return self.agent.filter(pod, self._named(names), self.snapshot)

    def accepts(self, pod):
        return (self.filter(pod).codes == 0).tolist()

    def overload(self, pod, names=None):
        return self.agent.score(pod, self._named(names), self.snapshot).points.tolist()

    def balance(self, pod, names=None):
        return self.agent.balance(pod, self._named(names), self.snapshot).points.tolist()

    def all(self, pod):
        """Whether the only node is accepted, and both of its scores."""
        return *self.accepts(pod), *self.overload(pod), *self.balance(pod)

    def numbers(self, pod, candidate=0):
        return self.agent.score(pod, self.names, self.snapshot).details.numbers(candidate)

    def _named(self, names):
        return self.names if names is None else self.snapshot.nodes.named(names)
