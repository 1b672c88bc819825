"""`nodewise cpu reconfigure` with a node agent; `reaffinitize` names the command that replaces it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodewise.base.errors import Refused
from nodewise.cli import main
from nodewise_cpu import agent_messages
from nodewise_cpu.agent_messages import ReconfigureRequest
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.reconfiguration_plan import Move

MOVE = Move(Task(17), frozenset({1, 2}), frozenset({3}))
OPTIONS = ("--num-exclusive-cores", "2", "--num-shared-cores", "1", "--exclusive-mode", "spread", "--check")


@contextmanager
def agent(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """A socket that responds with one line; yields the requests."""
    requests: list[bytes] = []

    def serve() -> None:
        connected, _ = listening.accept()
        with connected, connected.makefile("rb") as lines:
            requests.append(lines.readline())
            connected.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield requests
        thread.join(10)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main.run(["cpu", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_agent_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with agent(tmp_path / "socket", agent_messages.encode_reconfigure_response([MOVE])) as requests:
        assert run("reconfigure", "--agent", str(tmp_path / "socket"), *OPTIONS) == 0
    request = agent_messages.parse_reconfigure_request(agent_messages.decode_line(requests[0]))
    assert request == ReconfigureRequest(PoolOptions(2, 1, "spread"), only_check=True)
    document = json.loads(capsys.readouterr().out)
    assert document == {"done": False, "moves": [{"pid": 17, "from": "1-2", "to": "3"}]}


def test_a_refusal_of_the_agent_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with agent(tmp_path / "socket", agent_messages.encode_error(Refused("no CPU is free"))):
        assert run("reconfigure", "--agent", str(tmp_path / "socket"), *OPTIONS) == 1
    assert capsys.readouterr().err == "nodewise: no CPU is free\n"


def test_a_closed_connection_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with agent(tmp_path / "socket", b""):
        assert run("reconfigure", "--agent", str(tmp_path / "socket"), *OPTIONS) == 1
    assert "the node agent does not answer" in capsys.readouterr().err


def test_reaffinitize_moves_nothing_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reaffinitize", "--node-name=n1", "--namespace=default") == 0
    assert "nothing to do" in capsys.readouterr().err
