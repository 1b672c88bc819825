"""Pods in flight: bound to a node, and not yet in the statistics of the node.

A pod counts with an estimate of its usage from its binding on, until the window of the node's statistics began after
the pod started. It counts once however often it is reported, and no longer than a maximum age if statistics stop or
the pod never starts. All replicas compute the same sums from the same bindings and statistics.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_AGE_S: Final = 600.0
"""The longest time for which a pod counts without statistics. Longer than any usual window of statistics."""
MAX_SKEW_S: Final = 5.0
"""Assumed largest difference of the clocks of nodes, exporters and the API server."""


class InFlightPod(NamedTuple):
    """A bound pod that counts on its node."""

    node: int
    since_s: float
    """The time of its start or, before it started, of its binding."""
    bound_s: float
    usage: float


class InFlightPods:
    """The pods in flight of all nodes, by node number. Times are seconds of the same clock."""

    def __init__(self, nodes: int, max_age_s: float = MAX_AGE_S, max_skew_s: float = MAX_SKEW_S) -> None:
        self._pods: dict[str, InFlightPod] = {}
        self._by_node: dict[int, set[str]] = {}
        self._windows = np.full(nodes, -np.inf)
        self._max_age_s, self._max_skew_s = max_age_s, max_skew_s
        self.usage: NDArray[np.float64] = np.zeros(nodes)
        """By node: the sum of the estimates."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, uid: str, node: int, bound_s: float, usage: float, started_s: float | None = None) -> None:
        """Count a pod, or what changed of it: that it started, or another estimate.

        A pod that the statistics of its node already include is not counted, also after a restart of nodewise.
        """
        self.remove(uid)
        since_s = bound_s if started_s is None else max(started_s, bound_s)
        pod = InFlightPod(node, since_s, bound_s, usage)
        if self._is_measured(pod):
            return
        self._pods[uid] = pod
        self._by_node.setdefault(node, set()).add(uid)
        self.usage[node] += usage

    def remove(self, uid: str) -> None:
        """Stop counting a pod that ended or was deleted; no effect for one that does not count."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        there = self._by_node[pod.node]
        there.discard(uid)
        if there:
            self.usage[pod.node] -= pod.usage
        else:  # exactly 0, without the remainders of floating point
            del self._by_node[pod.node]
            self.usage[pod.node] = 0.0

    def observe(self, node: int, window_began_s: float) -> None:
        """Take new statistics of a node: pods that had started before their window count no longer."""
        self._windows[node] = max(self._windows[node], window_began_s)
        for uid in [uid for uid in self._by_node.get(node, ()) if self._is_measured(self._pods[uid])]:
            self.remove(uid)

    def expire(self, now_s: float) -> None:
        """Stop counting pods that were bound longer ago than the maximum age."""
        for uid in [uid for uid, pod in self._pods.items() if now_s - pod.bound_s > self._max_age_s]:
            self.remove(uid)

    def _is_measured(self, pod: InFlightPod) -> bool:
        return bool(self._windows[pod.node] >= pod.since_s + self._max_skew_s)
