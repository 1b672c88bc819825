"""A cluster in memory with a simulated scheduler: nodes and pods change, and simulated time advances.

    with simulated_cluster.Cluster(nodes, [entry], clock=clock) as cluster:
        cluster.submit(pod)           # its node, or the reason why there is none
        cluster.touch("a")            # an event: rejected pods are retried
        simulated_cluster.pass_time(cluster, clock, 300)

The scheduling queue decides which pod is tried next, and when rejected pods are retried. There is no background
activity: every call first performs the work that is due; `settle` does only that. Pods are tried one after another.
Calls to extenders take real time, independent of the clock. Pods are identified by `namespace/name`, or by the name
alone in the namespace `default`.
"""

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, NamedTuple, Self

import httpx2

from nodewise.base.clock import Clock, ManualClock, SystemClock
from nodewise.scheduling_model import (
    extender_client,
    parsed_nodes_and_pods,
    scheduler_plugins,
    scheduling_cycle,
)
from nodewise.scheduling_model.extender_client import ExtenderClient
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, NodeInfo, Object, Pod
from nodewise.scheduling_model.scheduler_plugins import ClusterEvent
from nodewise.scheduling_model.scheduling_cycle import SchedulerRules, SchedulerSnapshot, SchedulingResult


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

Stage = Literal["active", "backing off", "failed", "waiting"]


@dataclass
class QueuedPod:
    """A pod in the queue. `rejectors` are the plugins that rejected it, empty if the attempt failed."""

    key: str
    priority: int
    since_s: float
    order: int
    stage: Stage = "active"
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
        self._activate_due_pods(now_s)
        active = self._pods_in_stage("active")
        if active:
            return min(active, key=lambda entry: entry.retry_sort_key).key
        early = [
            entry for entry in self._pods_in_stage("backing off") if entry.early_retries < _MAX_EARLY_RETRIES
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

    def move(self, may_help: Callable[[QueuedPod], bool], now_s: float) -> None:
        """Move the waiting pods that an event may help."""
        for entry in self._pods_in_stage("waiting"):
            if may_help(entry):
                entry.early_retries = 0
                self._move_to_active_or_backoff(entry, now_s)

    def again(self, key: str, now_s: float) -> None:
        """Retry a waiting pod after a change of its own status."""
        entry = self._entries[key]
        if entry.stage == "waiting":
            self._move_to_active_or_backoff(entry, now_s)

    def keys(self) -> list[str]:
        """All pods of the queue, in order of arrival."""
        return list(self._entries)

    def next_due_s(self) -> float:
        """Time of the next retry without an event; infinite if there is none."""
        return min((self._retry_time_s(entry) for entry in self._entries.values()), default=math.inf)

    def _move_to_active_or_backoff(self, entry: QueuedPod, now_s: float) -> None:
        entry.stage = "backing off" if entry.ready_s > now_s else "active"

    def _activate_due_pods(self, now_s: float) -> None:
        for entry in self._entries.values():
            if entry.stage != "active" and self._retry_time_s(entry) <= now_s:
                entry.stage, entry.early_retries = "active", 0

    def _retry_time_s(self, entry: QueuedPod) -> float:
        if entry.stage == "active":
            return -math.inf
        if entry.stage != "waiting":
            return entry.ready_s
        ticks = math.floor((entry.since_s + _FLUSH_AFTER_S - self._began_s) / _FLUSH_EVERY_S) + 1
        return self._began_s + ticks * _FLUSH_EVERY_S

    def _pods_in_stage(self, stage: Stage) -> list[QueuedPod]:
        return [entry for entry in self._entries.values() if entry.stage == stage]


class PlacementStatus(NamedTuple):
    """A pod's node, or the reason and message of its condition PodScheduled.

    `reason` is Unschedulable if no node was found, SchedulerError if the attempt itself failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


class SimulatedSchedulerOptions(NamedTuple):
    """Settings of the scheduler besides its extenders."""

    percent: int = 0
    """percentageOfNodesToScore; 0 depends on the size of the cluster."""

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
        self._clock = clock or SystemClock()
        self._rules = _rules(extenders, options)
        self._queue = Queue(self._clock.monotonic())
        self._inventory = Inventory()
        self._statuses: dict[str, PlacementStatus] = {}
        self._events: dict[str, str] = {}
        self._ends_s: dict[str, float] = {}
        self._first = 0
        for obj in nodes:
            self._inventory.put_node(parsed_nodes_and_pods.node(obj))
        for obj in running:
            self._create_pod(obj)

    def close(self) -> None:
        """Close the connections to the extenders."""
        for extender in self._rules.extenders:
            extender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, pod: Object) -> PlacementStatus:
        """Create a pod and try to place it; a pod that names its node runs there without scheduling."""
        made = self._create_pod(pod)
        if made.node:
            self._pass_event_to_queue(ClusterEvent("pod bound"))
        else:
            self._queue.add(made.key, made.priority, self._clock.monotonic())
        self.settle()
        return self._statuses[made.key]

    def delete(self, pod: str) -> None:
        """Delete a pod immediately."""
        self._remove(self._inventory.pods[_pod_key(pod)])
        self.settle()

    def put_node(self, node: Object) -> None:
        """Add or update a node."""
        new = parsed_nodes_and_pods.node(node)
        known = self._inventory.nodes.get(new.name)
        self._inventory.put_node(new)
        event = (
            scheduler_plugins.node_event(known.node, new) if known else ClusterEvent("node added", new=new)
        )
        if event:
            self._pass_event_to_queue(event)
        self.settle()

    def remove_node(self, name: str) -> None:
        """Remove a node and its pods."""
        info = self._inventory.nodes[name]
        self._inventory.remove_node(name)
        for pod in info.pods:
            self._remove(pod)
        self._pass_event_to_queue(ClusterEvent("node gone", old=info.node))
        self.settle()

    def touch(self, name: str) -> None:
        """Send an update event of a node without a relevant change; it retries pods that extenders rejected."""
        node = self._inventory.nodes[name].node
        self._pass_event_to_queue(ClusterEvent("node changed", node, node))
        self.settle()

    def outcome(self, pod: str) -> PlacementStatus:
        """The current result for a pod."""
        return self._statuses[_pod_key(pod)]

    def event(self, pod: str) -> str:
        """The text of the pod's last FailedScheduling event, as kubectl shows it; empty for none."""
        return self._events.get(_pod_key(pod), "")

    def is_gone(self, pod: str) -> bool:
        """Whether a pod was evicted or deleted, or is terminating."""
        pod_now = self._inventory.pods.get(_pod_key(pod))
        return pod_now is None or pod_now.is_leaving

    def pending_pods(self) -> list[str]:
        """Pending pods as namespace/name, in order of arrival."""
        return self._queue.keys()

    def settle(self) -> None:
        """Perform all work that is due."""
        self._remove_ended_pods()
        while (key := self._queue.pop(self._clock.monotonic())) is not None:
            self._try_to_schedule(self._inventory.pods[key])
            self._remove_ended_pods()

    def next_due_s(self) -> float:
        """Monotonic time of the next due work; infinite if there is none."""
        return min(self._queue.next_due_s(), min(self._ends_s.values(), default=math.inf))

    def _create_pod(self, obj: Object) -> Pod:
        pod = self._inventory.create(parsed_nodes_and_pods.pod(obj), self._clock.now())
        self._statuses[pod.key] = PlacementStatus(pod.node or None)
        return pod

    def _try_to_schedule(self, pod: Pod) -> None:
        snapshot = SchedulerSnapshot(self._inventory.nodes, self._inventory.nominated, self._first)
        decision = scheduling_cycle.select_node_for_pod(pod, snapshot, self._rules)
        self._first = (self._first + decision.examined_nodes) % max(len(snapshot.nodes), 1)
        if decision.node is None:
            self._requeue_rejected_pod(pod, decision)
        else:
            self._bind(pod, decision.node)

    def _bind(self, pod: Pod, node: str) -> None:
        self._queue.remove(pod.key)
        self._inventory.put(parsed_nodes_and_pods.bound(pod, node, self._clock.now()))
        self._statuses[pod.key] = PlacementStatus(node)
        self._pass_event_to_queue(ClusterEvent("pod bound"))

    def _requeue_rejected_pod(self, pod: Pod, decision: SchedulingResult) -> None:
        """Return the pod to the queue first, so that the events of the rejection can move it."""
        self._queue.put_back(pod.key, decision.rejectors, self._clock.monotonic())
        self._events[pod.key] = scheduler_plugins.event(decision.message)
        nominated = pod.nominated if decision.nominated is None else decision.nominated
        changed = self._update_status(
            pod, PlacementStatus(None, decision.reason, decision.message), nominated
        )
        if changed and scheduler_plugins.EXTENDER in decision.rejectors:
            self._queue.again(pod.key, self._clock.monotonic())
        if decision.victims:
            self._preempt(pod, nominated, decision.victims)

    def _update_status(self, pod: Pod, outcome: PlacementStatus, nominated: str) -> bool:
        """Update a pod's status. Return whether it changed. A cleared nomination is an event for other pods."""
        if outcome == self._statuses[pod.key] and nominated == pod.nominated:
            return False
        self._statuses[pod.key] = outcome
        self._inventory.put(parsed_nodes_and_pods.rejected(pod, outcome.reason, outcome.message, nominated))
        if pod.nominated and nominated != pod.nominated:
            self._pass_event_to_queue(ClusterEvent("pod gone"), at_most=pod.priority)
        return True

    def _preempt(self, pod: Pod, node: str, victims: Iterable[Pod]) -> None:
        """Evict the victims, and clear the nominations of pods with lower priority to the same node.

        A victim keeps its resources for its whole grace period.
        """
        for other in self._inventory.nominated:
            if other.nominated == node and other.priority < pod.priority:
                self._update_status(other, self._statuses[other.key], nominated="")
        for victim in victims:
            if not victim.is_leaving:
                self._ends_s[victim.key] = self._clock.monotonic() + victim.grace_s
                self._inventory.put(
                    parsed_nodes_and_pods.pod_with_deletion_timestamp(
                        victim, self._clock.now() + victim.grace_s
                    )
                )
                self._pass_event_to_queue(ClusterEvent("pod changed"))

    def _remove_ended_pods(self) -> None:
        now_s = self._clock.monotonic()
        for key in [key for key, end_s in self._ends_s.items() if end_s <= now_s]:
            self._remove(self._inventory.pods[key])

    def _remove(self, pod: Pod) -> None:
        self._ends_s.pop(pod.key, None)
        self._queue.remove(pod.key)
        self._inventory.remove(pod.key)
        if pod.node or pod.nominated:
            self._pass_event_to_queue(ClusterEvent("pod gone"), at_most=None if pod.node else pod.priority)

    def _pass_event_to_queue(self, event: ClusterEvent, at_most: int | None = None) -> None:
        """Pass an event to the queue; `at_most` excludes pods with a higher priority."""

        def may_help(entry: QueuedPod) -> bool:
            if at_most is not None and entry.priority > at_most:
                return False
            pod = self._inventory.pods[entry.key]
            return scheduler_plugins.may_help(self._rules.plugins, entry.rejectors, pod, event)

        self._queue.move(may_help, self._clock.monotonic())


def pass_time(cluster: Cluster, clock: ManualClock, seconds: float) -> None:
    """Advance the clock, and stop wherever work is due."""
    end_s = clock.monotonic() + seconds
    while (due_s := cluster.next_due_s()) <= end_s:
        clock.advance(max(due_s - clock.monotonic(), 0.0))
        cluster.settle()
    clock.advance(end_s - clock.monotonic())


def _rules(extenders: Sequence[Mapping[str, Any]], options: SimulatedSchedulerOptions) -> SchedulerRules:
    entries = extender_client.entries(extenders)
    ignored = frozenset[str]().union(*(entry.ignored for entry in entries)) or options.ignored
    random = Random(options.seed)  # noqa: S311 - not for secrets; a seed makes runs repeatable
    clients = [ExtenderClient(entry, options.transport) for entry in entries]
    return SchedulerRules(scheduler_plugins.standard(ignored), clients, random, options.percent)


def _pod_key(pod: str) -> str:
    return pod if "/" in pod else f"default/{pod}"
