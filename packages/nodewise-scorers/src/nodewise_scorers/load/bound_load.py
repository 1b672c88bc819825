"""What the pods on nodes add to the statistics of these: their owners, and those in flight, from cluster states.

Each scoring agent with in-flight accounting has one tracker, fed with the cluster states that its state is built from.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from math import inf, nan
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, MetricRequest, NodeIndex
from nodewise.base.quantity import NANO
from nodewise.metrics.series import Sample, Series
from nodewise_scorers.load import bound_pods
from nodewise_scorers.load.bound_pods import (
    BOUND_PODS,
    AccountedPod,
    OwnedPod,
    OwnerKey,
    PodAmounts,
    PodTimes,
)
from nodewise_scorers.load.in_flight import (
    MAX_LAG_S,
    Amount,
    InFlightPod,
    PodsInFlight,
    PrioritizedPod,
    PrioritizedPods,
)
from nodewise_scorers.load.owner_usage import Owner, OwnerUsage
from nodewise_scorers.load.projected_load import OTHERS

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_CONTAINERS: Final = 'container!="", pod!=""'
_SUM: Final = "sum by (namespace, pod) (max by (namespace, pod, container) (%s))"
"""Replicas of Prometheus and jobs that scrape the same kubelet have the same series."""
POD_REQUESTS: Final = tuple(
    MetricRequest(name, own_query=_SUM % (query % _CONTAINERS), by_pod=True, is_optional=True)
    for name, query in (
        ("pod_cpu_usage", "rate(container_cpu_usage_seconds_total{%s}[2m])"),
        ("pod_memory_usage", "container_memory_working_set_bytes{%s}"),
    )
)
"""Cores and bytes in use by pod."""
_UNITS: Final = (1000 / NANO, 1 / NANO)
"""Milli-CPU and bytes by nano-unit."""
SAMPLE_STEP_S: Final = 300.0
"""The distance of samples in which the half-life of profiles is given."""
MAX_STEPS: Final = 12.0
MAX_NODE_MEAN: Final = 2.0
"""A higher usage per requested unit is that of processes besides the pods."""
MIN_INCLUDED: Final = 0.1
"""The share of requests that statistics must include so that the mean follows from them."""
_STRIDE: Final = 32
"""Pods between two yields."""

EstimateFunction = Callable[[Owner, PodAmounts, float], Amount]
"""The usage of a pod of an owner at an age in seconds."""


class CountedPod(NamedTuple):
    """A bound pod that was added (sign 1) or removed (-1)."""

    node: int
    owner: Owner
    amounts: PodAmounts
    sign: int


class ChangeTime(NamedTuple):
    """When changes are applied, and how long before that pods may have been bound to be in flight."""

    now: float
    recent_from: float


class PodSamples(NamedTuple):
    """Samples of running pods."""

    numbers: Ints
    """Of the owners."""
    ages_s: Floats
    usage: Floats
    """By resource and pod, per requested unit."""
    steps: float
    """The time since the samples before, in five minutes."""


class _PlacedPod(NamedTuple):
    uid: str
    node: str
    key: OwnerKey
    amounts: PodAmounts


def _placed_pod(pod: AccountedPod | None) -> _PlacedPod | None:
    if pod is None:
        return None
    amounts = bound_pods.pod_amounts(pod.spec)
    return _PlacedPod(pod.metadata.uid, pod.spec.nodeName, bound_pods.owner_key(pod), amounts)


class BoundLoad:
    """Follows the bound pods of cluster states.

    Nodes have numbers of its own, which do not change with the index: a pod may be on a node that is not in the index.
    Number 0 stands for unknown nodes.
    """

    def __init__(self, estimate: EstimateFunction | None = None, *, from_binding: bool = False) -> None:
        """`estimate` is by default that of a pod's owner. With `from_binding`, a bound pod counts as started."""
        self.owners = OwnerUsage()
        self.in_flight = PodsInFlight()
        self.prioritized = PrioritizedPods()
        self.lost_numbers: list[int] = []
        """Numbers that owners lost in the last call of `apply`."""
        self.new_nodes: list[int] = []
        """Numbers that name another node since the last call of `apply`."""
        self.numbers: Ints = np.zeros(1, np.intp)
        """By number in the index of the last cluster state."""
        self.requested = np.zeros((2, 1))
        """What the pods of each node request, by resource and number, at least `LEAST_REQUEST` of each."""
        self.estimate = estimate or self.owners.estimate
        self._from_binding = from_binding
        self.index = NodeIndex()
        self._numbers: dict[str, int] = {}
        self._pods_on: dict[str, int] = {}
        self._free: list[int] = []
        self.has_pod_samples = False
        self._series: Series | None = None
        """The last samples of the pods' CPU."""
        self._sampled_at = -inf

    @property
    def size(self) -> int:
        """The length of arrays by number."""
        return self.requested.shape[1]

    def apply(self, cluster_state: ClusterState, window_s: float) -> Generator[None, None, list[CountedPod]]:
        """Take the changes of bound pods; yields between parts. `window_s` is the window of the statistics.

        The result is what changed in the requests on nodes: all pods if everything is new.
        """
        self.lost_numbers, self.new_nodes = [], []
        counted: list[CountedPod] = []
        now = cluster_state.now
        if cluster_state.changes is None:
            self.owners.forget_pods()
            self._pods_on.clear()
            self.requested[:] = 0.0
        if cluster_state.nodes is not self.index:
            self._take_index(cluster_state.nodes)
            yield
        self.prioritized.expire(now)
        recent_from = now - 2 * window_s - MAX_LAG_S
        gone = self.in_flight.uids() if cluster_state.changes is None else set()
        for number, (_, change) in enumerate(cluster_state.changes_of(BOUND_PODS), 1):
            self._apply_change(change.old, change.new, counted, ChangeTime(now, recent_from))
            if gone and change.new is not None:
                gone.discard(change.new.metadata.uid)
            if not number % _STRIDE:
                yield
        for uid in gone:
            self.in_flight.remove(uid)
        return counted

    def _apply_change(  # complexity: the pod before, the pod after, and whether it is the same
        self, old: AccountedPod | None, new: AccountedPod | None, counted: list[CountedPod], time: ChangeTime
    ) -> None:
        before, after = _placed_pod(old), _placed_pod(new)
        is_same = before is not None and after is not None and before.uid == after.uid
        if before is not None and not is_same:
            self.in_flight.remove(before.uid)
        if before is not None and before != after:
            self._count(before, -1, counted)
        if after is None or new is None:
            return
        times = self._times(new)
        if is_same:
            self.in_flight.start(after.uid, times.started_at, time.now)
        if before != after:
            owner = self._count(after, 1, counted)
            if after.uid in self.in_flight or (not is_same and times.bound_at > time.recent_from):
                self._bind(after, owner, times, time.now)

    def _times(self, pod: AccountedPod) -> PodTimes:
        times = bound_pods.pod_times(pod)
        return times._replace(started_at=times.bound_at) if self._from_binding else times

    def _bind(self, pod: _PlacedPod, owner: Owner, times: PodTimes, now: float) -> None:
        """Also after a resize, which changes the estimate."""
        self.prioritized.forget(pod.uid)
        estimate = partial(self.estimate, owner, pod.amounts)
        number, requests = self._numbers[pod.node], pod.amounts.counted
        self.in_flight.bind(
            pod.uid, InFlightPod(number, requests, times.bound_at, times.started_at, estimate), now
        )

    def _count(self, pod: _PlacedPod, sign: int, counted: list[CountedPod]) -> Owner:
        number = self._number(pod.node)
        self._pods_on[pod.node] = self._pods_on.get(pod.node, 0) + sign
        if not self._pods_on[pod.node]:
            del self._pods_on[pod.node]
            if pod.node not in self.index:
                # any tenant can name nodes that do not exist
                self._free.append(self._numbers.pop(pod.node))
        owners = self.owners
        owner = owners.add_pod(pod.key, self.lost_numbers.append) if sign > 0 else owners.remove_pod(pod.key)
        self.requested[:, number] += [sign * amount for amount in pod.amounts.counted]
        counted.append(CountedPod(number, owner, pod.amounts, sign))
        return owner

    def _number(self, node: str) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = self._free.pop() if self._free else len(self._numbers) + 1
            self.new_nodes.append(number)
            self._resize(number + 1)
        return number

    def _resize(self, size: int) -> None:
        if size > self.size:
            size = max(size, 2 * self.size)
            self.requested = np.concatenate([self.requested, np.zeros((2, size - self.size))], axis=1)
            self.prioritized.resize(size)

    def _take_index(self, index: NodeIndex) -> None:
        """Number the nodes of an index, and free the numbers of nodes that left it and have no pods."""
        gone = [name for name in self._numbers if name not in index and name not in self._pods_on]
        for name in gone:
            number = self._numbers.pop(name)
            self._free.append(number)
            self.requested[:, number] = 0.0
        self.numbers = np.array([*map(self._number, index.known), 0], np.intp)
        self.index = index

    def take_pod_samples(  # complexity: steps in order
        self, cluster_state: ClusterState
    ) -> Generator[None, None, PodSamples | None]:
        """The usage of running pods, if there are new samples of it; the estimates of owners are updated.

        Yields between parts.
        """
        cpu, used_memory = (cluster_state.metrics.series.get(request.key) for request in POD_REQUESTS)
        if cpu is None or cpu is self._series:
            return None
        self._series = cpu
        pods = cluster_state.objects.get(BOUND_PODS, {})
        memory: Mapping[str, Sample] = {} if used_memory is None else used_memory.samples
        table, known = np.empty((6, len(cpu.samples))), 0
        yield
        for count, (name, sample) in enumerate(cpu.samples.items(), 1):
            namespace, _, pod_name = name.partition("/")
            if (pod := pods.get((namespace, pod_name))) is not None:
                started_at = (cpu.fetched_at if sample.at is None else sample.at) - sample.window_s
                row = self._pod_sample(pod, sample.value, memory.get(name), started_at)
                if row is not None:
                    table[:, known] = row
                    known += 1
            if not count % _STRIDE:
                yield
        if not known:
            return None
        numbers, ages_s, *columns = table[:, :known]
        usage, requests = np.stack(columns[:2]), columns[2:]
        steps = min(max((cluster_state.now - self._sampled_at) / SAMPLE_STEP_S, 0.0), MAX_STEPS)
        self._sampled_at = cluster_state.now
        samples = PodSamples(numbers.astype(np.intp), ages_s, usage, steps)
        yield
        self.owners.observe(samples.numbers, samples.ages_s, usage)
        yield
        for resource, requested in enumerate(requests):
            has_usage = ~np.isnan(usage[resource])
            if has_usage.any():
                used = float((usage[resource] * requested)[has_usage].sum())
                self.owners.cluster_means[resource] = used / float(requested[has_usage].sum())
        self.has_pod_samples = True
        return samples

    def _pod_sample(
        self, pod: AccountedPod, cpu_nano: int, used_memory: Sample | None, window_began_at: float
    ) -> tuple[float, ...] | None:
        """The owner's number, the age, the usage per requested unit, and the counted requests.

        None for a pod that started within the window, whose mean is lower than its usage.
        """
        owner = self.owners.find(bound_pods.owner_key(pod))
        age_s = window_began_at - bound_pods.pod_times(pod).started_at
        if owner is None or not age_s >= 0:
            return None
        cpu, memory = bound_pods.pod_amounts(pod.spec).counted
        memory_share = nan if used_memory is None else used_memory.value * _UNITS[1] / memory
        return owner.number, age_s, cpu_nano * _UNITS[0] / cpu, memory_share, cpu, memory

    def count_prioritized(self, pod: OwnedPod, nodes: Ints) -> tuple[PrioritizedPod, PrioritizedPod | None]:
        """The pod was prioritized, and these nodes of the index got the best score.

        The result is what counts for it now, and what counted before.
        """
        amounts = bound_pods.pod_amounts(pod.spec)
        owner = self.owners.find(bound_pods.owner_key(pod)) or Owner(("", "", ""), OTHERS)
        estimate = self.estimate(owner, amounts, 0.0)
        counted = PrioritizedPod(self.numbers[nodes], estimate, owner.number, amounts.counted)
        return counted, self.prioritized.count(pod.metadata.uid, counted)

    def take_node_usage(self, used: Floats, missing_requests: Floats) -> None:
        """Without statistics of pods: the usage of nodes per requested unit is the mean of the cluster.

        `used` is by resource and number, NaN where unknown; the requests of pods in flight do not count.
        """
        if self.has_pod_samples:
            return
        for resource in range(len(used)):
            known = ~np.isnan(used[resource])
            everything = float(self.requested[resource, known].sum())
            requested = everything - float(missing_requests[resource, known].sum())
            # while nearly all pods are in flight, the usage is that of other processes
            if everything > 0 and requested > MIN_INCLUDED * everything:
                mean = float(used[resource, known].sum()) / requested
                self.owners.cluster_means[resource] = min(mean, MAX_NODE_MEAN)
