"""Properties of a store in an unreliable API server: no CPU is allocated twice, and none is lost."""

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_tests.unit.node.in_memory_api_client import InMemoryApiClient
from nodewise.base.errors import Conflict, Unavailable
from nodewise.kube.api_server_interface import Patch
from nodewise_cpu import allocation_store, allocator, ended_tasks, pool_allocations
from nodewise_cpu.allocation_store import AllocationStore, StoredAllocations
from nodewise_cpu.allocator import AllocationRequest
from nodewise_cpu.cluster.api_server import NO_PARAMS
from nodewise_cpu.configmap_store import ConfigMapStore
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.pool_allocations import Allocations, Task

FRESH = pool_allocations.allocations_without_tasks(
    {"exclusive": {0: ("0,4", "1,5"), 1: ("2,6",)}, "shared": {0: ("3",)}, "infra": {0: ("7",)}}
)
FAULTS = st.sampled_from(["none", "none", "none", "error", "lost", "overtaken", "conflict"])


class UnreliableApiClient(InMemoryApiClient):
    """An API server that fails before or after a write, or lets another client write first."""

    def __init__(self, draw: Callable[[], str], overtake: Callable[[], None]) -> None:
        super().__init__()
        self._draw = draw
        self._overtake = overtake

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NO_PARAMS) -> Any:
        fault = self._draw()
        if fault == "error":
            raise Unavailable("500")
        if fault == "conflict":
            raise Conflict("409")
        if fault == "overtaken":
            self._overtake()
        answer = super().patch(path, body, kind, params)
        if fault == "lost":
            raise Unavailable("no answer in time")
        return answer


class Tasks:
    """Tasks that allocate and release. A task whose request failed ends, and a garbage collection removes it."""

    def __init__(self, draw: Callable[[], str]) -> None:
        flaky = UnreliableApiClient(draw, self._overtake)
        self.calm: AllocationStore = ConfigMapStore(InMemoryApiClient(flaky.api), "ns", "node1")
        self._flaky: AllocationStore = ConfigMapStore(flaky, "ns", "node1")
        self.calm.create(FRESH)
        self.granted: dict[Task, frozenset[int]] = {}
        self._count = 0

    def claim(self, store: AllocationStore | None = None) -> None:
        self._count += 1
        task = Task(self._count, start=self._count, boot="now")

        def decide(stored: StoredAllocations) -> tuple[Allocations, frozenset[int]]:
            # an earlier attempt may have been written without a response
            claim = allocator.allocate(
                stored.allocations.without(task), AllocationRequest("exclusive"), task, 0.0
            )
            return claim.allocations, frozenset(claim.cpus)

        try:
            cpus = allocation_store.update(store or self._flaky, decide, lambda number: None)
        except Unavailable:
            return
        assert not any(cpus & others for others in self.granted.values())
        self.granted[task] = cpus

    def release(self, task: Task) -> None:
        del self.granted[task]
        self._change(lambda stored: stored.allocations.without(task))

    def sweep(self) -> None:
        def remove_ended(stored: StoredAllocations) -> Allocations:
            # the processes are read after the store in each attempt, as in `garbage_collection.collect_garbage`
            alive = {task.pid: NodeProcess(task.start or 0, 0) for task in self.granted}
            return ended_tasks.remove_ended_tasks(stored.allocations, alive, "now").allocations

        self._change(remove_ended)

    def _change(self, decide: Callable[[StoredAllocations], Allocations]) -> None:
        try:
            allocation_store.update(self._flaky, lambda stored: (decide(stored), None), lambda number: None)
        except Unavailable:
            return  # a later sweep makes the change

    def _overtake(self) -> None:
        self.claim(self.calm)


@settings(max_examples=60)
@given(st.data())
def test_an_unreliable_api_server_loses_no_allocation_and_shares_no_cpu(data: st.DataObject) -> None:
    tasks = Tasks(lambda: data.draw(FAULTS))
    for step in data.draw(st.lists(st.sampled_from(["claim", "claim", "release", "sweep"]), max_size=12)):
        if step == "claim":
            tasks.claim()
        elif step == "release" and tasks.granted:
            tasks.release(data.draw(st.sampled_from(sorted(tasks.granted))))
        elif step == "sweep":
            tasks.sweep()
        cpu_lists = [cpu_list for _, cpu_list in tasks.calm.read().allocations.cpu_lists]
        assert all(len(cpu_list.tasks) <= 1 for cpu_list in cpu_lists)
        held = {task: frozenset(cpu_list.cpus) for cpu_list in cpu_lists for task in cpu_list.tasks}
        assert tasks.granted.items() <= held.items()
    tasks.granted.clear()
    alive: dict[int, NodeProcess] = {}
    allocation_store.update(
        tasks.calm,
        lambda stored: (ended_tasks.remove_ended_tasks(stored.allocations, alive, "now").allocations, None),
        lambda number: None,
    )
    assert tasks.calm.read().allocations == FRESH
