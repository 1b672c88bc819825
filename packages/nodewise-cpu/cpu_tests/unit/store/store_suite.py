"""Tests of the behaviour of every store. Subclasses define the fixture `store`."""

import pytest

from cpu_tests.unit.allocation_factory import create_allocations
from nodewise.base.errors import Conflict, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise_cpu import allocation_store, pool_allocations
from nodewise_cpu.allocation_store import AllocationStore, Intent
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.reconfiguration_plan import Move

TASK = Task(17, 5, "one", "pod", "container")
FREE = pool_allocations.allocations_without_tasks(
    {"exclusive": {0: ("0,4", "1,5"), 1: ()}, "shared": {0: ("2,6",), 1: ()}, "infra": {0: ("3,7",), 1: ()}}
)
HELD = FREE.with_tasks(lambda _, cpu_list: (TASK,) if cpu_list.text in {"0,4", "2,6"} else cpu_list.tasks)
MOVE = Move(TASK, frozenset({1, 5}), frozenset({0, 4}))
INTENT = Intent(HELD, Task(3, 4, "one"), "2026-01-01T00:00:00Z", (MOVE,), {"18-6": frozenset({5})})


class StoreSuite:
    def test_a_new_store_is_empty(self, store: AllocationStore) -> None:
        with pytest.raises(NotFound):
            store.read()

    def test_written_allocations_can_be_read(self, store: AllocationStore) -> None:
        store.create(HELD)
        assert store.read()[::2] == (HELD, None)

    def test_an_existing_store_is_not_created(self, store: AllocationStore) -> None:
        store.create(HELD)
        with pytest.raises(Conflict):
            store.create(FREE)
        assert store.read().allocations == HELD

    def test_a_write_of_an_old_version_is_a_conflict(self, store: AllocationStore) -> None:
        """Case 102."""
        store.create(FREE)
        first, other = store.read(), store.read()
        store.replace(first.version, HELD)
        with pytest.raises(Conflict):
            store.replace(other.version, FREE)
        assert store.read().allocations == HELD

    def test_a_restored_content_has_another_version(self, store: AllocationStore) -> None:
        store.create(FREE)
        first = store.read()
        store.replace(first.version, HELD)
        store.replace(store.read().version, FREE)
        with pytest.raises(Conflict):
            store.replace(first.version, HELD)

    def test_pools_come_and_go(self, store: AllocationStore) -> None:
        store.create(HELD)
        fewer = create_allocations({"infra": {"0-3": [TASK]}})
        store.replace(store.read().version, fewer)
        assert store.read().allocations == fewer
        store.replace(store.read().version, HELD)
        assert store.read().allocations == HELD

    def test_an_intent_is_stored_until_it_is_removed(self, store: AllocationStore) -> None:
        store.create(FREE)
        store.replace(store.read().version, FREE, INTENT)
        assert store.read()[::2] == (FREE, INTENT)
        with pytest.raises(Unavailable, match="being reconfigured by process 3"):
            allocation_store.update(store, lambda stored: (HELD, None), lambda number: None)
        allocation_store.update(
            store, lambda stored: (HELD, None), lambda number: None, during_reconfiguration=True
        )
        assert store.read()[::2] == (HELD, INTENT)
        store.replace(store.read().version, HELD)
        assert store.read()[::2] == (HELD, None)

    def test_only_the_read_version_is_deleted(self, store: AllocationStore) -> None:
        store.create(FREE)
        old = store.read()
        store.replace(old.version, HELD)
        with pytest.raises(Conflict):
            store.delete(old.version)
        store.delete(store.read().version)
        with pytest.raises(NotFound):
            store.read()
        store.create(FREE)
        assert store.read().allocations == FREE
