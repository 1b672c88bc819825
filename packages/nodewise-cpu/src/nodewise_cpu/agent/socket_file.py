"""The file of the node agent's socket: one agent per path, in a folder that only root can change."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, BadSettings, Problem, Unavailable, shown

_BACKLOG: Final = 4096
"""The kernel rejects clients when the backlog is full, so one that connects very often must not fill it."""
_MODE: Final = 0o666
"""Every process may connect: requests are authorized by the peer's credentials."""
_POLL_S: Final = 0.1
_PATIENCE_S: Final = 10.0
"""How long an agent that ends may still serve the path."""


@contextlib.contextmanager
def opened(path: Path, patience_s: float = _PATIENCE_S) -> Iterator[socket.socket]:
    """A socket that listens at `path`; the file is removed at the end. A file that a killed agent left is replaced.

    BadSettings if there can be no socket, or others may write to the folder; Unavailable if another agent still serves
    the path after `patience_s`.
    """
    _make_socket_folder(path.parent)
    with _hold_path_lock(path, patience_s), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            path.unlink(missing_ok=True)
            listening.bind(str(path))
            path.chmod(_MODE)
            listening.listen(_BACKLOG)
        except OSError as error:
            problem = Problem("--socket", str(path), f"a path for a Unix socket ({error})")
            raise BadSettings("the node agent cannot listen", [problem]) from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def remove_socket_files(path: Path, *others: Path) -> bool:
    """Remove the files of agents at `path`, and these `others`. Returns whether there were any.

    Unavailable if an agent still serves the path after some seconds: then nothing is removed.
    """
    trusted_files.check_folder(path.parent)
    files = (path, _lock_file_path(path), *others)
    if not any(file.exists() for file in files):
        return False
    with _hold_path_lock(path, _PATIENCE_S):
        for file in files:
            file.unlink(missing_ok=True)
    return True


def _lock_file_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _make_socket_folder(folder: Path) -> None:
    try:
        trusted_files.check_folder(folder)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        trusted_files.check_folder(folder)
    except OSError as error:
        problem = Problem("--socket", shown(str(folder)), f"a folder ({error})")
        raise BadSettings("the node agent cannot listen", [problem]) from error
    except BadInput as error:
        raise BadSettings("the node agent cannot listen", error.problems, remedy=error.remedy) from error


@contextlib.contextmanager
def _hold_path_lock(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock of a path. The kernel releases it when the process ends."""
    deadline = time.monotonic() + patience_s
    try:
        lock = os.open(_lock_file_path(path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        problem = Problem("--socket", str(path), f"a folder that can be written to ({error})")
        raise BadSettings("the node agent cannot listen", [problem]) from error
    try:
        while not _try_lock(lock):
            if time.monotonic() >= deadline:
                problem = Problem("--socket", str(path), "a path that no other agent serves")
                raise Unavailable("the node agent cannot listen", [problem])
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
