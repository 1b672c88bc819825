"""A cluster in memory whose scheduler is at work: nodes and pods come, change and go, and time passes.

    with cluster.Cluster(nodes, [entry], clock=clock) as small:
        small.submit(pod)             # where it went, or why nowhere
        small.touch("a")              # any event: what was rejected is tried again
        cluster.pass_time(small, clock, 300)

Nothing happens by itself: every call first does what its time has come for, `settle` does nothing else. Pods
are tried one after the other, and a call to an extender takes the time that it takes, whatever the clock says.
Pods are named `namespace/name`, or by the name alone in the namespace `default`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple, Self

import httpx2

from nodewise.clock import Clock, ManualClock, SystemClock
from nodewise.simulate import (
    extender_entry,
    filter_plugins,
    scheduler_objects,
    scheduling_cycle,
    unschedulable_message,
)
from nodewise.simulate.cluster_inventory import Inventory
from nodewise.simulate.extender_client import Extender
from nodewise.simulate.filter_plugins import Event
from nodewise.simulate.scheduler_objects import Object, Pod
from nodewise.simulate.scheduling_cycle import ClusterState, Decision, Rules
from nodewise.simulate.scheduling_queue import Entry, Queue


class Outcome(NamedTuple):
    """What has become of a pod: a node, or the reason and message of its condition PodScheduled.

    `reason` is Unschedulable where no node was found, SchedulerError where the attempt itself failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


class Options(NamedTuple):
    """What a scheduler's configuration says beside its extenders, and what a run needs."""

    percent: int = 0
    """percentageOfNodesToScore; 0 lets the size of the cluster say."""

    ignored: frozenset[str] = frozenset()
    """ignoredResources of NodeResourcesFit: left uncounted, as telemetry/scheduling has to be without an extender.
    An extender that has resources ignored takes the place of this.
    """

    seed: int = 0
    """Decides among equals."""

    transport: httpx2.BaseTransport | None = None
    """Carries the calls to extenders; None over the network."""


_DEFAULT: Final = Options()


class Cluster:
    """Nodes, pods and one scheduler; without extenders it places by requests alone.

    `nodes` and `running` are objects as Kubernetes has them, `extenders` entries as KubeSchedulerConfiguration
    has them. BadInput or BadSettings where one cannot be read.
    """

    def __init__(
        self,
        nodes: Iterable[Object],
        extenders: Sequence[Mapping[str, Any]] = (),
        running: Iterable[Object] = (),
        clock: Clock | None = None,
        options: Options = _DEFAULT,
    ) -> None:
        self._clock = clock or SystemClock()
        self._rules = _rules(extenders, options)
        self._queue = Queue(self._clock.monotonic())
        self._inventory = Inventory()
        self._outcomes: dict[str, Outcome] = {}
        self._events: dict[str, str] = {}
        self._ends_s: dict[str, float] = {}
        self._first = 0
        for obj in nodes:
            self._inventory.put_node(scheduler_objects.node(obj))
        for obj in running:
            self._make(obj)

    def close(self) -> None:
        """Ends the connections to the extenders."""
        for extender in self._rules.extenders:
            extender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, pod: Object) -> Outcome:
        """Makes a pod, and tries it; one that names its node runs there unasked."""
        made = self._make(pod)
        if made.node:
            self._happened(Event("pod bound"))
        else:
            self._queue.add(made.key, made.priority, self._clock.monotonic())
        self.settle()
        return self._outcomes[made.key]

    def delete(self, pod: str) -> None:
        """Takes a pod away at once."""
        self._remove(self._inventory.pods[_key(pod)])
        self.settle()

    def put_node(self, node: Object) -> None:
        """Adds a node, or changes the one of that name."""
        new = scheduler_objects.node(node)
        known = self._inventory.nodes.get(new.name)
        self._inventory.put_node(new)
        event = filter_plugins.node_event(known.node, new) if known else Event("node added", new=new)
        if event:
            self._happened(event)
        self.settle()

    def remove_node(self, name: str) -> None:
        """Takes a node away, and its pods with it."""
        info = self._inventory.nodes[name]
        self._inventory.remove_node(name)
        for pod in info.pods:
            self._remove(pod)
        self._happened(Event("node gone", old=info.node))
        self.settle()

    def touch(self, name: str) -> None:
        """Changes a node in a way that no rule looks at: one event, which retries what extenders rejected."""
        node = self._inventory.nodes[name].node
        self._happened(Event("node changed", node, node))
        self.settle()

    def outcome(self, pod: str) -> Outcome:
        """What has become of a pod so far."""
        return self._outcomes[_key(pod)]

    def event(self, pod: str) -> str:
        """The text of the last FailedScheduling event about a pod, as kubectl shows it; empty for none."""
        return self._events.get(_key(pod), "")

    def is_gone(self, pod: str) -> bool:
        """Whether a pod was evicted or deleted, or is on its way out."""
        pod_now = self._inventory.pods.get(_key(pod))
        return pod_now is None or pod_now.is_leaving

    def pending(self) -> list[str]:
        """The pods that are on no node, as namespace/name, in the order in which they came."""
        return self._queue.keys()

    def settle(self) -> None:
        """Does all that is to be done by now."""
        self._end_pods()
        while (key := self._queue.pop(self._clock.monotonic())) is not None:
            self._try(self._inventory.pods[key])
            self._end_pods()

    def next_due_s(self) -> float:
        """When, by the clock's monotonic time, `settle` has something to do again; infinite if never."""
        return min(self._queue.next_due_s(), min(self._ends_s.values(), default=math.inf))

    def _make(self, obj: Object) -> Pod:
        made = self._inventory.make(scheduler_objects.pod(obj), self._clock.now())
        self._outcomes[made.key] = Outcome(made.node or None)
        return made

    def _try(self, pod: Pod) -> None:
        cluster_state = ClusterState(self._inventory.nodes, self._inventory.nominated, self._first)
        decision = scheduling_cycle.decide(pod, cluster_state, self._rules)
        self._first = (self._first + decision.looked_at) % max(len(cluster_state.nodes), 1)
        if decision.node is None:
            self._reject(pod, decision)
        else:
            self._bind(pod, decision.node)

    def _bind(self, pod: Pod, node: str) -> None:
        self._queue.remove(pod.key)
        self._inventory.put(scheduler_objects.bound(pod, node, self._clock.now()))
        self._outcomes[pod.key] = Outcome(node)
        self._happened(Event("pod bound"))

    def _reject(self, pod: Pod, decision: Decision) -> None:
        """Puts the pod back before anything else happens, so that what happens can move it on."""
        self._queue.put_back(pod.key, decision.rejectors, self._clock.monotonic())
        self._events[pod.key] = unschedulable_message.event(decision.message)
        nominated = pod.nominated if decision.nominated is None else decision.nominated
        changed = self._tell(pod, Outcome(None, decision.reason, decision.message), nominated)
        if changed and filter_plugins.EXTENDER in decision.rejectors:
            self._queue.again(pod.key, self._clock.monotonic())
        if decision.victims:
            self._preempt(pod, nominated, decision.victims)

    def _tell(self, pod: Pod, outcome: Outcome, nominated: str) -> bool:
        """Writes a pod's status, if it is another one; whether it was. Others may take a place it gave up."""
        if outcome == self._outcomes[pod.key] and nominated == pod.nominated:
            return False
        self._outcomes[pod.key] = outcome
        self._inventory.put(scheduler_objects.rejected(pod, outcome.reason, outcome.message, nominated))
        if pod.nominated and nominated != pod.nominated:
            self._happened(Event("pod gone"), at_most=pod.priority)
        return True

    def _preempt(self, pod: Pod, node: str, victims: Iterable[Pod]) -> None:
        """Evicts, and sends lesser pods elsewhere that waited for the same node.

        A victim holds its place for the whole of its grace period.
        """
        for other in self._inventory.nominated:
            if other.nominated == node and other.priority < pod.priority:
                self._tell(other, self._outcomes[other.key], nominated="")
        for victim in victims:
            if not victim.is_leaving:
                self._ends_s[victim.key] = self._clock.monotonic() + victim.grace_s
                self._inventory.put(scheduler_objects.leaving(victim, self._clock.now() + victim.grace_s))
                self._happened(Event("pod changed"))

    def _end_pods(self) -> None:
        now_s = self._clock.monotonic()
        for key in [key for key, end_s in self._ends_s.items() if end_s <= now_s]:
            self._remove(self._inventory.pods[key])

    def _remove(self, pod: Pod) -> None:
        self._ends_s.pop(pod.key, None)
        self._queue.remove(pod.key)
        self._inventory.remove(pod.key)
        if pod.node or pod.nominated:
            self._happened(Event("pod gone"), at_most=None if pod.node else pod.priority)

    def _happened(self, event: Event, at_most: int | None = None) -> None:
        """Tells the queue; `at_most` leaves out pods of a higher priority."""

        def may_help(entry: Entry) -> bool:
            if at_most is not None and entry.priority > at_most:
                return False
            pod = self._inventory.pods[entry.key]
            return filter_plugins.may_help(self._rules.plugins, entry.rejectors, pod, event)

        self._queue.move(may_help, self._clock.monotonic())


def pass_time(cluster: Cluster, clock: ManualClock, seconds: float) -> None:
    """Moves the clock on, with a stop wherever there is something to do."""
    end_s = clock.monotonic() + seconds
    while (due_s := cluster.next_due_s()) <= end_s:
        clock.advance(max(due_s - clock.monotonic(), 0.0))
        cluster.settle()
    clock.advance(end_s - clock.monotonic())


def _rules(extenders: Sequence[Mapping[str, Any]], options: Options) -> Rules:
    entries = extender_entry.entries(extenders)
    ignored = frozenset[str]().union(*(entry.ignored for entry in entries)) or options.ignored
    random = Random(options.seed)  # noqa: S311 - nothing is secret here, and a run can be repeated
    clients = [Extender(entry, options.transport) for entry in entries]
    return Rules(filter_plugins.standard(ignored), clients, random, options.percent)


def _key(pod: str) -> str:
    return pod if "/" in pod else f"default/{pod}"
