"""A cluster in memory with a simulated scheduler: nodes and pods change, and simulated time advances.

    with simulated_cluster.Cluster(nodes, [entry], clock=clock) as cluster:
        cluster.submit(pod)           # its node, or the reason why there is none
        cluster.touch("a")            # an event: rejected pods are retried
        simulated_cluster.pass_time(cluster, clock, 300)

There is no background activity: every call first performs the work that is due; `settle` does only that. Pods are tried
one after another. Calls to extenders take real time, independent of the clock. Pods are identified by `namespace/name`,
or by the name alone in the namespace `default`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple, Self

import httpx2

from nodewise.base.clock import Clock, ManualClock, SystemClock
from nodewise.scheduling_model import extender_configuration, scheduler_plugins, parsed_nodes_and_pods, scheduling_cycle
from nodewise.scheduling_model.cluster_inventory import Inventory
from nodewise.scheduling_model.extender_client import ExtenderClient
from nodewise.scheduling_model.scheduler_plugins import ClusterEvent
from nodewise.scheduling_model.parsed_nodes_and_pods import Object, Pod
from nodewise.scheduling_model.scheduling_cycle import SchedulerRules, SchedulerSnapshot, SchedulingResult
from nodewise.scheduling_model.scheduling_queue import Queue, QueuedPod


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
        event = scheduler_plugins.node_event(known.node, new) if known else ClusterEvent("node added", new=new)
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
    entries = extender_configuration.entries(extenders)
    ignored = frozenset[str]().union(*(entry.ignored for entry in entries)) or options.ignored
    random = Random(options.seed)  # noqa: S311 - not for secrets; a seed makes runs repeatable
    clients = [ExtenderClient(entry, options.transport) for entry in entries]
    return SchedulerRules(scheduler_plugins.standard(ignored), clients, random, options.percent)


def _pod_key(pod: str) -> str:
    return pod if "/" in pod else f"default/{pod}"
