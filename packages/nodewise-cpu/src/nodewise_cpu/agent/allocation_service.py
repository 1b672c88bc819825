"""The node agent's answers to requests: to allocate and release CPUs, and for other pools on its node.

An allocation is stored before it is answered. The pods of the node, as the API server knows them, limit the exclusive
CPUs of containers and authorize reconfigurations.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base import quantity
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable, shown
from nodewise.kube.resource_kinds import PODS, selector
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.connection_close_reasons import LOG_EVERY_S
from nodewise_cpu import agent_messages, allocation_store, allocator, cpu_set_formats, pool_allocations
from nodewise_cpu.agent import socket_server
from nodewise_cpu.agent.socket_server import PeerProcess, SocketResponse
from nodewise_cpu.agent_messages import AllocateRequest, AllocateResponse
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.allocator import CANNOT_CHOOSE_CPUS, AllocationRequest, AllocationResult
from nodewise_cpu.cluster.api_server import ApiClient, Object
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES
from nodewise_cpu.cpusets.enforcer import CpusetEnforcer
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.node import reconfiguration as execution
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.task_garbage_collection import TaskGarbageCollector, pause_before_retry
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.pool_planning import EXCLUSIVE, NON_ISOLCPUS
from nodewise_cpu.topology import CPUS

RESOURCES: Final = {EXCLUSIVE: EXCLUSIVE_CORES, NON_ISOLCPUS: NON_ISOLCPUS_CORES}
"""The extended resource of each pool; one unit is one CPU list."""
_STATUS_FIELDS: Final = {
    "containers": "containerStatuses",
    "initContainers": "initContainerStatuses",
    "ephemeralContainers": "ephemeralContainerStatuses",
}
_MAX_LISTED: Final = 10  # how many processes a response names
_MANY_TASKS: Final = 750
_MOST_TASKS: Final = 1000
"""Below the 1,270 tasks whose identities fit into a ConfigMap: the API server accepts 256 KiB of annotations."""
_ROOT: Final = 0


class NodePods:
    """The pods of one node, listed again if the list is older than `age_s` or lacks the container in question.

    The kubelet reports the id of a container a moment after its start; `allowed` waits for it, at most `patience_s`.
    """

    def __init__(self, api: ApiClient, node: str, age_s: float = 3.0, patience_s: float = 10.0) -> None:
        self._api = api
        self._params = {"fieldSelector": selector("spec.nodeName", node), "resourceVersion": "0"}
        self._age_s = age_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pods: Mapping[str, Object] = {}
        self._listed_s = float("-inf")

    def allowed(self, pool: str, task: Task, wanted: int) -> int:
        """The number of lists of a pool that the task's container requests, or `wanted` if it requests at least that.

        Refused for a task outside of pods; Unavailable if the number is unknown.
        """
        resource = RESOURCES.get(pool)
        if resource is None:
            raise Refused.of(
                CANNOT_CHOOSE_CPUS, "", f"pool {pool} has no resource", "a container that requests one"
            )
        expected = f"a container that requests {resource}"
        if not task.pod or not task.container:
            seen = f"process {task.pid} runs in no container of a pod"
            raise Refused.of(CANNOT_CHOOSE_CPUS, "", seen, expected)
        deadline = time.monotonic() + self._patience_s
        pods = self._list_pods(self._age_s)
        while (count := _requested_units(pods.get(task.pod), resource, task.container, wanted)) is None:
            if time.monotonic() >= deadline:
                is_listed = task.pod in pods
                seen = (
                    "the API server does not tell which it is" if is_listed else "not among the node's pods"
                )
                where = f"container {task.container} of pod {task.pod}"
                raise Unavailable.of(CANNOT_CHOOSE_CPUS, where, seen, expected)
            time.sleep(min(self._age_s, 0.5))
            pods = self._list_pods(0.5)
        return count

    def pod(self, uid: str) -> Object | None:
        """A pod of this node, or None. Unavailable if the API server does not respond."""
        return self._list_pods(self._age_s).get(uid) or self._list_pods(0.5).get(uid)

    def _list_pods(self, age_s: float) -> Mapping[str, Object]:
        """The pods by uid, at most `age_s` old."""
        with self._lock:
            if time.monotonic() - self._listed_s > age_s:
                self._pods = _pods_by_uid(self._api.get(PODS.path(), self._params).get("items") or ())
                self._listed_s = time.monotonic()
            return self._pods


def _pods_by_uid(pods: Iterable[Object]) -> Mapping[str, Object]:
    """The pods by the uids in the names of their cgroups.

    A mirror pod has the uid of its static pod in an annotation, which any creator of pods may write. So it does not
    replace a pod with that uid, and the oldest of several mirror pods counts.
    """
    mirrors: dict[str, Object] = {}
    own = {pod["metadata"]["uid"]: pod for pod in pods}
    for pod in sorted(own.values(), key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        static_uid = (pod["metadata"].get("annotations") or {}).get("kubernetes.io/config.mirror")
        if static_uid:
            mirrors.setdefault(str(static_uid), pod)
    return {**mirrors, **own}


def _requested_units(  # complexity: parts that a pod may lack
    pod: Object | None, resource: str, container: str, wanted: int
) -> int | None:
    """How many units the container requests.

    While it is unknown which of the pod's containers it is: `wanted` if all of them request that many, the largest
    request if none does, else None.
    """
    if pod is None:
        return None
    counts = []
    for specs, statuses in _STATUS_FIELDS.items():
        ids = {
            status["name"]: status.get("containerID", "")
            for status in pod.get("status", {}).get(statuses) or ()
        }
        for spec in pod["spec"].get(specs) or ():
            resources = spec.get("resources") or {}
            # the API server sets a request that is missing to the limit
            amounts = ((resources.get(kind) or {}).get(resource) for kind in ("requests", "limits"))
            amount = next((amount for amount in amounts if amount is not None), 0)
            counts.append(quantity.parse(str(amount)) // quantity.NANO)
            if ids.get(spec["name"], "").rpartition("//")[2] == container:
                return counts[-1]
    most = max(counts, default=0)
    if most < wanted:
        return most
    return wanted if min(counts, default=0) >= wanted else None


def most_tasks_of_pod(tasks: int, limit: int) -> int:
    """The limit per pod on a node that has so many tasks already.

    With many tasks it falls to one, so that pods with many tasks leave room for those of others.
    """
    return limit if tasks < _MANY_TASKS else max(1, min(limit, (_MOST_TASKS - tasks) // 8))


class AgentNode(NamedTuple):
    """The node of an agent, and limits of its allocations."""

    store: AllocationStore
    proc: Path
    boot: str
    sysfs: Path
    """The folder that holds `sys`."""
    fast: frozenset[int] = frozenset()
    """CPUs with a higher base frequency, whose lists are chosen first."""
    caches: Mapping[int, int] = {}
    """The cache of level 3 of each CPU that has one."""
    most_tasks: int = 64
    """The limit per pod, and for all processes outside of pods, on a node without many tasks."""
    namespace: str = ""
    """The agent's own namespace, whose pods may reconfigure the node; empty for none."""
    allows_unrequested: bool = False
    """Whether containers may have exclusive CPUs that they do not request."""


class AllocationService:
    """Answers requests. Its methods may be called from several threads.

    Without `pods` (no API server) allocations are not limited by what pods request.
    """

    def __init__(
        self,
        node: AgentNode,
        collector: TaskGarbageCollector,
        registry: MetricsRegistry,
        read_machine: Callable[[], PoolInputs],
        pods: NodePods | None = None,
        enforcer: CpusetEnforcer | None = None,
    ) -> None:
        self.node = node
        self.collector = collector
        self._registry = registry
        self._read_machine = read_machine
        self._pods = pods
        self._enforcer = enforcer
        self._write_lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._next_log_s = float("-inf")
        self._unlogged = 0

    def answer(self, peer: PeerProcess, line: bytes) -> SocketResponse:
        """The response to a line of `agent_messages`. Raises a `NodewiseError` for an error response."""
        fields = agent_messages.decode_line(line)
        # the process that connected may have ended, and the connection been passed on
        task = socket_server.read_process_as_task(self.node.proc, peer.task.pid, self.node.boot)
        if task.start != peer.task.start:
            seen = "has ended, and another process has its id"
            raise Refused.of("cannot identify the peer", f"process {task.pid}", seen)
        match fields.get("do"):
            case agent_messages.CLAIM:
                return self._answer_allocate(task, agent_messages.parse_allocate_request(fields))
            case agent_messages.RELEASE:
                return self._answer_release(task, pool_allocations.parse_task(fields.get("task"), "task"))
            case agent_messages.RECONFIGURE:
                check_may_reconfigure(PeerProcess(task, peer.user), self._pods, self.node.namespace)
                return SocketResponse(self._reconfigure(fields))
        wanted = f"{agent_messages.CLAIM}, {agent_messages.RELEASE} or {agent_messages.RECONFIGURE}"
        raise BadInput.of("cannot read a message", "do", shown(fields.get("do")), wanted)

    def _answer_allocate(self, task: Task, request: AllocateRequest) -> SocketResponse:
        try:
            response = self._allocate(task, request)
        except Unavailable:
            self._registry.count("cpu_claims_total", outcome="unavailable")
            raise
        except NodewiseError as error:
            self._registry.count("cpu_claims_total", outcome="refused")
            self._log_refusal(task, error)
            raise
        self._registry.count("cpu_claims_total", outcome="given")
        return SocketResponse(agent_messages.encode_allocate_response(response), holds=True)

    def _log_refusal(self, task: Task, error: NodewiseError) -> None:
        """Log at most one line per period: a tenant may send any number of requests."""
        with self._log_lock:
            self._unlogged += 1
            now_s = time.monotonic()
            if now_s < self._next_log_s:
                return
            self._next_log_s, unlogged, self._unlogged = now_s + LOG_EVERY_S, self._unlogged - 1, 0
        where = {"pid": task.pid, "pod": task.pod, "container": task.container}
        logs.emit("cpu_claim_refused", **where, error=str(error), unlogged=unlogged)

    def _allocate(self, task: Task, message: AllocateRequest) -> AllocateResponse:
        allocations = self.node.store.read().allocations
        avoid = allocations.cpus - read_online_cpus(self.node.sysfs) if message.affinity else frozenset[int]()
        request = AllocationRequest(*message[:3], avoid=avoid, prefer=self.node.fast, caches=self.node.caches)
        allowed = self._max_lists_of_container(allocations, request, task)
        try:
            result = self._store_allocation(request, task, allowed)
        except Unavailable:
            # tasks that have ended may hold the lists, or a collection released them just now
            self.collector.collect()
            result = self._store_allocation(request, task, allowed)
        if self._enforcer and task.container:
            try:
                self._enforcer.admit(self.node.store.read, task.container, self.collector.known)
            except NodewiseError:
                self._release(task)
                raise
        environment = allocator.task_environment(result.allocations, result.cpu_lists, task)
        return AllocateResponse(result.cpus, environment, task)

    def _max_lists_of_container(
        self, allocations: Allocations, request: AllocationRequest, task: Task
    ) -> int | None:
        """How many lists of the pool the task's container may hold; None for any number."""
        pool = allocations.pools.get(request.pool)
        is_limited = pool and pool.is_exclusive and self._pods and not self.node.allows_unrequested
        if not is_limited or _find_matching_allocation(allocations, request, task):
            return None
        assert self._pods
        wanted = _count_lists_of_container(allocations, request.pool, task) + request.lists
        return self._pods.allowed(request.pool, task, wanted)

    def _store_allocation(
        self, request: AllocationRequest, task: Task, allowed: int | None
    ) -> AllocationResult:
        draw = random.random()  # noqa: S311 - which of several lists is no secret

        def decide(stored: StoredAllocations) -> tuple[Allocations, AllocationResult]:
            result = _find_matching_allocation(stored.allocations, request, task)
            if result is None:
                self._check_limits(stored.allocations, request, task, allowed)
                result = allocator.allocate(stored.allocations, request, task, draw)
            return result.allocations, result

        with self._write_lock:
            return allocation_store.update(self.node.store, decide, pause_before_retry)

    def _check_limits(
        self, allocations: Allocations, request: AllocationRequest, task: Task, allowed: int | None
    ) -> None:
        tasks = allocations.tasks
        count = sum(other.pod == task.pod for other in tasks)
        most = most_tasks_of_pod(len(tasks), self.node.most_tasks)
        if count >= most:
            where = f"pod {task.pod}" if task.pod else "processes outside of pods"
            wanted = f"at most {most} at a time"
            raise Refused.of(CANNOT_CHOOSE_CPUS, where, f"{count} tasks", wanted)
        if allowed is None:
            return
        held = _count_lists_of_container(allocations, request.pool, task)
        if held + request.lists > allowed:
            raise Refused.of(
                CANNOT_CHOOSE_CPUS,
                f"CPU lists of pool {request.pool}",
                f"{held} held and {request.lists} more wanted" if held else f"{request.lists} wanted",
                f"at most {allowed}, which its container requests",
                remedy="request more of the pool's extended resource in the pod",
            )

    def _release(self, task: Task) -> None:
        with self._write_lock:
            allocation_store.release(self.node.store, task, pause_before_retry)

    def _answer_release(self, peer: Task, task: Task) -> SocketResponse:
        if task != peer:
            seen = f"process {task.pid}, requested by process {peer.pid}"
            raise Refused.of("cannot release CPUs", "task", seen, "the requesting process")
        stored = self.node.store.read()
        descendants = {pid for pid, _ in self.collector.living_processes_of_task(stored, task)} - {task.pid}
        if descendants:
            # while the wrapper is alive they are found as its children, and remembered from then on
            self.collector.collect()
            response = {"released": False, "processes": sorted(descendants)[:_MAX_LISTED]}
            return SocketResponse(agent_messages.encode(response), holds=True)
        self._release(task)
        if self._enforcer and task.container:
            try:
                self._enforcer.admit(self.node.store.read, task.container, self.collector.known)
            except NodewiseError as error:
                logs.emit("cpu_enforcing_failed", container=task.container, error=str(error))
        return SocketResponse(agent_messages.encode({"released": True}))

    def _reconfigure(self, fields: Mapping[str, Any]) -> bytes:
        request = agent_messages.parse_reconfigure_request(fields)
        lists = self._read_machine().plan(request.pools).pools

        def widen(cpus: Mapping[Task, frozenset[int]]) -> None:
            # the next garbage collection narrows the cpusets again
            if self._enforcer:
                self._enforcer.widen(self.node.store.read, cpus.keys())

        reconfiguration = execution.reconfigure(
            self.node.store,
            lists,
            self.node.proc,
            known=self.collector.collect().known,
            widen=widen,
            only_check=request.only_check,
        )
        return agent_messages.encode_reconfigure_response(reconfiguration.moves)


def check_may_reconfigure(peer: PeerProcess, pods: NodePods | None, namespace: str) -> None:
    """Refused unless the peer is root outside of pods, or root in a pod of this namespace.

    Unavailable if the pod's namespace is unknown.
    """
    uid = peer.task.pod
    if peer.user == _ROOT:
        pod = pods.pod(uid) if uid and pods and namespace else None
        if not uid or (pod is not None and pod["metadata"]["namespace"] == namespace):
            return
    seen = f"user {peer.user}" + (f" in pod {uid}" if uid else "")
    wanted = "root, outside of pods" + (f" or in one of namespace {namespace}" if pods and namespace else "")
    raise Refused.of("cannot reconfigure the node", "peer", seen, wanted)


def _count_lists_of_container(allocations: Allocations, name: str, task: Task) -> int:
    """How many lists of a pool, which may not exist any more, the task's container holds."""
    return sum(
        (other.pod, other.container) == (task.pod, task.container)
        for pool, cpu_list in allocations.cpu_lists
        for other in cpu_list.tasks
        if pool.name == name
    )


def _find_matching_allocation(
    allocations: Allocations, request: AllocationRequest, task: Task
) -> AllocationResult | None:
    """The task's allocation if it is the requested one: a client without a response sends its request again.

    None if the task has no allocation; Conflict if it has a different one.
    """
    held = [(pool, cpu_list) for pool, cpu_list in allocations.cpu_lists if task in cpu_list.tasks]
    if not held:
        return None
    wanted = request.lists if held[0][0].is_exclusive else 1
    if {pool.name for pool, _ in held} != {request.pool} or len(held) != wanted:
        seen = f"holds {', '.join(f'{pool.name} {cpu_list.text}' for pool, cpu_list in held)} already"
        raise Conflict.of(CANNOT_CHOOSE_CPUS, f"process {task.pid}", seen, "a process that holds nothing")
    return AllocationResult(allocations, tuple(cpu_list for _, cpu_list in held))


def read_online_cpus(root: Path) -> frozenset[int]:
    """The CPUs that are online now. `root` holds the machine's `sys`. Unavailable if they cannot be read."""
    path = root / CPUS / "online"
    try:
        return frozenset(cpu_set_formats.parse_cpu_numbers(read_text(path), str(path)))
    except OSError as error:
        expected = "the kernel's list of CPUs"
        raise Unavailable.of("cannot tell which CPUs are online", str(path), str(error), expected) from error
