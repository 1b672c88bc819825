"""A cluster in memory with a simulated kube-scheduler, which calls real extenders over HTTP.

    with simulated_cluster.Cluster(nodes, [entry]) as cluster:
        cluster.submit(pod)           # its node, or the reason why there is none
        cluster.touch()               # an event: rejected pods may be tried again
        cluster.settle()              # tries pods again whose back-off has ended

A pod is tried on all nodes: free resources -> extenders, in order -> scores -> the best node
                                                              none left -> message

There is no background activity. Pods are identified by `namespace/name`, or by the name alone in the namespace
`default`. What is modelled follows kube-scheduler 1.37.2 (v1.36.3 pkg/scheduler/schedule_one.go), and both pass the
same tests, `tests/cluster/test_scheduler_extender_calls.py`: NodeResourcesFit (LeastAllocated),
NodeResourcesBalancedAllocation, extenders (filter and prioritize), and the back-off. Not modelled are all other
plugins, preemption (the message is the one without candidates), sampling, and priorities.
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import httpx2
import msgspec

from nodewise.base import quantity
from nodewise.base.clock import Clock, SystemClock, format_rfc3339
from nodewise.base.errors import Unavailable
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, ResizeStatus
from nodewise.scheduling_model import extender_client
from nodewise.scheduling_model.extender_client import ExtenderClient, Object

Amounts = Mapping[str, int]
"""Milli-cores of `cpu`, whole units of other resources."""

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
MAX_SCORE: Final = 100

_MILLI: Final = quantity.NANO // 1000
_AS_SCORED: Final[Amounts] = {CPU: 100 * _MILLI, MEMORY: 200 * 2**20 * quantity.NANO}
"""Requests that scores assume for containers without CPU or memory requests, in nano-units."""
_NOTHING: Final[Amounts] = MappingProxyType({})
_EXTENDER_SCALE: Final = 10
"""Scores of extenders range from 0 to 10, those of plugins from 0 to 100. Neither is clamped here."""
_LONGEST_BACKOFF_S: Final = 10.0


class _RequestingPod(msgspec.Struct, frozen=True, gc=False):
    spec: HoldingSpec = HoldingSpec()
    status: ResizeStatus = ResizeStatus()


def requests_that_must_fit(pod: Mapping[str, Any]) -> Amounts:
    """Requests of a pod that must fit; those of a pod on a node respect a resize."""
    parsed = msgspec.convert(
        {"spec": pod.get("spec") or {}, "status": pod.get("status") or {}}, _RequestingPod
    )
    names = pod_requests.named_resources(parsed.spec, parsed.status)
    return _requests(parsed.spec, names, parsed.status if parsed.spec.nodeName else None)


def _requests(
    spec: HoldingSpec, names: Sequence[str], status: ResizeStatus | None, if_missing: Amounts = _NOTHING
) -> Amounts:
    amounts = pod_requests.nano_requests(spec, names, status, if_missing)
    return _round_up_to_units({name: amount for name, amount in zip(names, amounts, strict=True) if amount})


def _round_up_to_units(nano: Amounts) -> Amounts:
    return {name: -(-amount // (_MILLI if name == CPU else quantity.NANO)) for name, amount in nano.items()}


class Pod(NamedTuple):
    key: str
    requests: Amounts
    scored: Amounts
    """Requests for scores, with defaults for containers without requests; those of the pod itself do not count."""
    obj: Object


@dataclass
class Node:
    name: str
    allocatable: Amounts
    pods: dict[str, Pod] = field(default_factory=dict)

    def free(self, resource: str) -> int:
        """The amount that pods do not request."""
        taken = sum(pod.requests.get(resource, 0) for pod in self.pods.values())
        return self.allocatable.get(resource, 0) - taken


def parse_pod(obj: Object) -> Pod:
    """A pod by its object."""
    metadata, spec = obj["metadata"], msgspec.convert({**obj["spec"], "resources": None}, HoldingSpec)
    scored = _requests(spec, tuple(_AS_SCORED), None, _AS_SCORED)
    key = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
    return Pod(key, requests_that_must_fit(obj), scored, obj)


def parse_node(obj: Object) -> Node:
    """A node by its object, without pods."""
    status = obj.get("status") or {}
    amounts = status.get("allocatable") or status.get("capacity") or {}
    nano = {name: quantity.parse(str(amount)) for name, amount in amounts.items()}
    return Node(obj["metadata"]["name"], _round_up_to_units(nano))


class Rejection(NamedTuple):
    """The reasons against a node. `for_good` means that preemption cannot help."""

    reasons: tuple[str, ...]
    for_good: bool = False


def check_resources(pod: Pod, node: Node, ignored: Collection[str] = ()) -> Rejection | None:
    """The rejection by NodeResourcesFit; None if the pod fits. `ignored` are resources that extenders manage."""
    reasons = ["Too many pods"] if len(node.pods) + 1 > node.allocatable.get(PODS, 0) else []
    for_good = False
    for name, amount in pod.requests.items():
        if amount and name not in ignored and amount > node.free(name):
            reasons.append(f"Insufficient {name}")
            for_good |= amount > node.allocatable.get(name, 0)
    return Rejection(tuple(reasons), for_good) if reasons else None


def score(pod: Pod, node: Node) -> int:
    """The scores of NodeResourcesFit and NodeResourcesBalancedAllocation together."""
    return least_allocated(pod, node) + balanced(pod, node)


def least_allocated(pod: Pod, node: Node) -> int:
    """The share of CPU and memory that stays free, in per cent, averaged over both."""
    shares = []
    for name in (CPU, MEMORY):
        if has := node.allocatable.get(name):
            taken = sum(each.scored.get(name, 0) for each in (*node.pods.values(), pod))
            shares.append(max(has - taken, 0) * MAX_SCORE // has)
    return sum(shares) // len(shares) if shares else 0


def balanced(pod: Pod, node: Node) -> int:
    """Higher if the pod brings the used shares of CPU and memory closer together: 50 to 100."""
    if not any(pod.requests.get(name) for name in (CPU, MEMORY)):
        return 0
    before, after = _balance_of_used_shares(node, {}), _balance_of_used_shares(node, pod.requests)
    return MAX_SCORE // 2 + (MAX_SCORE // 2 + after - before) // 2


def _balance_of_used_shares(node: Node, more: Amounts) -> int:
    used = [
        min((has - node.free(name) + more.get(name, 0)) / has, 1.0)
        for name in (CPU, MEMORY)
        if (has := node.allocatable.get(name))
    ]
    deviation = abs(used[0] - used[1]) / 2 if len(used) > 1 else 0.0
    return int((1 - deviation) * MAX_SCORE)


class PlacementStatus(NamedTuple):
    """A pod's node, or the reason and message of its condition PodScheduled.

    `reason` is Unschedulable if no node was found, SchedulerError if the attempt itself failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


@dataclass
class _Pending:
    pod: Pod
    attempts: int = 0
    tried_s: float = 0.0
    is_due: bool = True
    """Whether it is tried again without an event."""


class Cluster:
    """Nodes, pods and one scheduler; without extenders it places pods by requests alone.

    `nodes` are Kubernetes objects, `extenders` are entries of a KubeSchedulerConfiguration.
    """

    def __init__(
        self,
        nodes: Iterable[Object],
        extenders: Sequence[Mapping[str, Any]] = (),
        clock: Clock | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._extenders = [ExtenderClient(entry, transport) for entry in extender_client.entries(extenders)]
        self._ignored = {
            resource.name
            for extender in self._extenders
            for resource in extender.entry.managed_resources
            if resource.ignored_by_scheduler
        }
        self._random = Random(0)  # noqa: S311 - not for secrets; a seed makes runs repeatable
        self._nodes = {node.name: node for node in map(parse_node, nodes)}
        self._pending: dict[str, _Pending] = {}
        self._statuses: dict[str, PlacementStatus] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for extender in self._extenders:
            extender.close()

    def submit(self, pod: Object) -> PlacementStatus:
        """Create a pod and try to place it; a pod that names its node runs there without scheduling."""
        namespace = pod["metadata"].get("namespace") or "default"
        defaults = {"namespace": namespace, "creationTimestamp": format_rfc3339(self._clock.now())}
        metadata = {**defaults, "uid": str(uuid.uuid4()), **pod["metadata"]}
        created = parse_pod({**pod, "metadata": metadata})
        if node := pod["spec"].get("nodeName"):
            self._bind(created, node)
        else:
            self._pending[created.key] = _Pending(created)
        self.settle()
        return self._statuses[created.key]

    def delete(self, pod: str) -> None:
        """Delete a pod immediately, which makes room for others."""
        key = _pod_key(pod)
        self._pending.pop(key, None)
        for node in self._nodes.values():
            node.pods.pop(key, None)
        self.touch()

    def touch(self) -> None:
        """An event such as the update of a node, after which rejected pods may be tried again."""
        for pending in self._pending.values():
            pending.is_due = True
        self.settle()

    def outcome(self, pod: str) -> PlacementStatus:
        """The current result for a pod."""
        return self._statuses[_pod_key(pod)]

    def settle(self) -> None:
        """Try all pods that are due and whose back-off has ended: 1 s, and twice as long after each attempt."""
        now_s = self._clock.monotonic()
        for pending in [*self._pending.values()]:
            back_off_s = min(2.0 ** (pending.attempts - 1), _LONGEST_BACKOFF_S) if pending.attempts else 0.0
            if pending.is_due and now_s >= pending.tried_s + back_off_s:
                pending.attempts += 1
                pending.tried_s = now_s
                status = self._statuses[pending.pod.key] = self._try_to_schedule(pending.pod)
                pending.is_due = status.reason == SCHEDULER_ERROR
                if status.node:
                    self._bind(pending.pod, status.node)

    def _bind(self, pod: Pod, node: str) -> None:
        """Bind a pod, which is an event for those that wait."""
        self._pending.pop(pod.key, None)
        self._nodes[node].pods[pod.key] = pod
        self._statuses[pod.key] = PlacementStatus(node)
        for pending in self._pending.values():
            pending.is_due = True

    def _try_to_schedule(self, pod: Pod) -> PlacementStatus:
        if not self._nodes:
            return PlacementStatus(None, UNSCHEDULABLE, "no nodes available to schedule pods")
        feasible: list[str] = []
        rejections: dict[str, Rejection] = {}
        for node in self._nodes.values():
            if rejection := check_resources(pod, node, self._ignored):
                rejections[node.name] = rejection
            else:
                feasible.append(node.name)
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.is_interested(pod.obj):
                continue
            try:
                left = extender.filter(pod.obj, feasible)
            except Unavailable as error:
                if extender.entry.ignorable:
                    continue
                return PlacementStatus(None, SCHEDULER_ERROR, str(error))
            rejections |= {name: Rejection((text,)) for name, text in left.failed.items()}
            rejections |= {name: Rejection((text,), True) for name, text in left.failed_for_good.items()}
            feasible = left.names
        if feasible:
            return PlacementStatus(self._best_node(pod, feasible))
        return PlacementStatus(
            None, UNSCHEDULABLE, _unschedulable_message(len(self._nodes), rejections.values())
        )

    def _best_node(self, pod: Pod, feasible: Sequence[str]) -> str:
        """The node with the highest score; a single node is not scored.

        A failed extender contributes nothing. As in kube-scheduler, a random node wins among equals with extender
        scores, else the first.
        """
        if len(feasible) == 1:
            return feasible[0]
        from_extenders: Counter[str] = Counter()
        for extender in self._extenders:
            if extender.is_interested(pod.obj):
                try:
                    scores = extender.prioritize(pod.obj, feasible)
                except Unavailable:
                    continue
                for each in scores:
                    from_extenders[each.host] += each.score * extender.entry.weight * _EXTENDER_SCALE

        def rank(name: str) -> tuple[int, float]:
            chance = self._random.random() if name in from_extenders else 0.0
            return score(pod, self._nodes[name]) + from_extenders[name], chance

        return max(feasible, key=rank)


def _unschedulable_message(nodes: int, rejections: Collection[Rejection]) -> str:
    """The message of a pod that fits nowhere. No pod is evicted, as for a pod without pods of lower priority."""
    reasons = Counter(reason for rejection in rejections for reason in rejection.reasons)
    no_victims = sum(not rejection.for_good for rejection in rejections)
    preemption = Counter(
        {
            "No preemption victims found for incoming pod": no_victims,
            "Preemption is not helpful for scheduling": nodes - no_victims,
        }
    )
    text, why = (_count_reasons(nodes, counts) for counts in (reasons, preemption))
    return f"{text} preemption: {why}"


def _count_reasons(nodes: int, counts: Counter[str]) -> str:
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items() if count))
    return f"0/{nodes} nodes are available:" + (f" {reasons}." if reasons else "")


def _pod_key(pod: str) -> str:
    return pod if "/" in pod else f"default/{pod}"
