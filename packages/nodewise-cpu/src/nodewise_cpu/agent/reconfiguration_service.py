"""The node agent's answers to requests for other pools on its node, and the authorization of these requests."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from nodewise.base.errors import Problem, Refused
from nodewise_cpu import agent_messages
from nodewise_cpu.agent.task_garbage_collector import TaskGarbageCollector
from nodewise_cpu.allocation_store import AllocationStore
from nodewise_cpu.api_client_interface import Object
from nodewise_cpu.cpusets.enforcer import StoreReader
from nodewise_cpu.node.machine_features import PoolInputs
from nodewise_cpu.node.peer_credentials import PeerProcess
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.reconfiguration import execution
from nodewise_cpu.reconfiguration_plan import Cpus

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
        raise Refused("cannot reconfigure the node", [Problem("peer", seen, wanted)])

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
