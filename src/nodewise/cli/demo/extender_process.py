"""The real extender as a child process, for the demo and for measurements."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import httpx2

from nodewise.base.errors import Problem, Unavailable


class ExtenderProcess:
    """A running `nodewise extender` with its URLs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self.url, self.health_url = self._read_listen_addresses()

    def _read_listen_addresses(self) -> tuple[str, str]:
        """Read the addresses from the event `started` in the log."""
        for _ in _poll_until_deadline(30.0):
            for line in self._log.read_bytes().splitlines():
                if b'"started"' in line:
                    event = json.loads(line)
                    return event["address"], event["health"]
            if self._process.poll() is not None:
                break
        raise Unavailable("the extender", [Problem("log", self._log.read_text()[-500:], "the event started")])

    def wait_ready(self, within_s: float = 60.0) -> float:
        """Wait until the extender is ready; return the waiting time in seconds."""
        began = time.monotonic()
        for _ in _poll_until_deadline(within_s):
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.health_url}/readyz").is_success:
                    return time.monotonic() - began
        raise Unavailable("the extender", [Problem("/readyz", f"not ready after {within_s:g} s", "ready")])

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def extender(arguments: Sequence[str]) -> Iterator[ExtenderProcess]:
    """Run `nodewise extender` with these arguments on free loopback ports until the block ends."""
    with tempfile.TemporaryDirectory(prefix="nodewise-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as out, _start_process(arguments, out) as process:
            try:
                yield ExtenderProcess(process, log)
            finally:
                process.terminate()
                process.wait()


def _start_process(arguments: Sequence[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    plain = ["--unsafe", "--log-format=json", "--shutdown-delay=0s"]
    program = [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "nodewise"]
    command = [*program, "extender", *plain, *arguments]
    ports = [] if any(argument.startswith("--port") for argument in arguments) else ["--port=0"]
    return subprocess.Popen([*command, *ports, "--health-port=0"], stdout=out, stderr=out)  # noqa: S603


def _poll_until_deadline(within_s: float) -> Iterator[None]:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
