"""Child processes of tests, their log files, and free ports."""

import contextlib
import fcntl
import functools
import itertools
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from tests.cluster import skip_conditions

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
"""The range of ports. It is below the range of outgoing connections, which could take a port between the check and its
use.
"""
_SHARE = 500  # number of ports that one test process reserves


class NotReadyError(Exception):
    """A program ended or was not ready in time. The message ends with the last lines of its log."""


_numbers = itertools.count(1)


def number() -> int:
    """A number that is unique in this process, for names in a control plane. Port numbers are reused and not unique."""
    return next(_numbers)


def free_port() -> int:
    """A free TCP port of 127.0.0.1 that no other test process uses."""
    while True:
        port = next(_ports())
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def _ports() -> Iterator[int]:
    """An endless iterator over the ports of a range that this process has locked."""
    shares = [range(first, first + _SHARE) for first in range(LOWEST_PORT, HIGHEST_PORT, _SHARE)]
    for share in shares:
        with contextlib.suppress(OSError):
            path = Path(tempfile.gettempdir(), f"nodewise-ports-{share.start}")
            lock = os.open(path, os.O_RDWR | os.O_CREAT)  # stays open, and locked, until this process ends
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return itertools.cycle(share)
    return itertools.cycle(random.choice(shares))


def own_address() -> str:
    """An address of this machine other than loopback, which the API server accepts in endpoints."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # for UDP this sends nothing
        address: str = probe.getsockname()[0]
        if not address.startswith("127."):
            return address
    return skip_conditions.not_run("this machine has no address but loopback: give it a network")


class ChildProcess(Protocol):
    """The part of subprocess.Popen that `Process` uses."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Process:
    """A program that runs until `stop`, or until the thread that started it ends."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = Path(arguments[0]).name
        self.command = [str(word) for word in arguments]
        self.log = log
        with log.open("ab") as out:
            self._child = self._start(self.command, out, environment, folder)

    def _start(
        self, command: list[str], out: IO[bytes], environment: dict[str, str] | None, folder: Path | None
    ) -> "ChildProcess":
        return subprocess.Popen(
            [*_dies_with_us(), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def wait_ready(self, is_ready: Callable[[], bool], deadline_s: float = 60) -> None:
        """Waits until `is_ready`. Raises NotReadyError if the program ends or the deadline passes."""
        end = time.monotonic() + deadline_s
        while not is_ready():
            if not self.is_running:
                raise NotReadyError(f"{self.name} ended with code {self._child.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                raise NotReadyError(f"{self.name} was not ready after {deadline_s:g} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log, with long lines cut, for error messages."""
        return "\n".join(line[:300] for line in self.log.read_text(errors="replace").splitlines()[-lines:])

    def log_line_has(self, *parts: str) -> bool:
        """Whether a log line has all of these parts."""
        return any(all(part in line for part in parts) for line in self.log.read_text().splitlines())

    def stop(self, grace_s: float = 5) -> None:
        """Terminates the program, and kills it after `grace_s` seconds. A second call has no effect."""
        if self.is_running:
            self._child.terminate()
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the program (SIGKILL)."""
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def stopped_on_error(process: Process) -> Iterator[Process]:
    """Stops a process if its start fails."""
    try:
        yield process
    except BaseException:
        process.stop()
        raise


def _dies_with_us() -> list[str]:
    """A command prefix that makes the kernel kill the child when the test process dies."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
