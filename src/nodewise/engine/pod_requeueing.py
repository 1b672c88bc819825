"""Requeueing: kube-scheduler tries a pending pod again soon after a node passes it.

kube-scheduler tries a pod that an extender rejected again at the next cluster event, or after five minutes; a metric
that recovers is no event. The leader therefore filters the waiting pods again after each new snapshot. When another
node passes a pod, it writes an annotation of that node, which is an event for all pods. Whether the pod can use that
node is unknown: its node selector, affinity or requests may exclude it, and also the nodes that passed before. The
stored decisions do not tell either, because kube-scheduler calls any replica.

An event makes kube-scheduler retry all pods that nodewise rejected, and a metric may cross its threshold all the time.
So the pauses between gains of nodes for the same pods double until pods join or leave the group, and each namespace has
a limit. An event for gains of others serves all pods, and is repeated for those that gained nodes in a pause.

One pass may take `PASS_S` of computing time, which namespaces share equally, however many pods they have (start-time
fair queueing: Goyal, Vin, Cheng 1996). With n namespaces, c seconds for all pods of one and f for the longest filter,
each pod of the namespace is filtered within n·(c + f) / `PASS_S` passes, rounded up.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Generator, Hashable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agent import FilterPlugin, NodeIndex, Snapshot
from nodewise.agent.controller_interface import Controller, Handle
from nodewise.agent.verdicts import OWN_REASON
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import format_rfc3339
from nodewise.engine.agent_chain import AgentChain
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import NODES
from nodewise.kube.store import ChangeLog, Store
from nodewise.metrics.node_index import node_bits
from nodewise.observe import logs

_PODS: Final = "pods"
"""The only kind in the log of changes."""


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class WaitingPodMetadata(msgspec.Struct, frozen=True, gc=False):
    deletionTimestamp: str | None = None  # noqa: N815 - the API's name


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    conditions: tuple[PodCondition, ...] = ()


class WaitingPodFields(msgspec.Struct, frozen=True):
    """The fields of a pod that requeueing reads, in addition to those of agents."""

    metadata: WaitingPodMetadata = WaitingPodMetadata()
    status: PodStatus = PodStatus()


_NO_STATE: Final = Snapshot(NodeIndex(), {}, 0.0)


def is_waiting(pod: Any, chain: AgentChain) -> bool:
    """Whether kube-scheduler found no feasible node for the pod, and an agent rejected it, or filters such pods always.

    kube-scheduler ignores a pod that is being deleted, even while a finalizer keeps it.
    """
    message = _rejection_message(pod)
    return (
        pod.metadata.deletionTimestamp is None
        and message is not None
        and (_is_own_rejection(message, chain) or chain.equivalence_key(pod, _NO_STATE) is not None)
    )


class PodGroup(msgspec.Struct, gc=False, eq=False):
    """The waiting pods of one namespace with equal equivalence keys, which pass the same nodes."""

    namespace: str
    key: Hashable
    """None for pods that nodewise rejected and no agent filters any more, as after the deletion of their policy."""
    pods: dict[str, Any] = msgspec.field(default_factory=dict)
    """By uid; never empty while the group is in `WaitingPods`."""
    rejected: set[str] = msgspec.field(default_factory=set)
    """The uids of the pods that nodewise rejected on a node."""
    passing: int = -1
    """The nodes that passed the pods ever since the last event, as bits by node number; all before the first filter,
    and none if nodewise rejected a pod that is new here."""
    tries: int = 0
    """Events since a node was gained."""
    due_s: float = float("inf")
    """The time of the next event if no node is gained."""
    pause_s: float = 0.0
    """The length of the last pause."""
    paused_until_s: float = float("-inf")

    def begin_pause(self, now_s: float) -> None:
        """Begin a pause, twice as long as the last one unless that ended long ago."""
        is_new = now_s >= self.paused_until_s + MOST_PAUSE_S
        self.pause_s = PAUSE_S if is_new else min(2 * self.pause_s, MOST_PAUSE_S)
        self.paused_until_s = now_s + self.pause_s

    def end_pause(self) -> None:
        """Forget the pauses, because the pods of the group have changed."""
        self.pause_s, self.paused_until_s = 0.0, float("-inf")


class WaitingPods:
    """The groups of the waiting pods, by namespace."""

    def __init__(self, store: Store[Any], chain: AgentChain) -> None:
        """`store` has the pods for which `is_waiting` holds."""
        self._store = store
        self._chain = chain
        self.restart()
        store.subscribe(lambda changes: self._log.add(_PODS, changes))

    def restart(self) -> None:
        """Forget everything; the next `update` starts from nothing."""
        self._log = ChangeLog()
        self._groups: dict[str, OrderedDict[Hashable, PodGroup]] = {}
        """By namespace and key; of one namespace first the group that `take_next` returned longest ago."""
        self._group_by_uid: dict[str, PodGroup] = {}
        self._versions: tuple[object, ...] | None = None
        self._namespace_versions: dict[str, tuple[object, ...]] = {}
        self._nodes = _NO_STATE.nodes
        """The index of the numbers in `PodGroup.passing`."""

    def __len__(self) -> int:
        return len(self._group_by_uid)

    def update(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Apply the changes since the last call.

        Cost: one equivalence key for each changed pod, and for every pod of a namespace if what its keys depend on
        changed in the snapshot. So a tenant who edits policies all the time pays with keys of own pods only.
        """
        changes = self._log.take()
        versions = self._chain.equivalence_versions(snapshot)
        if changes is None:
            self._groups, self._group_by_uid, self._namespace_versions = {}, {}, {}
        for old, new in (changes or {}).get(_PODS, {}).values():
            yield
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._remove(old.metadata.uid)
            if new is not None:
                is_retried = old is not None and _rejection_message(old) != _rejection_message(new)
                self._add_or_replace(new, snapshot, is_retried=is_retried)
        if changes is None or not _are_same(versions, self._versions):
            self._versions = versions
            yield from self._update_namespaces(snapshot)
        if snapshot.nodes is not self._nodes:
            yield from self._renumber_nodes(snapshot.nodes)

    def _renumber_nodes(self, nodes: NodeIndex) -> Generator[None, None, None]:
        """Change the numbers of passing nodes to those of a new index; a new node did not pass before."""
        names, self._nodes = self._nodes.known, nodes
        numbers = np.empty(len(names), np.intp)
        for begin in range(0, len(names), _STRIDE):
            yield
            numbers[begin : begin + _STRIDE] = nodes.numbers(names[begin : begin + _STRIDE])
        renumbered = {0: 0, -1: -1}
        for group in itertools.chain.from_iterable(groups.values() for groups in self._groups.values()):
            yield
            if group.passing not in renumbered:
                packed = np.frombuffer(group.passing.to_bytes(len(names) // 8 + 1, "little"), np.uint8)
                passing = np.zeros(len(nodes) + 1, np.bool_)
                passing[numbers[np.unpackbits(packed, count=len(names), bitorder="little") != 0]] = True
                renumbered[group.passing] = node_bits(passing[:-1])
            group.passing = renumbered[group.passing]

    def _update_namespaces(self, snapshot: Snapshot) -> Generator[None, None, None]:
        """Compute the keys of all pods of the namespaces whose version changed."""
        before, self._namespace_versions = self._namespace_versions, {}
        changed: dict[str, bool] = {}
        for pod in list(self._store.values()):
            yield
            namespace = pod.metadata.namespace
            if namespace not in changed:
                versions = self._chain.namespace_equivalence_versions(snapshot, namespace)
                self._namespace_versions[namespace] = versions
                changed[namespace] = not _are_same(versions, before.get(namespace))
            if changed[namespace]:
                self._add_or_replace(pod, snapshot)

    def group_counts(self) -> dict[str, int]:
        """The number of groups of each namespace that has any."""
        return {namespace: len(groups) for namespace, groups in self._groups.items()}

    def take_next(self, namespace: str) -> PodGroup:
        """The group of the namespace that this returned longest ago; a new group comes after all others."""
        groups = self._groups[namespace]
        key, group = groups.popitem(last=False)
        groups[key] = group
        return group

    def _add_or_replace(self, pod: Any, snapshot: Snapshot, *, is_retried: bool = False) -> None:
        """`is_retried`: kube-scheduler tried the pod again, and its message is another one."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        key = self._chain.equivalence_key(pod, snapshot)
        is_rejected = _is_own_rejection(_rejection_message(pod) or "", self._chain)
        if key is None and not is_rejected:
            self._remove(uid)
            return
        group = self._group_by_uid.get(uid)
        if group is None or group.key != key:
            self._remove(uid)
            group = self._groups.setdefault(namespace, OrderedDict()).setdefault(
                key, PodGroup(namespace, key)
            )
            self._group_by_uid[uid] = group
            if is_rejected:
                group.passing = 0
                group.end_pause()
        elif is_rejected and is_retried and group.tries < TRIES:
            # a snapshot older than the one in which the pod fits may have rejected it
            group.due_s = 0.0
        group.pods[uid] = pod
        (group.rejected.add if is_rejected else group.rejected.discard)(uid)

    def _remove(self, uid: str) -> None:
        group = self._group_by_uid.pop(uid, None)
        if group is None:
            return
        del group.pods[uid]
        group.rejected.discard(uid)
        group.end_pause()
        if not group.pods:
            groups = self._groups[group.namespace]
            del groups[group.key]
            if not groups:
                del self._groups[group.namespace]


def _are_same(versions: tuple[object, ...], before: tuple[object, ...] | None) -> bool:
    return before is not None and all(
        version is known for version, known in zip(versions, before, strict=True)
    )


def _is_own_rejection(message: str, chain: AgentChain) -> bool:
    marks = [OWN_REASON]
    for agent in chain.agents:
        # the agent's name, unless it uses the texts of an older system
        marks += (isinstance(agent, FilterPlugin) and agent.reason_marks) or (f" {agent.name} ",)
    return any(mark in message for mark in marks)


def _rejection_message(pod: Any) -> str | None:
    """kube-scheduler's message about a pod without a feasible node; None for any other pod."""
    for condition in pod.status.conditions:
        facts = (condition.type, condition.status, condition.reason)
        if facts == ("PodScheduled", "False", "Unschedulable"):
            return str(condition.message)
    return None


ANNOTATION: Final = "nodewise.io/woken"
PASS_S: Final = 0.25
"""Computing time after one snapshot. A demand for GPUs of 5,000 nodes takes 0.4 ms, the most expensive one 70 ms; a
pass, the throttle of the leader's loop (0.5 s) and `PAUSE_S` together stay below 5 s."""
PAUSE_S: Final = 1.0
"""The shortest time between two events, and the first pause between gains of nodes for the same pods."""
MOST_PAUSE_S: Final = 300.0
"""The longest pause between gains of nodes for the same pods, after which kube-scheduler retries them anyway."""
NAMESPACE_EVENTS: Final = 10
"""Events for a namespace in succession; after that one per `NAMESPACE_PAUSE_S`."""
NAMESPACE_PAUSE_S: Final = 10.0
"""The longest back-off of kube-scheduler, which limits the attempts of a pod as well."""
TRIES: Final = 3
"""Events per gain of a node. kube-scheduler may call another replica, whose metrics are a period older."""
_LOG_PERIOD_S: Final = 60.0
_STRIDE: Final = 500
"""Names of nodes that are looked up between two pauses."""


class _Turn(NamedTuple):
    """The turn of a namespace in a pass. The namespace with the least time used is next."""

    used_s: float
    namespace: str
    left: int
    """The number of groups that were not filtered in this pass."""


class _Retry(NamedTuple):
    """What an event changes in a group of pods."""

    passing: int
    is_gain: bool
    """Whether the group makes the event because of a gain; a pause begins."""
    is_due: bool
    """Whether the group makes the event; otherwise, in a pause, it has part in one for others."""


class Requeuer(Controller):
    """Writes the annotation of a Node when it passes a waiting pod that it did not pass before."""

    def __init__(self, chain: AgentChain, pods: Store[Any], handle: Handle, period_s: float) -> None:
        """`pods` has the pods for which `is_waiting` holds."""
        self._chain = chain
        self._handle = handle
        self._period_s = period_s
        self._waiting = WaitingPods(pods, chain)
        self._debts_s: dict[str, float] = {}
        """By namespace, computing time that it used in earlier passes and others did not yet."""
        self._namespace_free_s: dict[str, float] = {}
        """By namespace, the time at which none of its recent events counts any more (GCRA, ITU-T I.371)."""
        self._last_event_s = float("-inf")
        self._limit_logged_s = float("-inf")

    def begin(self) -> None:
        self._waiting.restart()
        self._debts_s = {}

    async def step(self, snapshot: Snapshot) -> None:
        """Filter waiting pods again; make an event if nodes were gained for some of them."""
        began_s = self._handle.clock.monotonic()
        writes = self._handle.node_writes.count
        await cooperative_scheduling.run(self._waiting.update(snapshot))
        self._handle.metrics_registry.set("pods_waiting", len(self._waiting))
        retries = await cooperative_scheduling.run(self._filter_groups(snapshot, began_s))
        passing = next((retry.passing for retry in retries.values() if retry.is_due), 0)
        if not passing:
            return
        node = snapshot.nodes.every[(passing & -passing).bit_length() - 1]
        if not await self._make_requeue_event(node, writes):
            return
        namespaces = set()
        is_for_gain = any(retry.is_gain for retry in retries.values())
        async for group, retry in cooperative_scheduling.iterate_with_pauses(retries.items()):
            self._count_event(group, retry, began_s, is_for_gain=is_for_gain)
            if retry.is_due:
                namespaces.add(group.namespace)
        free_s = {name: time_s for name, time_s in self._namespace_free_s.items() if time_s > began_s}
        for name in namespaces:
            free_s[name] = free_s.get(name, began_s) + NAMESPACE_PAUSE_S
        self._namespace_free_s = free_s

    def _filter_groups(
        self, snapshot: Snapshot, now_s: float
    ) -> Generator[None, None, dict[PodGroup, _Retry]]:
        """Filter groups of pods until all are done or `PASS_S` is used. Returns those that an event would serve."""
        retries: dict[PodGroup, _Retry] = {}
        passing_by_key: dict[Hashable, int] = {}
        monotonic, total_s = self._handle.clock.monotonic, 0.0
        counts = self._waiting.group_counts()
        turns = [
            _Turn(self._debts_s.get(namespace, 0.0), namespace, left) for namespace, left in counts.items()
        ]
        heapq.heapify(turns)
        done: list[_Turn] = []
        while turns and total_s < PASS_S:
            yield
            turn = turns[0]
            filter_began_s = monotonic()
            group = self._waiting.take_next(turn.namespace)
            if group.key not in passing_by_key:
                pod = next(iter(group.pods.values()))
                mask = self._chain.feasible(pod, snapshot.nodes.every, snapshot)
                passing_by_key[group.key] = node_bits(mask)
            filter_s = monotonic() - filter_began_s
            total_s += filter_s
            if retry := self._retry(group, passing_by_key[group.key], now_s):
                retries[group] = retry
            turn = _Turn(turn.used_s + filter_s, turn.namespace, turn.left - 1)
            if turn.left:
                heapq.heapreplace(turns, turn)
            else:
                done.append(heapq.heappop(turns)._replace(used_s=turn.used_s))
        self._carry_debts(turns, done)
        if turns:
            self._log_limit(counts, sum(turn.left for turn in turns), now_s)
        return retries

    def _retry(self, group: PodGroup, passing: int, now_s: float) -> _Retry | None:
        """What an event changes in a group for which these nodes pass now; None if it needs none.

        Pods that nodewise did not reject were rejected by others on all nodes that pass.
        """
        is_gain = bool(passing & ~group.passing) and (bool(group.rejected) or not group.passing)
        is_repeated = bool(passing) and group.tries < TRIES and group.due_s <= now_s
        if not is_gain and not is_repeated:
            group.passing = passing
            return None
        group.passing &= passing
        free_s = self._namespace_free_s.get(group.namespace, now_s)
        is_free = free_s <= now_s + (NAMESPACE_EVENTS - 1) * NAMESPACE_PAUSE_S
        is_gain = is_gain and is_free and group.paused_until_s <= now_s
        return _Retry(passing, is_gain, is_gain or (is_free and is_repeated))

    def _count_event(self, group: PodGroup, retry: _Retry, now_s: float, *, is_for_gain: bool) -> None:
        """Count an event for a group, also one for others. A repetition leaves gains to the end of the pause."""
        group.tries = 1 if retry.is_gain else group.tries + 1
        if is_for_gain and retry.passing & ~group.passing:
            group.passing, group.tries = retry.passing, min(group.tries, TRIES - 1)
        group.due_s = now_s + self._period_s
        if retry.is_gain:
            group.begin_pause(now_s)

    def _carry_debts(self, turns: list[_Turn], done: list[_Turn]) -> None:
        """Remember what namespaces used beyond the one that used least and is not done.

        Time that a namespace did not need in this pass is not saved for later.
        """
        least_s = turns[0].used_s if turns else float("inf")
        self._debts_s = {
            turn.namespace: turn.used_s - least_s for turn in (*turns, *done) if turn.used_s > least_s
        }

    def _log_limit(self, counts: dict[str, int], left: int, now_s: float) -> None:
        if now_s < self._limit_logged_s + _LOG_PERIOD_S:
            return
        self._limit_logged_s = now_s
        namespace = max(counts, key=lambda name: counts[name])
        logs.emit(
            "requeueing_limited",
            limit_s=PASS_S,
            demands=sum(counts.values()),
            left=left,
            namespace=namespace,
            demands_of_namespace=counts[namespace],
        )

    async def _make_requeue_event(self, node: str, writes: int) -> bool:
        """Whether there was an event after the pods were filtered, by this or by other writes since `writes`."""
        clock = self._handle.clock
        await clock.sleep(max(0.0, self._last_event_s + PAUSE_S - clock.monotonic()))
        self._last_event_s = clock.monotonic()
        if self._handle.node_writes.count != writes:
            return True  # a label that was just written is such an event
        body = {"metadata": {"annotations": {ANNOTATION: format_rfc3339(clock.now())}}}
        try:
            await self._handle.api.patch(
                NODES.path(name=node), body, "merge", {"fieldManager": "nodewise-wake"}
            )
        except NotFound:
            return False  # the node is gone; the next snapshot has another one
        self._handle.metrics_registry.count("wakes_total")
        logs.emit("woken", node=node, waiting=len(self._waiting))
        return True
