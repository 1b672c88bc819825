"""A cluster in memory with a simulated scheduler: nodes and pods, and simulated time.

    with simulated_cluster.Cluster(nodes, [entry], clock=clock) as cluster:
        cluster.submit(pod)           # its node, or the reason why there is none
        cluster.touch()               # an event: pods that extenders rejected are retried
        simulated_cluster.pass_time(cluster, clock, 300)

The scheduling queue decides which pod is tried next, and when rejected pods are retried. There is no background
activity: every call first performs the work that is due; `settle` does only that. Pods are tried one after another:

    filter plugins -> a sample of feasible nodes -> extenders, in order -> scores -> the best node
                                                        none left -> message

Calls to extenders take real time, independent of the clock. Pods are identified by `namespace/name`, or by the name
alone in the namespace `default`. Source: kubernetes v1.36.3 pkg/scheduler/schedule_one.go.
"""

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, NamedTuple, Self

import httpx2

from nodewise.base.clock import Clock, ManualClock, SystemClock
from nodewise.base.errors import Unavailable
from nodewise.scheduling_model import extender_client, parsed_nodes_and_pods, scheduler_plugins
from nodewise.scheduling_model.extender_client import ExtenderClient
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo, Object, Pod
from nodewise.scheduling_model.scheduler_plugins import EXTENDER, RESOURCES_FIT, Rejection

UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"

_NO_HELP: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = Rejection(("No preemption victims found for incoming pod",))
_LEAST_SAMPLE: Final = 100
_EXTENDER_SCALE: Final = 10
"""Scores of extenders range from 0 to 10, those of plugins from 0 to 100. Neither is clamped here."""

_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 10.0
_WINDOW_S: Final = 1.0
"""Back-offs end at whole seconds, so that pods of the same second are tried by priority."""

_FLUSH_AFTER_S: Final = 300.0
_FLUSH_EVERY_S: Final = 30.0

_MAX_EARLY_RETRIES: Final = 10
"""Maximum number of consecutive retries before the end of the back-off that only the pod's own status change caused.

kube-scheduler has no such limit: it retries a pod whose message changes each time without end.
"""


@dataclass
class QueuedPod:
    """A pod in the queue. `rejectors` are the plugins that rejected it, empty if the attempt failed."""

    key: str
    priority: int
    since_s: float
    order: int
    stage: Literal["active", "backing off", "failed", "waiting"] = "active"
    rejectors: frozenset[str] = frozenset()
    rejections: int = 0
    failures: int = 0
    early_retries: int = 0

    @property
    def retry_sort_key(self) -> tuple[int, float, int]:
        """Sort key: the pod to try first."""
        return -self.priority, self.since_s, self.order

    @property
    def ready_s(self) -> float:
        """End of the back-off."""
        count = self.failures or self.rejections
        if not count:
            return -math.inf
        wait_s = min(math.ldexp(_FIRST_BACKOFF_S, count - 1), _LONGEST_BACKOFF_S)
        return math.floor((self.since_s + wait_s) / _WINDOW_S) * _WINDOW_S + _WINDOW_S


class Queue:
    """Pending pods, each in one stage. `began_s` is the start time of the scheduler."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._entries: dict[str, QueuedPod] = {}
        self._added = 0

    def add(self, key: str, priority: int, now_s: float) -> None:
        """Add a new pod."""
        self._added += 1
        self._entries[key] = QueuedPod(key, priority, now_s, self._added)

    def remove(self, key: str) -> None:
        """Remove a bound or deleted pod."""
        self._entries.pop(key, None)

    def pop(self, now_s: float) -> str | None:
        """The pod to try now, None if there is none; it stays in the queue until it is removed or put back."""
        for entry in self._entries.values():
            if entry.stage != "active" and self._retry_time_s(entry) <= now_s:
                entry.stage, entry.early_retries = "active", 0
        active = [entry for entry in self._entries.values() if entry.stage == "active"]
        if active:
            return min(active, key=lambda entry: entry.retry_sort_key).key
        early = [
            entry
            for entry in self._entries.values()
            if entry.stage == "backing off" and entry.early_retries < _MAX_EARLY_RETRIES
        ]
        if not early:
            return None
        first = min(early, key=lambda entry: (entry.ready_s, entry.retry_sort_key))
        first.early_retries += 1
        return first.key

    def put_back(self, key: str, rejectors: frozenset[str], now_s: float) -> None:
        """Return a pod to the queue after an unsuccessful attempt."""
        entry = self._entries[key]
        if rejectors:
            entry.rejections, entry.failures = entry.rejections + 1, 0
        else:
            entry.failures += 1
        entry.rejectors, entry.since_s = rejectors, now_s
        entry.stage = "waiting" if rejectors else "failed"

    def retry_rejected_by(self, rejectors: set[str], now_s: float) -> None:
        """Retry the waiting pods that one of these plugins rejected, after an event that may change its result."""
        for entry in self._entries.values():
            if entry.stage == "waiting" and not rejectors.isdisjoint(entry.rejectors):
                entry.early_retries = 0
                self.retry(entry.key, now_s)

    def retry(self, key: str, now_s: float) -> None:
        """Retry a waiting pod as soon as its back-off permits."""
        entry = self._entries[key]
        if entry.stage == "waiting":
            entry.stage = "backing off" if entry.ready_s > now_s else "active"

    def next_due_s(self) -> float:
        """Time of the next retry without an event; infinite if there is none."""
        return min((self._retry_time_s(entry) for entry in self._entries.values()), default=math.inf)

    def _retry_time_s(self, entry: QueuedPod) -> float:
        if entry.stage == "active":
            return -math.inf
        if entry.stage != "waiting":
            return entry.ready_s
        ticks = math.floor((entry.since_s + _FLUSH_AFTER_S - self._began_s) / _FLUSH_EVERY_S) + 1
        return self._began_s + ticks * _FLUSH_EVERY_S


class PlacementStatus(NamedTuple):
    """A pod's node, or the reason and message of its condition PodScheduled.

    `reason` is Unschedulable if no node was found, SchedulerError if the attempt itself failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


class SimulatedSchedulerOptions(NamedTuple):
    """Settings of the scheduler besides its extenders."""

    ignored: frozenset[str] = frozenset()
    """ignoredResources of NodeResourcesFit, for example telemetry/scheduling in a cluster without an extender.
    The ignored resources of extenders replace this.
    """

    seed: int = 0
    """Seed of the choice among equals."""

    transport: httpx2.BaseTransport | None = None
    """Transport for calls to extenders; None uses the network."""


_DEFAULT: Final = SimulatedSchedulerOptions()


class Cluster:
    """Nodes, pods and one scheduler; without extenders it places pods by requests alone.

    `nodes` and `running` are Kubernetes objects, `extenders` are entries of a KubeSchedulerConfiguration. BadInput or
    BadSettings for invalid ones.
    """

    def __init__(
        self,
        nodes: Iterable[Object],
        extenders: Sequence[Mapping[str, Any]] = (),
        running: Iterable[Object] = (),
        clock: Clock | None = None,
        options: SimulatedSchedulerOptions = _DEFAULT,
    ) -> None:
        entries = extender_client.entries(extenders)
        self._clock = clock or SystemClock()
        self._ignored = frozenset[str]().union(*(entry.ignored for entry in entries)) or options.ignored
        self._extenders = [ExtenderClient(entry, options.transport) for entry in entries]
        self._random = Random(options.seed)  # noqa: S311 - not for secrets; a seed makes runs repeatable
        self._queue = Queue(self._clock.monotonic())
        parsed = map(parsed_nodes_and_pods.node, nodes)
        self._nodes = {node.name: NodeInfo(node) for node in parsed}
        self._pods: dict[str, Pod] = {}
        self._created = 0
        self._statuses: dict[str, PlacementStatus] = {}
        self._events: dict[str, str] = {}
        self._first = 0
        """Position of the node where the next search begins."""
        for obj in running:
            self._create_pod(obj)

    def close(self) -> None:
        """Close the connections to the extenders."""
        for extender in self._extenders:
            extender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, pod: Object) -> PlacementStatus:
        """Create a pod and try to place it; a pod that names its node runs there without scheduling."""
        created = self._create_pod(pod)
        if created.node:
            self._queue.retry_rejected_by({EXTENDER}, self._clock.monotonic())
        else:
            self._queue.add(created.key, created.priority, self._clock.monotonic())
        self.settle()
        return self._statuses[created.key]

    def delete(self, pod: str) -> None:
        """Delete a pod immediately, which makes room for others."""
        key = _pod_key(pod)
        self._queue.remove(key)
        if self._remove(key).node:
            self._queue.retry_rejected_by({EXTENDER, RESOURCES_FIT}, self._clock.monotonic())
        self.settle()

    def touch(self) -> None:
        """Send an update event of a node without a relevant change; it retries pods that extenders rejected."""
        self._queue.retry_rejected_by({EXTENDER}, self._clock.monotonic())
        self.settle()

    def outcome(self, pod: str) -> PlacementStatus:
        """The current result for a pod."""
        return self._statuses[_pod_key(pod)]

    def event(self, pod: str) -> str:
        """The text of the pod's last FailedScheduling event, as kubectl shows it; empty for none."""
        return self._events.get(_pod_key(pod), "")

    def settle(self) -> None:
        """Perform all work that is due."""
        while (key := self._queue.pop(self._clock.monotonic())) is not None:
            self._try_to_schedule(self._pods[key])

    def next_due_s(self) -> float:
        """Monotonic time of the next due work; infinite if there is none."""
        return self._queue.next_due_s()

    def _create_pod(self, obj: Object) -> Pod:
        pod = parsed_nodes_and_pods.pod(obj)
        self._created += 1
        uid = uuid.uuid5(uuid.NAMESPACE_URL, f"{pod.key}#{self._created}")
        pod = parsed_nodes_and_pods.pod_as_stored(pod, str(uid), self._clock.now())
        self._put(pod)
        self._statuses[pod.key] = PlacementStatus(pod.node or None)
        return pod

    def _put(self, pod: Pod) -> None:
        if pod.key in self._pods:
            self._remove(pod.key)
        self._pods[pod.key] = pod
        if pod.node in self._nodes and not parsed_nodes_and_pods.has_ended(pod.obj):
            self._nodes[pod.node] = self._nodes[pod.node].with_additional_pods(pod)

    def _remove(self, key: str) -> Pod:
        pod = self._pods.pop(key)
        if pod.node in self._nodes:
            self._nodes[pod.node] = self._nodes[pod.node].without(pod)
        return pod

    def _try_to_schedule(self, pod: Pod) -> None:
        infos = list(self._nodes.values())
        if not infos:
            self._requeue(pod, PlacementStatus(None, UNSCHEDULABLE, scheduler_plugins.NO_NODES), frozenset())
            return
        enough = feasible_nodes_to_find(len(infos))
        feasible: list[NodeInfo] = []
        rejections: dict[str, Rejection] = {}
        for info in (*infos[self._first :], *infos[: self._first]):
            if rejection := scheduler_plugins.judge(pod, info, self._ignored):
                rejections[info.name] = rejection
            else:
                feasible.append(info)
            if len(feasible) >= enough:
                break
        self._first = (self._first + len(feasible) + len(rejections)) % len(infos)
        try:
            left = self._filter_by_extenders(pod, feasible, rejections)
        except Unavailable as error:
            self._requeue(pod, PlacementStatus(None, SCHEDULER_ERROR, str(error)), frozenset())
            return
        if left:
            self._bind(pod, self._best_node(pod, left))
            return
        rejectors = {rejection.plugin for rejection in rejections.values() if rejection.plugin}
        status = PlacementStatus(None, UNSCHEDULABLE, _unschedulable_message(pod, len(infos), rejections))
        self._requeue(pod, status, frozenset(rejectors | ({EXTENDER} if feasible else set())))

    def _filter_by_extenders(
        self, pod: Pod, feasible: list[NodeInfo], rejections: dict[str, Rejection]
    ) -> list[NodeInfo]:
        """The nodes that remain after all extenders; each gets those that the previous one left.

        Adds to `rejections`.
        """
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.is_interested(pod):
                continue
            try:
                left = extender.filter(pod, feasible)
            except Unavailable:
                if extender.entry.ignorable:
                    continue
                raise
            rejections |= {name: Rejection((text,)) for name, text in left.failed.items()}
            for name, text in left.failed_for_good.items():
                rejections[name] = Rejection((text,), for_good=True)
            feasible = left.nodes
        return feasible

    def _best_node(self, pod: Pod, feasible: Sequence[NodeInfo]) -> str:
        """The node with the highest score; a single node is not scored.

        Extenders are called concurrently; a failed one contributes nothing. As in kube-scheduler, a random node wins
        among equals with extender scores, else the first.
        """
        if len(feasible) == 1:
            return feasible[0].name

        def request_scores(extender: ExtenderClient) -> list[tuple[str, int]]:
            try:
                scores = extender.prioritize(pod, feasible)
            except Unavailable:
                return []
            return [(name, score * extender.entry.weight * _EXTENDER_SCALE) for name, score in scores]

        interested = [extender for extender in self._extenders if extender.is_interested(pod)]
        if len(interested) > 1:
            with ThreadPoolExecutor(len(interested)) as pool:
                responses = list(pool.map(request_scores, interested))
        else:
            responses = [request_scores(extender) for extender in interested]
        from_extenders: dict[str, int] = {}
        for scores in responses:
            for name, score in scores:
                from_extenders[name] = from_extenders.get(name, 0) + score

        def rank(scored: tuple[NodeInfo, int]) -> tuple[int, float]:
            name, own = scored[0].name, scored[1]
            chance = self._random.random() if name in from_extenders else 0.0
            return own + from_extenders.get(name, 0), chance

        pairs = zip(feasible, scheduler_plugins.total_scores(pod, feasible), strict=True)
        return max(pairs, key=rank)[0].name

    def _bind(self, pod: Pod, node: str) -> None:
        self._queue.remove(pod.key)
        self._put(parsed_nodes_and_pods.bound(pod, node, self._clock.now()))
        self._statuses[pod.key] = PlacementStatus(node)
        self._queue.retry_rejected_by({EXTENDER}, self._clock.monotonic())

    def _requeue(self, pod: Pod, status: PlacementStatus, rejectors: frozenset[str]) -> None:
        """Return the pod to the queue and update its status, which is an event for what an extender rejected."""
        now_s = self._clock.monotonic()
        self._queue.put_back(pod.key, rejectors, now_s)
        self._events[pod.key] = scheduler_plugins.event(status.message)
        if status != self._statuses[pod.key]:
            self._statuses[pod.key] = status
            self._put(parsed_nodes_and_pods.rejected(pod, status.reason, status.message))
            if EXTENDER in rejectors:
                self._queue.retry(pod.key, now_s)


def feasible_nodes_to_find(nodes: int) -> int:
    """Number of feasible nodes to find: all up to 100; then 50 % minus 1 % for each 125 nodes, at least 5 %."""
    if nodes < _LEAST_SAMPLE:
        return nodes
    return max(nodes * max(50 - nodes // 125, 5) // 100, _LEAST_SAMPLE)


def pass_time(cluster: Cluster, clock: ManualClock, seconds: float) -> None:
    """Advance the clock, and stop wherever work is due."""
    end_s = clock.monotonic() + seconds
    while (due_s := cluster.next_due_s()) <= end_s:
        clock.advance(max(due_s - clock.monotonic(), 0.0))
        cluster.settle()
    clock.advance(end_s - clock.monotonic())


def _unschedulable_message(pod: Pod, nodes: int, rejections: Mapping[str, Rejection]) -> str:
    """The message of a pod that fits nowhere. No pod is evicted, as for a pod without pods of lower priority."""
    if pod.spec.get("preemptionPolicy") == "Never":
        why = "not eligible due to preemptionPolicy=Never."
    else:
        where_eviction_may_help = sum(not rejection.for_good for rejection in rejections.values())
        why = scheduler_plugins.text(nodes, [_NO_VICTIMS] * where_eviction_may_help, absent=_NO_HELP)
    return scheduler_plugins.text(nodes, rejections.values(), preemption=f"preemption: {why}")


def _pod_key(pod: str) -> str:
    return pod if "/" in pod else f"default/{pod}"
