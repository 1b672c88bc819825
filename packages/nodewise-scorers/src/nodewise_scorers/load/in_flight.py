"""Pods in flight: bound pods that the statistics of their node do not include yet, or only for a part of the window.

Statistics are means over a window of time. The share of the window before a pod started is the share of its usage that
they lack: 1 for a pod that started after them or has not started, 0 once the window began after the start. A pod counts
with that share of its estimate, so never twice. Once the share is 0, the pod never counts again.

All times come from the API server, whose objects all replicas see. Clocks differ: a start in the future counts as now,
and a start before the binding as the binding. A pod without statistics that include it, or that never starts, stops to
count some time after its binding.

A pod that was just prioritized, and is not bound as far as is known, counts for some seconds: in equal parts on the
nodes with the best score, because kube-scheduler chooses among them by its own scores.
"""

from collections.abc import Callable, Generator, Iterable
from math import inf, isnan, nan
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

MAX_LAG_S: Final = 600.0
"""Beyond two windows: a pod that was bound this long ago does not count any more."""
PRIORITIZED_S: Final = 5.0
"""A pod that was prioritized this long ago without a binding is not on its way to a node any more."""
MAX_PRIORITIZED: Final = 2048
"""Pods that were just prioritized; the oldest are dropped."""
_STRIDE: Final = 64
"""Pods between two yields."""


class StatisticsWindow(NamedTuple):
    """The time that the statistics of each node cover, by node number."""

    ends: Floats
    """Seconds since 1970; NaN for a node without statistics, which include no pod."""
    lengths_s: Floats

    def missing_share(self, nodes: Ints, started_at: Floats) -> Floats:
        """The share of the usage of pods that the statistics lack, from 0 to 1."""
        length_s = np.maximum(self.lengths_s[nodes], 1e-3)
        share = (started_at - self.ends[nodes]) / length_s + 1
        missing: Floats = np.clip(np.where(np.isnan(share), 1.0, share), 0.0, 1.0)
        return missing


Amount = tuple[float, float]
"""Milli-CPU and bytes of memory."""


class InFlightPod(msgspec.Struct):
    node: int
    requests: Amount
    bound_at: float
    started_at: float
    """Infinite before it has started."""
    estimate: Callable[[float], Amount]
    """The usage of the pod at an age in seconds."""


class PodsInFlight:
    """The pods in flight of all nodes, from the changes of bound pods."""

    def __init__(self) -> None:
        self._pods: dict[str, InFlightPod] = {}
        """By uid, in the order of binding."""

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def bind(self, uid: str, pod: InFlightPod, now: float) -> None:
        """A pod is bound, or was when this process started. The times of a known pod stay as they are."""
        known = self._pods.get(uid)
        if known is not None:
            known.node, known.requests, known.estimate = pod.node, pod.requests, pod.estimate
            return
        self._pods[uid] = pod
        pod.bound_at, started_at = min(pod.bound_at, now), pod.started_at
        pod.started_at = inf
        self.start(uid, started_at, now)

    def start(self, uid: str, started_at: float, now: float) -> None:
        """A bound pod has started, if `started_at` is finite. A later start does not count: containers restart."""
        pod = self._pods.get(uid)
        if pod is not None and started_at < inf:
            reported_at = max(min(started_at, now), pod.bound_at)
            pod.started_at = reported_at if pod.started_at == inf else min(pod.started_at, reported_at)

    def uids(self) -> set[str]:
        return set(self._pods)

    def remove(self, uid: str) -> None:
        """A pod left its node, or holds nothing any more."""
        self._pods.pop(uid, None)

    def count(self, window: StatisticsWindow, now: float) -> Generator[None, None, tuple[Floats, Floats]]:
        """The usage, and the requests, that the statistics lack: by resource and node number.

        Drops the pods that the statistics include, and those that count no longer. Yields between parts.
        """
        usage, requested = np.zeros((2, len(window.ends))), np.zeros((2, len(window.ends)))
        entries = list(self._pods.items())
        for start in range(0, len(entries), _STRIDE):
            part = entries[start : start + _STRIDE]
            for _, pod in part:
                pod.bound_at = min(pod.bound_at, now)  # the clock may have been set back
                if pod.started_at < inf:
                    pod.started_at = min(pod.started_at, now)
            nodes = np.array([pod.node for _, pod in part])
            shares = window.missing_share(nodes, np.array([pod.started_at for _, pod in part]))
            limits_s = 2 * np.nan_to_num(window.lengths_s[nodes]) + MAX_LAG_S
            for (uid, pod), share, limit_s in zip(part, shares.tolist(), limits_s.tolist(), strict=True):
                if not share or now - pod.bound_at > limit_s:
                    self.remove(uid)
                    continue
                estimate = pod.estimate(now - min(pod.started_at, now))
                for resource, (amount, request) in enumerate(zip(estimate, pod.requests, strict=True)):
                    usage[resource, pod.node] += share * amount
                    requested[resource, pod.node] += share * request
            yield
        return usage, requested


class PrioritizedPod(NamedTuple):
    """A pod on its way to one of the nodes, or to none."""

    nodes: Ints
    amount: Amount
    application: int
    requests: Amount
    at: float = nan
    """When a cluster state was taken for the first time after that; NaN before."""


class PrioritizedPods:
    """The pods that were just prioritized. Agent states refer to it, so the next request takes them into account."""

    def __init__(self) -> None:
        self._pods: dict[str, PrioritizedPod] = {}
        """By uid, in the order of time."""
        self.amounts: Floats = np.zeros((2, 1))
        """The estimates of their usage by resource and node number, each in equal parts on its nodes."""

    def pods(self) -> Iterable[PrioritizedPod]:
        return self._pods.values()

    def count(self, uid: str, pod: PrioritizedPod) -> PrioritizedPod | None:
        """A pod was prioritized. It counts once, with its last scores; the result are the ones of before."""
        before = self.forget(uid)
        while len(self._pods) >= MAX_PRIORITIZED:
            self.forget(next(iter(self._pods)))
        if len(pod.nodes):
            self._pods[uid] = pod
            self.amounts[:, pod.nodes] += np.array(pod.amount)[:, None] / len(pod.nodes)
        return before

    def forget(self, uid: str) -> PrioritizedPod | None:
        """The pod is bound as far as is known, or does not exist any more."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self.amounts[:, pod.nodes] -= np.array(pod.amount)[:, None] / len(pod.nodes)
        return pod

    def expire(self, now: float) -> None:
        """Drop the pods that were prioritized too long ago, and those of a clock that was set back."""
        for uid, pod in list(self._pods.items()):
            if isnan(pod.at):
                self._pods[uid] = pod._replace(at=now)
            elif not 0 <= now - pod.at <= PRIORITIZED_S:
                self.forget(uid)
        if not self._pods:
            self.amounts[:] = 0.0  # no rounding errors remain

    def resize(self, size: int) -> None:
        """Add nodes."""
        more = np.zeros((2, size - self.amounts.shape[1]))
        self.amounts = np.concatenate([self.amounts, more], axis=1)
