"""The node agent's answers to requests: to allocate and release CPUs, and for other pools on its node.

An allocation is stored before it is answered. A request for other pools is authorized by its process.
"""

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable, shown
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.connection_close_reasons import LOG_EVERY_S
from nodewise_cpu import agent_messages, allocation_store, allocator, cpu_set_formats, pool_allocations
from nodewise_cpu.agent import socket_server
from nodewise_cpu.agent.socket_server import PeerProcess, SocketResponse
from nodewise_cpu.agent_messages import AllocateRequest, AllocateResponse
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.allocator import CANNOT_CHOOSE_CPUS, AllocationRequest, AllocationResult
from nodewise_cpu.cluster.api_server import Object
from nodewise_cpu.cpusets.enforcer import StoreReader
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.task_garbage_collection import TaskGarbageCollector, pause_before_retry
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.reconfiguration import execution
from nodewise_cpu.reconfiguration_plan import Cpus
from nodewise_cpu.topology import CPUS

_MAX_LISTED: Final = 10
"""How many processes a response names."""


class ResourceRequests(Protocol):
    """The extended resources that pods request, which limit their exclusive CPUs (`pod_core_requests.PodRequests`)."""

    def allowed(self, pool: str, task: Task, wanted: int) -> int:
        """The number of lists of a pool that the task's container requests, or `wanted` if it requests at least that.

        Refused for a task outside of pods; Unavailable if the number is unknown.
        """
        ...


class ContainerAdmitter(Protocol):
    """The part of `enforcer.CpusetEnforcer` that is used here."""

    def admit(self, read: StoreReader, container: str, known: KnownProcesses | None = None) -> bool: ...


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
    """The limit per pod, and for all processes outside of pods, which keeps the stored state small."""


class AllocationService:
    """Answers requests. Its methods may be called from several threads.

    Without `requested` allocations are not limited by what pods request. `reconfigure` answers its own messages.
    """

    def __init__(
        self,
        node: AgentNode,
        collector: TaskGarbageCollector,
        registry: MetricsRegistry,
        requested: ResourceRequests | None = None,
        containers: ContainerAdmitter | None = None,
        reconfigure: Callable[[PeerProcess, Mapping[str, Any]], bytes] | None = None,
    ) -> None:
        self.node = node
        self.collector = collector
        self._registry = registry
        self._requested = requested
        self._containers = containers
        self._reconfigure = reconfigure
        self._write_lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._next_log_s = float("-inf")
        self._unlogged = 0

    def answer(self, peer: PeerProcess, line: bytes) -> SocketResponse:
        """The response to a line of `agent_messages`. Raises a `NodewiseError` for an error response."""
        fields = agent_messages.decode_line(line)
        peer = self._check_peer_is_same_process(peer)
        match fields.get("do"):
            case agent_messages.CLAIM:
                return self._answer_allocate(peer, agent_messages.parse_allocate_request(fields))
            case agent_messages.RELEASE:
                return self._answer_release(peer, pool_allocations.parse_task(fields.get("task"), "task"))
            case agent_messages.RECONFIGURE if self._reconfigure:
                return SocketResponse(self._reconfigure(peer, fields))
        wanted = f"{agent_messages.CLAIM}, {agent_messages.RELEASE} or {agent_messages.RECONFIGURE}"
        raise BadInput.of("cannot read a message", "do", shown(fields.get("do")), wanted)

    def _check_peer_is_same_process(self, peer: PeerProcess) -> PeerProcess:
        """Refused if the process that connected has ended and its id is reused; the connection may be passed on."""
        task = socket_server.read_process_as_task(self.node.proc, peer.task.pid, self.node.boot)
        if task.start != peer.task.start:
            raise Refused.of(
                "cannot identify the peer", f"process {task.pid}", "has ended, and another process has its id"
            )
        return PeerProcess(task, peer.user)

    def _answer_allocate(self, peer: PeerProcess, request: AllocateRequest) -> SocketResponse:
        """Allocate, and count the outcome."""
        try:
            response = self._allocate(peer.task, request)
        except Unavailable:
            self._registry.count("cpu_claims_total", outcome="unavailable")
            raise
        except NodewiseError as error:
            self._registry.count("cpu_claims_total", outcome="refused")
            self._log_refusal(peer.task, error)
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
        request = self._make_allocation_request(allocations, message)
        allowed = self._max_lists_of_container(allocations, request, task)
        try:
            result = self._store_allocation(request, task, allowed)
        except Unavailable:
            # tasks that have ended may hold the lists, or a collection released them just now
            self.collector.collect()
            result = self._store_allocation(request, task, allowed)
        self._confine_container(task)
        environment = allocator.task_environment(result.allocations, result.cpu_lists, task)
        return AllocateResponse(result.cpus, environment, task)

    def _make_allocation_request(
        self, allocations: Allocations, message: AllocateRequest
    ) -> AllocationRequest:
        avoid = allocations.cpus - read_online_cpus(self.node.sysfs) if message.affinity else frozenset[int]()
        return AllocationRequest(
            message.pool,
            message.lists,
            message.socket,
            avoid=avoid,
            prefer=self.node.fast,
            caches=self.node.caches,
        )

    def _max_lists_of_container(
        self, allocations: Allocations, request: AllocationRequest, task: Task
    ) -> int | None:
        """How many lists of the pool the task's container may hold; None for any number."""
        pool = allocations.pools.get(request.pool)
        if pool is None or not pool.is_exclusive or self._requested is None:
            return None
        if find_matching_allocation(allocations, request, task):
            return None
        wanted = _number_of_lists_of_container(allocations, request, task) + request.lists
        return self._requested.allowed(request.pool, task, wanted)

    def _store_allocation(
        self, request: AllocationRequest, task: Task, allowed: int | None
    ) -> AllocationResult:
        draw = random.random()  # noqa: S311 - which of several lists is no secret

        def decide(stored: StoredAllocations) -> tuple[Allocations, AllocationResult]:
            result = find_matching_allocation(stored.allocations, request, task)
            if result is None:
                self._check_task_count(stored.allocations, task)
                _check_container_limit(stored.allocations, request, task, allowed)
                result = allocator.allocate(stored.allocations, request, task, draw)
            return result.allocations, result

        with self._write_lock:
            return allocation_store.update(self.node.store, decide, pause_before_retry)

    def _check_task_count(self, allocations: Allocations, task: Task) -> None:
        count = sum(other.pod == task.pod for other in allocations.tasks)
        if count >= self.node.most_tasks:
            who = f"pod {task.pod}" if task.pod else "processes outside of pods"
            raise Refused.of(
                CANNOT_CHOOSE_CPUS, who, f"{count} tasks", f"at most {self.node.most_tasks} at a time"
            )

    def _confine_container(self, task: Task) -> None:
        """Set the cpuset of the task's container. If that fails the allocation is released."""
        if self._containers is None or not task.container:
            return
        try:
            self._containers.admit(self.node.store.read, task.container, self.collector.known)
        except NodewiseError:
            self._release(task)
            raise

    def _release(self, task: Task) -> None:
        with self._write_lock:
            allocation_store.update(
                self.node.store,
                lambda stored: (allocator.release(stored.allocations, task), None),
                pause_before_retry,
                during_reconfiguration=True,
            )

    def _answer_release(self, peer: PeerProcess, task: Task) -> SocketResponse:
        if task != peer.task:
            seen = f"process {task.pid}, requested by process {peer.task.pid}"
            raise Refused.of("cannot release CPUs", "task", seen, "the requesting process")
        stored = self.node.store.read()
        descendants = {pid for pid, _ in self.collector.living_processes_of_task(stored, task)} - {task.pid}
        if descendants:
            # while the wrapper is alive they are found as its children, and remembered from then on
            self.collector.collect()
            response = {"released": False, "processes": sorted(descendants)[:_MAX_LISTED]}
            return SocketResponse(agent_messages.encode(response), holds=True)
        self._release(task)
        if self._containers is not None and task.container:
            try:
                self._containers.admit(self.node.store.read, task.container, self.collector.known)
            except NodewiseError as error:
                logs.emit("cpu_enforcing_failed", container=task.container, error=str(error))
        return SocketResponse(agent_messages.encode({"released": True}))


def _number_of_lists_of_container(allocations: Allocations, request: AllocationRequest, task: Task) -> int:
    """How many lists of the pool the task's container holds."""
    return sum(
        (other.pod, other.container) == (task.pod, task.container)
        for cpu_list in allocations.pools[request.pool].cpu_lists
        for other in cpu_list.tasks
    )


def _check_container_limit(
    allocations: Allocations, request: AllocationRequest, task: Task, allowed: int | None
) -> None:
    if allowed is None:
        return
    held = _number_of_lists_of_container(allocations, request, task)
    if held + request.lists > allowed:
        seen = f"{held} held and {request.lists} more wanted" if held else f"{request.lists} wanted"
        wanted = f"at most {allowed}, which its container requests"
        raise Refused.of(
            CANNOT_CHOOSE_CPUS,
            f"CPU lists of pool {request.pool}",
            seen,
            wanted,
            remedy="request more of the pool's extended resource in the pod",
        )


def find_matching_allocation(
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
        seen = ", ".join(f"{pool.name} {cpu_list.text}" for pool, cpu_list in held)
        raise Conflict.of(
            CANNOT_CHOOSE_CPUS, f"process {task.pid}", f"holds {seen} already", "a process that holds nothing"
        )
    return AllocationResult(allocations, tuple(cpu_list for _, cpu_list in held))


def read_online_cpus(root: Path) -> frozenset[int]:
    """The CPUs that are online. Unavailable if the kernel's file cannot be read."""
    path = root / CPUS / "online"
    try:
        return frozenset(cpu_set_formats.parse_cpu_numbers(read_text(path), str(path)))
    except OSError as error:
        raise Unavailable.of(
            "cannot tell which CPUs are online", str(path), str(error), "the kernel's list of CPUs"
        ) from error


_ROOT: Final = 0


class CpusetWidener(Protocol):
    """The part of `enforcer.CpusetEnforcer` that is used here."""

    def widen(self, read: StoreReader, tasks: Collection[Task]) -> None: ...


class NodePodReader(Protocol):
    """The part of `pod_core_requests.PodRequests` that is used here."""

    def pod(self, uid: str) -> Object | None: ...


class ReconfigurationAuthorizer:
    """Authorizes root on the host, and root in pods of the agent's own namespace."""

    def __init__(self, pods: NodePodReader | None, namespace: str) -> None:
        self._pods = pods
        self._namespace = namespace

    def check(self, peer: PeerProcess) -> None:
        """Refused for every other process; Unavailable if the pod's namespace is unknown."""
        uid = peer.task.pod
        if peer.user == _ROOT and (not uid or self._is_in_namespace(uid)):
            return
        seen = f"user {peer.user}" + (f" in pod {uid}" if uid else "")
        wanted = "root, outside of pods"
        wanted += f" or in one of namespace {self._namespace}" if self._pods and self._namespace else ""
        raise Refused.of("cannot reconfigure the node", "peer", seen, wanted)

    def _is_in_namespace(self, uid: str) -> bool:
        pod = self._pods.pod(uid) if self._pods and self._namespace else None
        return pod is not None and pod["metadata"]["namespace"] == self._namespace


class ReconfigurationService:
    """Answers `agent_messages.RECONFIGURE`."""

    def __init__(
        self,
        store: AllocationStore,
        proc: Path,
        read_machine: Callable[[], PoolInputs],
        collector: TaskGarbageCollector,
        authorizer: ReconfigurationAuthorizer,
        containers: CpusetWidener | None = None,
    ) -> None:
        self._store = store
        self._proc = proc
        self._read_machine = read_machine
        self._collector = collector
        self._authorizer = authorizer
        self._containers = containers

    def answer(self, peer: PeerProcess, fields: Mapping[str, Any]) -> bytes:
        """The moves that were made, or with `only_check` would be made. Raises the error that prevents them."""
        self._authorizer.check(peer)
        request = agent_messages.parse_reconfigure_request(fields)
        lists = self._read_machine().plan(request.pools).pools
        known = self._collector.collect().known
        reconfiguration = execution.reconfigure(
            self._store,
            lists,
            self._proc,
            known=known,
            widen=self._widen_cpusets,
            only_check=request.only_check,
        )
        return agent_messages.encode_reconfigure_response(reconfiguration.moves)

    def _widen_cpusets(self, cpus: Mapping[Task, Cpus]) -> None:
        """Widen the cpusets before tasks are moved. The next garbage collection narrows them again."""
        if self._containers is not None:
            self._containers.widen(self._store.read, cpus.keys())
