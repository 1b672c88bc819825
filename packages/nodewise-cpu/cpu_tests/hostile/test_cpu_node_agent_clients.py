"""Malicious clients of the node agent's socket do not affect other clients."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.folder_permissions import let_other_users_read
from tests.forked_commands import ForkedProcess

from cpu_tests.unit.agent import agent_process
from cpu_tests.unit.agent.agent_process import PATIENCE_S, RunningNodeAgent
from nodewise_cpu import procfs
from nodewise_cpu.agent.socket_server import ConnectionLimits

POOLS = {"exclusive": {0: ("0",)}, "shared": {0: ("1",)}, "infra": {0: ()}}
TASK = {"pid": 1, "start": 5, "boot": "b", "pod": "p", "container": "c"}
ODD = {
    "nothing": b"\n",
    "words": b"GET / HTTP/1.1\n",
    "no text": b"\xff\xfe\x00\n",
    "a number": b"17\n",
    "a list": b"[1,2]\n",
    "nested": b"[" * 30_000 + b"\n",
    "a large number": b'{"do":"claim","pool":"shared","lists":' + b"9" * 5_000 + b"}\n",
    "no task": b'{"do":"release"}\n',
    "half of a surrogate": b'{"do":"claim","pool":"\\ud800"}\n',
    "another method": b'{"do":"delete"}\n',
    "a method that is no text": b'{"do":{"claim":1}}\n',
}
WRONG: list[dict[str, Any]] = [
    {"do": "claim"},
    {"do": "claim", "pool": 5},
    {"do": "claim", "pool": ["exclusive"]},
    {"do": "claim", "pool": "none"},
    {"do": "claim", "pool": "exclusive", "lists": True},
    {"do": "claim", "pool": "exclusive", "lists": -1},
    {"do": "claim", "pool": "exclusive", "lists": 0},
    {"do": "claim", "pool": "exclusive", "lists": 1e3},
    {"do": "claim", "pool": "exclusive", "socket": "0"},
    {"do": "claim", "pool": "exclusive", "socket": 17},
    {"do": "claim", "pool": "exclusive", "affinity": "no"},
    {"do": "release", "task": TASK},
    {"do": "release", "task": {**TASK, "pid": "x"}},
    {"do": "release", "task": [TASK]},
    {"do": "reconfigure", "exclusive": "1"},
    {"do": "reconfigure", "exclusive": -1, "only_check": True},
    {"do": "reconfigure", "only_check": 1},
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNodeAgent]:
    folder = tmp_path_factory.mktemp("agent")
    short_deadline = {"nodewise_cpu.cli.agent.ConnectionLimits": partial(ConnectionLimits, line_s=1.0)}
    start = partial(ForkedProcess, constants=short_deadline)
    with agent_process.running(
        folder, "--interval=200ms", "--max-per-pod=40", pools=POOLS, start=start
    ) as running:
        yield running
        assert running.isolate("true").wait(PATIENCE_S) == 0


@pytest.fixture(autouse=True)
def _serves_on(agent: RunningNodeAgent) -> Iterator[None]:
    yield
    agent.expect_free()
    assert agent.process.is_running
    agent.expect_served()
    assert "task_failed" not in agent.log


@pytest.mark.parametrize("what", ODD)
def test_an_invalid_line_gets_an_error_and_the_connection_stays_open(
    agent: RunningNodeAgent, what: str
) -> None:
    with agent.client() as client:
        for _ in range(2):
            assert set(client.ask_bytes(ODD[what])) == {"error"}


@pytest.mark.parametrize("message", WRONG, ids=json.dumps)
def test_a_message_with_a_wrong_field_gets_an_error(agent: RunningNodeAgent, message: dict[str, Any]) -> None:
    with agent.client() as client:
        error = client.ask(message)["error"]
    assert error["kind"] in {"BadInput", "Refused", "Unavailable"}
    assert error["problems"]


def test_several_messages_at_once_are_answered_in_turn(agent: RunningNodeAgent) -> None:
    lines = [b'{"do":"claim","pool":"none"}', b"17", b'{"do":"claim"}']
    with agent.client() as client:
        client.link.sendall(b"\n".join(lines) + b"\n")
        answers = [client.answer() for _ in lines]
    assert [answer["error"]["problems"][0][0] for answer in answers] == ["--pool", "line", "--pool"]


def test_a_line_without_an_end_is_cut_off(agent: RunningNodeAgent) -> None:
    with agent.client() as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.link.sendall(b"x" * 10_000_000)
        answer = client.answer()
        assert answer is None or "at most 65536" in json.dumps(answer)
        assert client.answer() is None


def test_a_slow_client_is_disconnected_and_delays_no_others(agent: RunningNodeAgent) -> None:
    with agent.client() as slow:
        slow.link.sendall(b'{"do":')
        assert _claim_as(agent, 0)["cpus"] == [1]
        assert slow.answer() is None
    assert "line_deadline" in agent.log


def test_clients_that_do_not_read_delay_no_others(agent: RunningNodeAgent) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            deaf = stack.enter_context(agent.client())
            deaf.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            deaf.link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for _ in range(1_000):
                    deaf.link.send(b"17\n" * 1_000)
        assert _claim_as(agent, 0)["cpus"] == [1]


def test_a_thousand_connections_of_one_tenant_affect_no_other(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, "--max-connections=60", "--max-per-pod=40", pools=POOLS) as agent:
        with contextlib.ExitStack() as stack:
            links = []
            for _ in range(1_000):
                link = stack.enter_context(socket.socket(socket.AF_UNIX))
                link.connect(str(agent.path))
                link.settimeout(PATIENCE_S)
                links.append(link)
            # connections beyond the limit get an error and are closed
            refused = 0
            for link in links[40:]:
                refused += b"too many" in link.recv(65536)
            assert refused == 960
            # other users have separate limits
            assert _claim_as(agent, 65534)["cpus"] == [1]
        assert "unlogged" in agent.log
        agent.expect_free()


def test_an_idle_connection_is_closed_for_another_tenant(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, "--max-connections=20", "--max-per-pod=20", pools=POOLS) as agent:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(agent.client()) for _ in range(20)]
            for client in clients:
                assert "error" in client.ask_bytes(b"17\n")
            assert _claim_as(agent, 65534)["cpus"] == [1]
        agent.expect_free()


def test_a_connection_with_an_allocation_is_closed_without_losing_it(tmp_path: Path) -> None:
    with agent_process.running(tmp_path, "--max-connections=5", "--max-per-pod=7", pools=POOLS) as agent:
        wrappers = agent.start_holders(5, "shared")
        assert _claim_as(agent, 65534)["cpus"] == [1]
        assert {task.pid for task in agent.holders()["1"]} >= {wrapper.pid for wrapper in wrappers}
        for wrapper in wrappers:
            with wrapper:
                assert "not given back" not in wrapper.communicate("")[1]
        agent.expect_free()


def test_clients_that_die_between_claim_and_answer_leave_nothing(agent: RunningNodeAgent) -> None:
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        's.sendall(b\'{"do":"claim","pool":"exclusive"}\\n\')\n'
    )
    for _ in range(10):
        subprocess.run([sys.executable, "-S", "-c", program, agent.path], check=True)
    agent.expect_free()


def test_wrappers_killed_at_any_moment_leave_nothing(agent: RunningNodeAgent) -> None:
    for number in range(12):
        wrapper = agent.isolate("sleep", "600", pool="shared")
        time.sleep(0.02 * number)
        wrapper.kill()
        wrapper.wait()
        for pid in _left_of(wrapper.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wrapper.communicate(timeout=PATIENCE_S)
    agent.expect_free()


def test_a_claim_of_a_process_that_handed_its_connection_on_is_refused(agent: RunningNodeAgent) -> None:
    """The connection outlives the process that opened it."""
    program = (
        "import socket, sys, os, time\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.set_inheritable(True)\n"
        "s.sendall(b'17\\n'); s.recv(4096)\n"
        "parent = os.getpid()\n"
        "if os.fork(): os._exit(0)\n"
        "while os.getppid() == parent: time.sleep(0.01)\n"
        's.sendall(b\'{"do":"claim","pool":"exclusive"}\\n\'); print(s.recv(65536).decode())\n'
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program, agent.path],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert json.loads(ran.stdout)["error"]["what"] == "cannot identify the peer"


def _claim_as(agent: RunningNodeAgent, user: int) -> Any:
    program = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        's.sendall(b\'{"do":"claim","pool":"shared"}\\n\'); print(s.recv(65536).decode())\n'
    )
    let_other_users_read(agent.path.parent)
    command = ["/usr/bin/env", "python3", "-S", "-c", program, str(agent.path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, user=user)
    return json.loads(ran.stdout)


def _left_of(pid: int) -> list[int]:
    """The ids of the processes that a killed wrapper left behind, found by their mark."""
    processes = procfs.read_processes(Path("/proc")).processes
    return [child for child, process in processes.items() if process.mark.startswith(f"{pid}-")]
