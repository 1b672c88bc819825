"""Runs of nodewise that need no start of an interpreter: forks of one process that has imported every command.

A run is a process of its own with its arguments, environment, working directory, standard streams and exit code.
Tests of what happens before the first command is parsed, of PYTHONPATH and of command lines in /proc start a real one.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import reduction
from pathlib import Path
from typing import IO, Any, Final

from tests.cluster.child_processes import ChildProcess, Process

PROGRAMS: Final = {"nodewise": "nodewise.cli.main", "cmk": "nodewise_cpu.cmk"}
"""Modules of the scripts in the environment's folder of programs."""
NODEWISE: Final = Path(sys.executable).parent / "nodewise"
CMK: Final = NODEWISE.parent / "cmk"
SHORT_WAITS: Final = {
    "nodewise_cpu.cluster.object_writer.SETTLED_S": 0.3,
    "nodewise_cpu.cluster.cpu_manager_removal.TASKS_S": 1.0,
}
"""Constants: for containers that may fail after their start, and for tasks that may end."""
_PR_SET_PDEATHSIG: Final = 1
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", __name__, "tests.fork_preload"])


class Descriptor:
    """An open file that is passed to another process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any]]:
        return _received, (reduction.DupFd(self.number),)


def _received(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


class Fork:
    """A running program, with the part of subprocess.Popen's interface that tests use."""

    def __init__(
        self,
        words: Sequence[str | Path],
        stdin: IO[Any] | int,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int,
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        self.args = [str(word) for word in words]
        streams = [
            Descriptor(file if isinstance(file, int) else file.fileno()) for file in (stdin, stdout, stderr)
        ]
        environment = dict(os.environ if env is None else env)
        folder = str(cwd or Path.cwd())
        self._process = _CONTEXT.Process(
            target=_main,
            args=(self.args, streams, folder, environment, dict(constants or {}), before),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcess(Process):
    """A server of nodewise that runs until `stop`. `constants` as in `run`."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self._constants = dict(constants or {})
        super().__init__(arguments, log, environment, folder)

    def _start(
        self, command: list[str], out: IO[bytes], environment: dict[str, str] | None, folder: Path | None
    ) -> ChildProcess:
        if "PYTHONPATH" in (environment or os.environ):  # what to import depends on it
            return super()._start(command, out, environment, folder)
        with Path(os.devnull).open("rb") as stdin:
            return Fork(command, stdin, out, out, cwd=folder, env=environment, constants=self._constants)


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",  # noqa: A002 - as subprocess.run calls it
    timeout: float = 120,
    check: bool = False,
    constants: Mapping[str, object] | None = None,
    before: Callable[[], object] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run `nodewise` or `cmk` to its end, like subprocess.run with `capture_output` and `text`.

    `constants` are other values of constants, by `module.NAME`, for waits of many seconds. `before` is called in the
    new process, before the program; it has to be picklable.
    """
    (stdout, writes_stdout), (stderr, writes_stderr) = os.pipe(), os.pipe()
    with tempfile.TemporaryFile() as stdin, ThreadPoolExecutor(2) as readers:
        stdin.write(input.encode())
        stdin.seek(0)
        texts = list(map(readers.submit, (_read, _read), (stdout, stderr)))
        try:
            process = Fork(
                command,
                stdin,
                writes_stdout,
                writes_stderr,
                cwd=cwd,
                env=env,
                constants=constants,
                before=before,
            )
        finally:
            os.close(writes_stdout)
            os.close(writes_stderr)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out, err = (text.result() for text in texts)
    if check and code:
        raise subprocess.CalledProcessError(code, process.args, out, err)
    return subprocess.CompletedProcess(process.args, code, out, err)


def _read(descriptor: int) -> str:
    with open(descriptor) as file:
        return file.read()


def _main(
    words: list[str],
    streams: list[Descriptor],
    folder: str,
    environment: dict[str, str],
    constants: dict[str, object],
    before: Callable[[], object] | None,
) -> None:
    """Become the program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, received in enumerate(streams):
        os.dup2(received.number, number)
        os.close(received.number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.argv = words
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(module), constant, value)
    if before:
        before()
    importlib.import_module(PROGRAMS[Path(words[0]).name]).run()
