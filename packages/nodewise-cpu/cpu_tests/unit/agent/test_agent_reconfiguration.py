"""Reconfigurations by the node agent, and the recovery of interrupted ones."""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import skip_conditions
from tests.cluster.namespace_sandboxes import wait
from tests.forked_commands import NODEWISE

from cpu_tests.conformance import case_cpu_topologies
from cpu_tests.conformance.test_node_commands import write
from cpu_tests.unit.agent import agent_process
from cpu_tests.unit.agent.agent_process import PATIENCE_S, RunningNodeAgent
from cpu_tests.unit.allocation_factory import create_allocations
from cpu_tests.unit.reconfiguration import process_trees
from nodewise.base.errors import Refused
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_cpu import procfs
from nodewise_cpu.agent import allocation_service
from nodewise_cpu.agent.socket_server import PeerProcess
from nodewise_cpu.allocation_store import Intent
from nodewise_cpu.cluster.api_server import Object
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.node.task_garbage_collection import TaskGarbageCollector
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.reconfiguration_plan import Move

PROC = Path("/proc")
POOLS: dict[str, dict[int, tuple[str, ...]]] = {
    "exclusive": {0: ("0",)},
    "shared": {0: ()},
    "infra": {0: ("1",)},
}
ZERO, ONE = frozenset({0}), frozenset({1})


pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def two_cpus() -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        skip_conditions.not_run("moving processes takes two CPUs")


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """The option for a machine whose second core is isolated, and therefore becomes exclusive."""
    return f"--sysfs={write(case_cpu_topologies.texts('B2', '1'), tmp_path / 'machine')}"


def family(task: Task) -> list[procfs.Thread]:
    """All current threads of a task and its descendants."""
    processes = procfs.read_processes(PROC).processes
    pids = {task.pid}
    while more := {pid for pid, process in processes.items() if process.parent in pids} - pids:
        pids |= more
    return [thread for pid in pids for thread in procfs.read_threads(PROC, pid)]


def thread_affinities(task: Task) -> set[frozenset[int]]:
    return {thread.cpus for thread in family(task)}


def reconfigure(agent: RunningNodeAgent, *options: str) -> Any:
    """The output of the command, which sends a request to the agent."""
    words = [
        "reconfigure",
        f"--agent={agent.path}",
        "--num-exclusive-cores=1",
        "--num-shared-cores=0",
        *options,
    ]
    done = subprocess.run([NODEWISE, "cpu", *words], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tasks_are_moved_during_frequent_garbage_collections(tmp_path: Path, machine: str) -> None:
    with agent_process.running(tmp_path, machine, "--interval=0.1s", pools=POOLS) as agent:
        wrapper = agent.isolate("sh", "-c", "sleep 1000 & echo runs; exec cat")
        assert wrapper.stdout
        assert wrapper.stdout.readline() == "runs\n"
        (task,) = agent.expect_held("0")
        move = {"pid": task.pid, "from": "0", "to": "1"}
        assert reconfigure(agent, "--check") == {"moves": [move], "done": False}
        assert (thread_affinities(task), list(agent.holders())) == ({ZERO}, ["0"])
        assert reconfigure(agent) == {"moves": [move], "done": True}
        assert len(family(task)) >= 3
        assert (thread_affinities(task), agent.holders()) == ({ONE}, {"1": (task,)})
        assert reconfigure(agent) == {"moves": [], "done": True}
        assert agent.store.read().intent is None
        (sleep,) = (process.pid for process in family(task) if name(process.pid) == "sleep")
        assert wrapper.stdin
        wrapper.stdin.close()
        os.kill(sleep, 9)
        assert wrapper.wait(PATIENCE_S) == 0
        agent.expect_free()


def name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / f"{pid}/comm").read_text().strip()
    return ""


def test_an_interrupted_reconfiguration_is_rolled_back(tmp_path: Path, machine: str) -> None:
    with (
        agent_process.running(tmp_path, machine, "--interval=0.2s", pools=POOLS) as agent,
        agent.holder() as wrapper,
    ):
        (task,) = agent.expect_held("0")
        stored = agent.store.read()
        gone = Task(2**22 - 1, 1, procfs.read_boot_id(PROC))
        intent = Intent(stored.allocations, gone, "then", (Move(task, ZERO, ONE),))
        for thread in family(task):
            os.sched_setaffinity(thread.tid, ONE)
        agent.store.replace(stored.version, stored.allocations, intent)
        wait(
            "it is taken back",
            lambda: agent.store.read().intent is None or None,
            PATIENCE_S,
            lambda: agent.log,
        )
        assert (thread_affinities(task), agent.holders()) == ({ZERO}, {"0": (task,)})
        wait("it is logged", lambda: "cpu_intent_recovered" in agent.log or None)
        assert wrapper.stdin
        wrapper.stdin.close()


def test_rollback_moves_processes_known_from_earlier_collections(tmp_path: Path) -> None:
    """The wrapper is gone and its children carry no mark."""
    store = DirectoryStore(tmp_path / "state")
    with process_trees.running({0}) as family:
        store.create(create_allocations({"exclusive": {"0": [family.task], "1": ()}}))
        collector = TaskGarbageCollector(store, PROC, MetricsRegistry())
        collector.collect()
        family.process.kill()
        family.process.wait()
        left = [thread for pid in family.pids[1:] for thread in procfs.read_threads(PROC, pid)]
        for thread in left:
            os.sched_setaffinity(thread.tid, ONE)
        stored = store.read()
        gone = Task(2**22 - 1, 1, procfs.read_boot_id(PROC))
        store.replace(
            stored.version,
            stored.allocations,
            Intent(stored.allocations, gone, "then", (Move(family.task, ZERO, ONE),)),
        )
        collector.collect()
        assert store.read()[::2] == (stored.allocations, None)
        assert {frozenset(os.sched_getaffinity(thread.tid)) for thread in left} == {ZERO}


HOST, POD = Task(17, 5, "boot"), Task(17, 5, "boot", "uid-1", "container")


class FakePodLookup:
    """A node with one pod, in this namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def pod(self, uid: str) -> Object | None:
        return {"metadata": {"namespace": self._namespace}} if uid == POD.pod else None


def test_root_on_the_host_and_in_pods_of_the_agents_namespace_may_reconfigure() -> None:
    allocation_service.check_may_reconfigure(PeerProcess(HOST, 0), None, "")
    allocation_service.check_may_reconfigure(PeerProcess(POD, 0), FakePodLookup("ours"), "ours")


@pytest.mark.parametrize(
    ("task", "user", "pods", "namespace"),
    [
        pytest.param(HOST, 1000, FakePodLookup("ours"), "ours", id="a user"),
        pytest.param(POD, 1000, FakePodLookup("ours"), "ours", id="a user in our pod"),
        pytest.param(POD, 0, FakePodLookup("theirs"), "ours", id="root of a tenant"),
        pytest.param(POD._replace(pod="another"), 0, FakePodLookup("ours"), "ours", id="unknown pod"),
        pytest.param(POD, 0, FakePodLookup(""), "", id="no namespace"),
        pytest.param(POD, 0, None, "ours", id="no API server"),
    ],
)
def test_other_processes_are_not_authorized(
    task: Task, user: int, pods: FakePodLookup | None, namespace: str
) -> None:
    with pytest.raises(Refused, match="cannot reconfigure the node"):
        allocation_service.check_may_reconfigure(PeerProcess(task, user), pods, namespace)
