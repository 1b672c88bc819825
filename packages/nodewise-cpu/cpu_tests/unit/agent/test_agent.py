"""The node agent as a process, with real wrappers and other clients."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import wait

from cpu_tests.unit.agent import agent_process
from cpu_tests.unit.agent.agent_process import PATIENCE_S, RunningNodeAgent
from nodewise_cpu import pool_allocations, procfs
from nodewise_cpu.allocation_store import Intent

PROC = Path("/proc")
POOLS = {"exclusive": {0: ("0",)}, "shared": {0: ()}, "infra": {0: ("1",)}}
CLAIM = {"do": "claim", "pool": "exclusive"}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningNodeAgent]:
    with agent_process.running(tmp_path, "--interval=200ms", pools=POOLS) as running:
        yield running
        # At SIGTERM the agent would wait until this process, whose connection has just ended, ends as well.
        running.process.kill()


def test_a_command_runs_on_the_cpus_that_its_wrapper_was_given(agent: RunningNodeAgent) -> None:
    with agent.isolate("sh", "-c", "echo $CMK_CPUS_ASSIGNED $CMK_CPUS_INFRA; read end; exit 7") as wrapper:
        assert wrapper.stdout
        assert wrapper.stdout.readline() == "0 1\n"
        (task,) = agent.expect_held("0")
        assert task.pid == wrapper.pid
        family = procfs.read_processes(PROC).processes
        children = [
            pid
            for pid, process in family.items()
            if process.mark == task.task_variable_value and process.parent == wrapper.pid
        ]
        assert children
        assert {
            thread.cpus for pid in (wrapper.pid, *children) for thread in procfs.read_threads(PROC, pid)
        } == {frozenset({0})}
        wrapper.communicate("\n")
    assert wrapper.returncode == 7
    assert agent.holders() == {}


def test_a_second_one_fails_with_the_reason_and_runs_after_the_first(agent: RunningNodeAgent) -> None:
    with agent.holder() as first:
        agent.expect_held("0")
        second = agent.isolate("true")
        _, errors = second.communicate()
        assert second.returncode == 125
        assert "pool exclusive: 0 of 1 CPU lists free, 1 held; expected 1" in errors
        waiting = agent.isolate("true", options=["--wait=60s"])
        first.communicate("")
        assert waiting.wait(PATIENCE_S) == 0
        waiting.communicate()
    assert agent.holders() == {}


def test_a_killed_wrapper_holds_until_its_descendants_are_over(agent: RunningNodeAgent) -> None:
    with agent.isolate("sh", "-c", "sleep 600 & echo $!; wait") as wrapper:
        assert wrapper.stdout
        sleeper = int(wrapper.stdout.readline())
        (task,) = agent.expect_held("0")
        marked = [
            pid
            for pid, process in procfs.read_processes(PROC).processes.items()
            if process.mark == task.task_variable_value
        ]
        wrapper.kill()
        wrapper.wait()
        _wait_for_sweeps(agent, 2)
        assert agent.holders() == {"0": (task,)}
        assert sleeper in marked
        for pid in marked:
            if pid != wrapper.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        agent.expect_free()
        wait("it is told", lambda: "cpu_reclaimed" in agent.log or None)


def test_a_process_without_an_environment_keeps_the_allocation(tmp_path: Path) -> None:
    """Only its parent process shows that it belongs to the wrapper, and no collection ran during the command."""
    with agent_process.running(tmp_path, "--interval=1h", pools=POOLS) as agent:
        wrapper = agent.isolate("env", "-i", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!")
        output, errors = wrapper.communicate(timeout=PATIENCE_S)
        sleeper = int(output)
        try:
            assert "still run" in errors
            for _ in range(2):
                agent.claim_and_end("infra")
                wait("its end is noticed", lambda: True if "1" not in agent.holders() else None)
            assert list(agent.holders()) == ["0"]
        finally:
            os.kill(sleeper, signal.SIGKILL)
        agent.claim_and_end("infra")
        agent.expect_free()


def test_a_release_is_refused_while_descendants_live(agent: RunningNodeAgent) -> None:
    program = (
        "import socket, sys, os, json, subprocess\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile('rwb')\n"
        "def ask(m):\n"
        "    f.write(json.dumps(m).encode() + b'\\n'); f.flush(); return json.loads(f.readline())\n"
        "task = ask({'do': 'claim', 'pool': 'exclusive'})['task']\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "before = ask({'do': 'release', 'task': task})\n"
        "child.kill(); child.wait()\n"
        "print(json.dumps([before, child.pid, ask({'do': 'release', 'task': task})]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, agent.path], capture_output=True, text=True, check=True
    )
    before, child, after = json.loads(ran.stdout)
    assert before == {"released": False, "processes": [child]}
    assert after == {"released": True}
    assert agent.holders() == {}


def test_a_repeated_request_gets_the_same_response(agent: RunningNodeAgent) -> None:
    with agent.client() as client:
        first = client.ask(CLAIM)
        assert first["cpus"] == [0]
        assert client.ask(CLAIM) == first
        with agent.client() as another:
            assert another.ask(CLAIM) == first
        error = client.ask({"do": "claim", "pool": "infra"})["error"]
        assert (error["kind"], error["problems"][0][1]) == ("Conflict", "holds exclusive 0 already")


def test_the_task_of_another_is_not_given_back(agent: RunningNodeAgent) -> None:
    with agent.holder() as wrapper, agent.client() as client:
        (task,) = agent.expect_held("0")
        error = client.ask({"do": "release", "task": task._asdict()})["error"]
        assert error["kind"] == "Refused"
        assert agent.holders() == {"0": (task,)}
        wrapper.communicate("")


def test_a_restarted_agent_keeps_all_allocations(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, pools=POOLS) as first:
        wrapper = first.holder()
        held = first.expect_held("0")
        first.process.kill()
    with agent_process.started(tmp_path, "--interval=200ms") as second:
        _wait_for_sweeps(second, 2)
        assert second.holders() == {"0": held}
        wrapper.communicate("")
        assert wrapper.returncode == 0
        assert second.holders() == {}


def test_with_sigterm_it_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, pools=POOLS, start=Process) as agent:
        wrapper = agent.holder()
        held = agent.expect_held("0")
        agent.process.stop(PATIENCE_S)
        assert agent.holders() == {"0": held}
        assert not agent.path.exists()
        assert "stopping" in agent.log
    _, errors = wrapper.communicate("")
    assert wrapper.returncode == 0
    assert "stay held until the next garbage collection" in errors


def test_without_pools_it_says_so_and_serves_when_there_are_some(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    path = tmp_path / "run/cpu.sock"
    with agent_process.starting(tmp_path, "--interval=200ms") as agent:
        wait("it listens", lambda: path.exists() or None, PATIENCE_S, lambda: agent.log)
        with agent.client() as client:
            assert "there are no pools" in client.ask(CLAIM)["error"]["what"]
        assert not agent.is_ready()
        agent.store.create(pool_allocations.allocations_without_tasks(POOLS))
        wait("it is ready", lambda: agent.is_ready() or None, PATIENCE_S, lambda: agent.log)
        with agent.client() as client:
            assert client.ask(CLAIM)["cpus"] == [0]


def test_a_task_that_ends_without_release_is_collected_at_once(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, "--interval=1h", pools=POOLS) as agent:
        for _ in range(3):
            assert agent.claim_and_end("exclusive")["cpus"] == [0]
            wait("it is free", lambda: _is_exclusive_list_free(agent), PATIENCE_S, lambda: agent.log)


def _is_exclusive_list_free(agent: RunningNodeAgent) -> bool | None:
    """True or None, for `wait`. A process of another test in execve may belong to the ended task, until the collection
    after the end of the next connection.
    """
    if "0" not in agent.holders():
        return True
    if "cpu_doubtful" in agent.log:
        agent.claim_and_end("infra")
    return None


def test_an_abandoned_reconfiguration_is_rolled_back(agent: RunningNodeAgent) -> None:
    stored = agent.store.read()
    over = procfs.read_own_process(PROC)
    by = pool_allocations.Task(over.pid, over.start - 1, procfs.read_boot_id(PROC))
    agent.store.replace(
        stored.version, stored.allocations, Intent(stored.allocations, by, "2026-01-01T00:00:00Z")
    )
    wait("it is taken back", lambda: agent.store.read().intent is None or None, PATIENCE_S, lambda: agent.log)
    wait("it is told", lambda: "cpu_intent_recovered" in agent.log or None)
    with agent.client() as client:
        assert client.ask(CLAIM)["cpus"] == [0]


def test_the_agent_exports_metrics(agent: RunningNodeAgent) -> None:
    with agent.client() as client:
        client.ask(CLAIM)
        client.ask({"do": "claim", "pool": "infra"})
        wait("it is counted", lambda: 'cpu_tasks{pool="exclusive"} 1.0' in agent.fetch("/metrics") or None)
        page = agent.fetch("/metrics")
    assert 'nodewise_cpu_claims_total{outcome="given"} 1.0' in page
    assert 'nodewise_cpu_claims_total{outcome="refused"} 1.0' in page
    assert 'nodewise_cpu_lists{pool="exclusive",state="held"} 1.0' in page


def test_root_on_the_host_may_ask_for_other_pools(agent: RunningNodeAgent) -> None:
    request = {"do": "reconfigure", "exclusive": 0, "shared": 1, "only_check": True}
    with agent.client() as client:
        assert client.ask(request) == {"moves": []}
        error = client.ask({**request, "exclusive": 5})["error"]
        assert "pool exclusive" in error["problems"][0]
        assert client.ask({**request, "only_check": False}) == {"moves": []}
    assert sorted(agent.store.read().allocations.pools["exclusive"].cpu_lists) == []


def test_a_tenant_has_no_more_connections_than_its_share(tmp_path: Path) -> None:
    with (
        agent_process.running(tmp_path, "--max-per-pod=3", pools=POOLS) as agent,
        contextlib.ExitStack() as stack,
    ):
        wrappers = agent.start_holders(3, "infra")
        wait("three tasks", lambda: True if len(agent.holders().get("1", ())) == 3 else None)
        fourth = agent.isolate("true", pool="infra")
        _, errors = fourth.communicate()
        assert fourth.returncode == 125
        assert "connections: too many; expected at most 3 of one pod" in errors
        for wrapper in wrappers:
            stack.enter_context(wrapper).communicate("")
    assert {wrapper.returncode for wrapper in wrappers} == {0}


def test_a_tenant_has_no_more_tasks_than_its_share(tmp_path: Path) -> None:
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        's.sendall(b\'{"do":"claim","pool":"infra"}\\n\'); print(s.recv(65536), flush=True)\n'
        "s.close(); input()\n"
    )
    with (
        agent_process.running(tmp_path, "--max-per-pod=3", pools=POOLS) as agent,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            command = [sys.executable, "-S", "-c", program, agent.path]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            held = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
            stack.callback(held.kill)
            assert held.stdout
            assert "cpus" in held.stdout.readline()
        with agent.client() as client:
            problem = client.ask({"do": "claim", "pool": "infra"})["error"]["problems"][0]
        assert problem == ["processes outside of pods", "3 tasks", "at most 3 at a time"]


def _wait_for_sweeps(agent: RunningNodeAgent, count: int) -> None:
    name = "nodewise_cpu_sweep_seconds_count "

    def sweeps() -> float:
        page = agent.fetch("/metrics")
        return float(next(line for line in page.splitlines() if line.startswith(name)).removeprefix(name))

    begun = sweeps()
    wait("it swept", lambda: sweeps() >= begun + count or None, PATIENCE_S, lambda: agent.log)
