"""Reconfigurations with real processes are atomic, whatever fails and whichever process is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cpu_tests.unit.allocation_factory import create_allocations as node
from cpu_tests.unit.reconfiguration import process_trees
from cpu_tests.unit.reconfiguration.process_trees import PROC, RunningProcessTree
from nodewise.base.errors import BadInput, Conflict, Refused, Unavailable
from nodewise_cpu import procfs
from nodewise_cpu.allocation_store import Intent, StoredAllocations
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.node import reconfiguration
from nodewise_cpu.pool_allocations import Allocations, Task

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="moves processes between two CPUs"),
]
ZERO, ONE, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def only(**lists: str) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
    return {name: {0: (text,)} for name, text in lists.items()}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "state", 30)


@contextlib.contextmanager
def held(store: DirectoryStore, **cpus: str) -> Iterator[dict[str, RunningProcessTree]]:
    """A process tree for each pool, on the CPU list of the argument."""
    with contextlib.ExitStack() as stack:
        families = {
            pool: stack.enter_context(process_trees.running({int(cpu) for cpu in text.split(",")}))
            for pool, text in cpus.items()
        }
        store.create(node({pool: {text: (families[pool].task,)} for pool, text in cpus.items()}))
        yield families


def test_every_thread_of_a_family_moves(store: DirectoryStore) -> None:
    """Case 210."""
    with held(store, exclusive="0") as families:
        family = families["exclusive"]
        assert len(family.affinities) == 9
        came = reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
        assert family.thread_affinities == {ONE}
        assert store.read()[::2] == (node({"exclusive": {"1": (family.task,)}}), None)
        assert [move.task.pid for move in came.moves] == [family.process.pid]


LATE = """
import os, sys, time
from pathlib import Path
print(flush=True)
time.sleep(0.5)
os.sched_setaffinity(0, {0})
Path("/proc/self/comm").write_text(f"isolate-{os.getpid()}")
time.sleep(1000)
"""


def test_a_starting_wrapper_is_moved_too(store: DirectoryStore) -> None:
    """The wrapper has an allocation, and sets its affinity only after the plan was made."""
    with subprocess.Popen([sys.executable, "-c", LATE], stdout=subprocess.PIPE) as wrapper:
        try:
            assert wrapper.stdout
            wrapper.stdout.readline()
            stat = procfs.parse_stat((PROC / f"{wrapper.pid}/stat").read_text())
            task = Task(wrapper.pid, stat.start, procfs.read_boot_id(PROC))
            store.create(node({"exclusive": {"0": (task,)}}))
            reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
            assert os.sched_getaffinity(wrapper.pid) == ONE
        finally:
            wrapper.kill()


def test_processes_outside_of_pools_are_not_moved(store: DirectoryStore) -> None:
    """Case 208: the process `above`, which uses more CPUs, belongs to no task."""
    with process_trees.running({0, 1}, below=0) as above, held(store, exclusive="0") as families:
        reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
        assert (above.thread_affinities, families["exclusive"].thread_affinities) == ({BOTH}, {ONE})


def test_a_task_on_two_lists_moves_from_both(store: DirectoryStore) -> None:
    """Case 209, with lists for two CPUs of this machine."""
    with process_trees.running({0, 1}) as family:
        store.create(node({"exclusive": {"0": (family.task,), "1": (family.task,)}, "infra": {}}))
        reconfiguration.reconfigure(store, {"exclusive": {0: ("1", "0")}, "infra": {0: ()}}, PROC)
        assert family.thread_affinities == {BOTH}


def test_tasks_whose_list_survives_are_not_moved(store: DirectoryStore) -> None:
    with held(store, exclusive="0", shared="0,1") as families:
        exclusive, shared = families["exclusive"], families["shared"]
        os.sched_setaffinity(exclusive.pids[1], {0, 1})
        before = exclusive.affinities
        reconfiguration.reconfigure(store, only(exclusive="0", shared="1"), PROC)
        assert (exclusive.affinities, shared.thread_affinities) == (before, {ONE})


def test_a_thread_on_one_cpu_of_its_list_goes_to_one(store: DirectoryStore) -> None:
    with process_trees.running({0, 1}, pinned=ZERO) as family:
        store.create(node({"shared": {"0,1": (family.task,)}}))
        reconfiguration.reconfigure(store, only(shared="1"), PROC)
        assert family.thread_affinities == {ONE}


def test_a_tree_that_forks_continuously_is_moved_completely(store: DirectoryStore) -> None:
    with process_trees.running({0}, forks=True) as family:
        store.create(node({"exclusive": {"0": (family.task,)}}))
        reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert affinities_in_session(family) == {ONE}


def affinities_in_session(family: RunningProcessTree) -> set[frozenset[int]]:
    """The affinities of all processes in the session of the process tree."""
    affinities = set()
    for pid, process in procfs.read_processes(PROC).processes.items():
        if pid in family.pids or process.parent == family.pids[-1]:
            with contextlib.suppress(ProcessLookupError):
                affinities.add(frozenset(os.sched_getaffinity(pid)))
    return affinities


def test_tasks_that_end_meanwhile_are_removed(store: DirectoryStore) -> None:
    with held(store, infra="0", shared="0") as families:

        def end(wanted: Mapping[Task, frozenset[int]]) -> None:
            assert wanted == {family.task: BOTH for family in families.values()}
            os.killpg(families["infra"].process.pid, 9)
            families["infra"].process.wait()

        reconfiguration.reconfigure(store, only(infra="1", shared="1"), PROC, widen=end)
        assert families["shared"].thread_affinities == {ONE}


def test_tasks_that_are_over_do_not_count(store: DirectoryStore) -> None:
    with held(store, exclusive="0") as families:
        gone = families["exclusive"].task._replace(start=2**40)
        stored = store.read()
        store.replace(stored.version, node({"exclusive": {"0": (families["exclusive"].task,), "1": (gone,)}}))
        reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
        assert families["exclusive"].thread_affinities == {ONE}


def test_looking_touches_nothing(store: DirectoryStore) -> None:
    with held(store, exclusive="0") as families:
        before = store.read()
        came = reconfiguration.reconfigure(store, only(exclusive="1"), PROC, only_check=True)
        assert [move.after for move in came.moves] == [ONE]
        with pytest.raises(BadInput, match="1 CPU lists held; expected at most 0"):
            reconfiguration.reconfigure(store, {"exclusive": {0: ()}}, PROC, only_check=True)
        assert (store.read(), families["exclusive"].thread_affinities) == (before, {ZERO})


def test_moves_are_undone_if_the_kernel_rejects_one(store: DirectoryStore) -> None:
    """The second task's list has a CPU that does not exist on this machine."""
    with held(store, infra="0", shared="0") as families:
        before = store.read().allocations
        with pytest.raises(Refused, match=r"thread \d+: may use CPUs 1 only; expected 1,63"):
            reconfiguration.reconfigure(store, only(infra="1", shared="1,63"), PROC)
        assert [family.thread_affinities for family in families.values()] == [{ZERO}, {ZERO}]
        assert store.read()[::2] == (before, None)


def test_a_thread_that_was_on_one_cpu_is_there_again(store: DirectoryStore) -> None:
    with process_trees.running({0, 1}, pinned=ZERO) as family:
        store.create(node({"shared": {"0,1": (family.task,)}}))
        before = family.affinities
        with pytest.raises(Refused):
            reconfiguration.reconfigure(store, only(shared="1,63"), PROC)
        assert family.affinities == before


def test_a_signal_that_ends_it_undoes_it(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal arrives after the third thread. Later calls succeed, so the moves can be undone."""
    put, count = os.sched_setaffinity, iter(range(1000))

    def interrupted(tid: int, cpus: frozenset[int]) -> None:
        if next(count) == 3:
            signal.raise_signal(signal.SIGINT)
        put(tid, cpus)

    with held(store, exclusive="0") as families:
        before = store.read().allocations
        monkeypatch.setattr(os, "sched_setaffinity", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reconfiguration.reconfigure(store, only(exclusive="1"), PROC)
        assert next(count) > 4
        assert (store.read()[::2], families["exclusive"].thread_affinities) == ((before, None), {ZERO})


class StoreWithConcurrentWrites:
    """A store in which another process writes first, at chosen calls of `replace`."""

    def __init__(self, store: DirectoryStore, meddle: Mapping[int, Any]) -> None:
        self._store, self._meddle, self._calls = store, meddle, 0
        self.location = store.location

    def read(self) -> StoredAllocations:
        return self._store.read()

    def create(self, first: Allocations) -> None:
        self._store.create(first)

    def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
        self._calls += 1
        if self._calls in self._meddle:
            self._meddle[self._calls]()
        self._store.replace(version, new, intent)

    def delete(self, version: str) -> None:
        self._store.delete(version)


def test_concurrent_changes_of_the_store_are_kept(store: DirectoryStore) -> None:
    """Another process allocates a core before the intent is written, and a task ends before the last write."""
    with held(store, infra="0") as families, process_trees.running({1}) as late:

        def claim() -> None:
            stored = store.read()
            store.replace(
                stored.version,
                node({"infra": {"0": (families["infra"].task,)}, "shared": {"1": (late.task,)}}),
            )

        def leave() -> None:
            stored = store.read()
            new = stored.allocations.with_tasks(
                lambda _, cpu_list: (task for task in cpu_list.tasks if task != late.task)
            )
            store.replace(stored.version, new, stored.intent)

        meddled = StoreWithConcurrentWrites(store, {1: claim, 3: leave})
        reconfiguration.reconfigure(meddled, only(infra="1", shared="0"), PROC)
        assert store.read()[::2] == (
            node({"infra": {"1": (families["infra"].task,)}, "shared": {"0": ()}}),
            None,
        )
        assert families["infra"].thread_affinities == {ONE}


def test_concurrent_allocations_of_cmk_are_kept(store: DirectoryStore) -> None:
    """An older program ignores intents."""
    with held(store, exclusive="0") as families, process_trees.running({1}) as late:
        both = node({"exclusive": {"0": (families["exclusive"].task,), "1": (late.task,)}})

        def claim() -> None:
            stored = store.read()
            store.replace(stored.version, both, stored.intent)

        with pytest.raises(Conflict, match=f"tasks {late.task.pid}"):
            reconfiguration.reconfigure(
                StoreWithConcurrentWrites(store, {2: claim}), only(exclusive="1"), PROC
            )
        assert store.read()[::2] == (both, None)
        assert families["exclusive"].thread_affinities == {ZERO}


def test_an_answer_that_was_lost_is_no_failure(store: DirectoryStore) -> None:
    class StoreWithLostResponse(StoreWithConcurrentWrites):
        def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
            super().replace(version, new, intent)
            if intent is None:
                raise Unavailable("no answer")

    with held(store, exclusive="0") as families:
        reconfiguration.reconfigure(StoreWithLostResponse(store, {}), only(exclusive="1"), PROC)
        assert store.read()[::2] == (node({"exclusive": {"1": (families["exclusive"].task,)}}), None)
        assert families["exclusive"].thread_affinities == {ONE}


def test_a_store_that_stays_unavailable_keeps_its_intent(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(time, "sleep", lambda _: None)
    with held(store, exclusive="0") as families:
        before = store.read().allocations
        with pytest.raises(Unavailable):
            reconfiguration.reconfigure(
                StoreWithConcurrentWrites(store, dict.fromkeys(range(2, 99), gone)), only(exclusive="1"), PROC
            )
        assert (store.read().intent is None, families["exclusive"].thread_affinities) == (False, {ONE})
        assert reconfiguration.recover(store, PROC)
        assert (store.read()[::2], families["exclusive"].thread_affinities) == ((before, None), {ZERO})


def test_a_running_reconfiguration_is_not_recovered(store: DirectoryStore) -> None:
    with held(store, exclusive="0") as families, process_trees.running({0, 1}) as carrier:
        stored = store.read()
        store.replace(stored.version, stored.allocations, Intent(stored.allocations, carrier.task, "now"))
        assert not reconfiguration.recover(store, PROC)
        for only_check in (True, False):
            with pytest.raises(
                Unavailable, match=f"being reconfigured by process {carrier.task.pid} since now"
            ):
                reconfiguration.reconfigure(store, only(exclusive="1"), PROC, only_check=only_check)
        assert families["exclusive"].thread_affinities == {ZERO}


def test_a_reconfiguration_in_another_thread_is_not_recovered(store: DirectoryStore) -> None:
    """The node agent collects garbage while it moves tasks."""
    with held(store, exclusive="0") as families, ThreadPoolExecutor(1) as other:

        def sweep(wanted: Mapping[Task, frozenset[int]]) -> None:
            assert not other.submit(reconfiguration.recover, store, PROC).result(10)

        reconfiguration.reconfigure(store, only(exclusive="1"), PROC, widen=sweep)
        assert families["exclusive"].thread_affinities == {ONE}
        assert store.read()[::2] == (node({"exclusive": {"1": (families["exclusive"].task,)}}), None)


def test_a_reconfiguration_of_an_earlier_boot_is_recovered(store: DirectoryStore) -> None:
    with held(store, exclusive="0") as families:
        stored = store.read()
        store.replace(
            stored.version, stored.allocations, Intent(stored.allocations, Task(1, 1, "earlier"), "then")
        )
        assert reconfiguration.recover(store, PROC)
        expected = ((stored.allocations, None), {ZERO})
        assert (store.read()[::2], families["exclusive"].thread_affinities) == expected


CARRIER = """
import json, os, signal, sys
from pathlib import Path
from nodewise_cpu.node import reconfiguration
from nodewise_cpu.directory_store import DirectoryStore

step, path, lists = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])

def counted(work):
    def wrapped(*given):
        for when in (0, 1):
            global step
            step -= 1
            if step < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            done = done if when else work(*given)
        return done
    return wrapped

os.sched_setaffinity = counted(os.sched_setaffinity)
DirectoryStore.replace = counted(DirectoryStore.replace)
lists = {name: {int(socket): texts for socket, texts in sockets.items()} for name, sockets in lists.items()}
reconfiguration.reconfigure(DirectoryStore(path, 30), lists, Path("/proc"))
"""
"""A program that kills itself before or after a step: a write, or a change of an affinity."""


def test_a_reconfiguration_killed_at_any_step_is_recovered(tmp_path: Path) -> None:
    """The state and the affinities are either all old or all new."""
    lists = {"infra": {0: ["1"]}, "shared": {0: ["1"]}}
    ends = set()
    with (
        process_trees.running({0}, below=1, threads=1) as family,
        process_trees.running({0, 1}, below=1, threads=1, pinned=ZERO) as other,
    ):
        before = {**family.affinities, **other.affinities}
        old = node({"infra": {"0": (family.task,)}, "shared": {"0,1": (other.task,)}})
        new = node({"infra": {"1": (family.task,)}, "shared": {"1": (other.task,)}})
        for step in range(1000):
            store = DirectoryStore(tmp_path / str(step), 30)
            store.create(old)
            command = [sys.executable, "-c", CARRIER, str(step), str(tmp_path / str(step)), json.dumps(lists)]
            code = subprocess.run(command, check=False).returncode
            reconfiguration.recover(store, PROC)
            now = {**family.affinities, **other.affinities}
            is_old = (store.read()[::2], now) == ((old, None), before)
            is_new = (store.read()[::2], set(now.values())) == ((new, None), {ONE})
            assert is_old or is_new, step
            ends.add(is_new)
            if code == 0:
                break
            assert code == -9
            if is_new:
                reconfiguration.reconfigure(store, {"infra": {0: ("0",)}, "shared": {0: ("0,1",)}}, PROC)
                for tid, cpus in before.items():
                    os.sched_setaffinity(tid, cpus)
    assert ends == {False, True}
    assert step > 2 * len(before)
