"""The agent's socket file: one agent at a time, in a folder that only root can change."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodewise.base.errors import BadSettings, Unavailable
from nodewise_cpu.agent import socket_server


def test_every_user_may_connect_and_the_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run/cpu.sock"
    with socket_server.opened_socket(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    assert not path.exists()


def test_a_second_agent_is_turned_away(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sock"
    with (
        socket_server.opened_socket(path),
        pytest.raises(Unavailable, match="no other agent serves"),
        socket_server.opened_socket(path, patience_s=0.2),
    ):
        pass


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sock"
    program = (
        "import os, sys; from pathlib import Path; from nodewise_cpu.agent import socket_server\n"
        "with socket_server.opened_socket(Path(sys.argv[1])): os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", program, path], check=False)
    assert path.exists()
    with socket_server.opened_socket(path, patience_s=0.0):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777], ids=oct)
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with (
        pytest.raises(BadSettings, match="writable by no one else"),
        socket_server.opened_socket(tmp_path / "cpu.sock"),
    ):
        pass
    tmp_path.chmod(0o700)


@pytest.mark.root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(BadSettings, match="owner 65534"), socket_server.opened_socket(tmp_path / "cpu.sock"):
        pass
    os.chown(tmp_path, 0, 0)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(BadSettings, match="a path for a Unix socket"),
        socket_server.opened_socket(tmp_path / ("x" * 120)),
    ):
        pass
