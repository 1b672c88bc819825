"""Pods that run and fail, and a state builder that observes them: `history.update(pod("p1", "n1", running()))`."""

from typing import Any

import msgspec
from tests.unit.incremental_agent_states import built

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import clock
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.learned import LearnedKind, LearnedOptions
from nodewise_scorers.learned.agent import PODS, LearnedAgent, LearnedState, LearnedStateBuilder
from nodewise_scorers.learned.pod_types_and_outcomes import ObservedPod, PodFields, PodFieldsMetadata

START = clock.parse_rfc3339("2026-11-21T11:00:00Z")
NEVER_FADES = LearnedOptions(learned_half_life_s=0.0)


def stamp(at_s: float) -> str:
    """A time in seconds after the start, in the kubelet's format."""
    return clock.format_rfc3339(START + at_s)


def running(restarts: int = 0, last: dict[str, Any] | None = None, at_s: float = 0.0) -> dict[str, Any]:
    return _container({"running": {"startedAt": stamp(at_s)}}, restarts, last)


def waiting(restarts: int = 0, last: dict[str, Any] | None = None) -> dict[str, Any]:
    return _container({"waiting": {"reason": "CrashLoopBackOff"}}, restarts, last)


def terminated(
    began_s: float = 0.0, ended_s: float = 0.0, restarts: int = 0, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    return _container({"terminated": end(began_s, ended_s)}, restarts, last)


def end(began_s: float, ended_s: float) -> dict[str, Any]:
    return {"exitCode": 1, "startedAt": stamp(began_s), "finishedAt": stamp(ended_s)}


def _container(state: dict[str, Any], restarts: int, last: dict[str, Any] | None) -> dict[str, Any]:
    return {"state": state, "restartCount": restarts, "lastState": {"terminated": last} if last else {}}


def pod(
    name: str, node: str, *containers: dict[str, Any], phase: str = "Running", uid: str = "", **metadata: Any
) -> ObservedPod:
    """A pod of type D in the namespace d unless the metadata differ; containers are named c0, c1, …."""
    about = {"name": name, "namespace": "d", "uid": uid or name, "labels": {"podtype": "D"}} | metadata
    statuses = [{"name": f"c{number}", **status} for number, status in enumerate(containers)]
    document = {
        "metadata": about,
        "spec": {"nodeName": node},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=ObservedPod)


class PodHistory:
    """A state builder, the pods that it observes, and a clock. Nodes are n1, n2, …."""

    def __init__(self, options: LearnedOptions = NEVER_FADES, nodes: int = 3, now: float = START) -> None:
        self.options = options
        self.state = LearnedStateBuilder(options)
        self.now = now
        self.index = NodeIndex(f"n{number + 1}" for number in range(nodes))
        self.pods: dict[tuple[str, str], ObservedPod] = {}
        (watched,) = LearnedKind().watched(options)
        self._keep = watched.keep
        self.agent_state: LearnedState | None = None

    def update(self, *pods: ObservedPod, after_s: float = 1.0) -> LearnedState:
        """Build the next state, after these pods were added or changed."""
        assert self._keep is not None
        pods_after = dict(self.pods)
        for changed_pod in pods:
            key = changed_pod.metadata.namespace, changed_pod.metadata.name
            kept = self._keep(changed_pod)
            pods_after.pop(key, None) if kept is None else pods_after.update({key: kept})
        self.pods = pods_after
        return self.build(after_s)

    def build(self, after_s: float = 1.0) -> LearnedState:
        self.now += after_s
        self.agent_state = built(
            self.state, ClusterState(self.index, {PODS: self.pods}, MetricsSnapshot(), self.now)
        )
        return self.agent_state

    def forget_pod(self, name: str) -> None:
        self.pods = {key: pod for key, pod in self.pods.items() if key[1] != name}

    def snapshot(self) -> Snapshot:
        return Snapshot(self.index, {"learned": self.agent_state} if self.agent_state else {}, self.now, 1)

    def _ask(self, type_: str, namespace: str = "d") -> Any:
        pending_pod = PodFields(
            metadata=PodFieldsMetadata(name="pending", namespace=namespace, labels={"podtype": type_})
        )
        cluster_snapshot = self.snapshot()
        return LearnedAgent(self.options).score(
            pending_pod, cluster_snapshot.nodes.named(self.index.known), cluster_snapshot
        )

    def points(self, type_: str = "D", namespace: str = "d") -> list[int]:
        """The scores of all nodes."""
        points: list[int] = self._ask(type_, namespace).points.tolist()
        return points

    def numbers(self, node: int = 0, type_: str = "D") -> dict[str, Any]:
        """The details of a node as numbers."""
        numbers: dict[str, Any] = self._ask(type_).details.numbers(node)
        return numbers

    def reward(self, node: int = 0, type_: str = "D") -> float:
        return round(self.numbers(node, type_)["reward"], 6)
