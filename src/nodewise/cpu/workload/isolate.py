"""`isolate`: claim CPUs, run a command on them, give them back.

Standard library only.

The command is a child: when it ends, what it held is given back, however it ended. When this process is killed itself,
the node agent's sweep, or the next `reconcile`, gives the CPUs back, once all that the command started is over.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from nodewise import __version__
from nodewise.cpu import claims, cpulist, names
from nodewise.cpu.messages import ClaimAnswer, ClaimRequest
from nodewise.cpu.pools import IS_EXCLUSIVE
from nodewise.cpu.state import Task
from nodewise.cpu.workload import affinity, arguments
from nodewise.cpu.workload.arguments import Arguments
from nodewise.cpu.workload.running import CannotStart, Ended, Runner
from nodewise.errors import NodewiseError, Unavailable
from nodewise.visible import visible

FAILED: Final = 125
"""Exit code of our own failures, as env(1) has it."""
_LEVELS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 3}
_LONGEST_PAUSE_S: Final = 2.0


class Source(Protocol):
    """Who gives CPUs: the node agent (`client.py`), or this process itself (`direct.py`)."""

    def claim(self, request: ClaimRequest, pin: Callable[[ClaimAnswer], None]) -> ClaimAnswer: ...

    def release(self, task: Task) -> None: ...

    def leave(self, task: Task) -> None: ...

    def close(self) -> None: ...


def main(words: Sequence[str], program: str = "cmk") -> int:
    """Do what the words after `isolate` ask for; the exit code."""
    try:
        if asks_for := arguments.asks_for(words):
            print(arguments.format_help(program) if asks_for == "--help" else f"nodewise {__version__}")  # noqa: T201
            return 0
        return _isolate(arguments.parse(words), Runner())
    except Ended as ended:
        return ended.code
    except NodewiseError as error:
        say("error", str(error))
        return error.code if isinstance(error, CannotStart) else FAILED


def say(level: str, text: str) -> None:
    """A line on stderr, if `CMK_LOG_LEVEL` is no higher; a word that is no level means info."""
    least = _LEVELS.get(os.environ.get(names.LOG_LEVEL, "info").strip().lower(), 1)
    if _LEVELS[level] >= least:
        print(f"nodewise: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201


def _isolate(asked: Arguments, runner: Runner) -> int:
    request = ClaimRequest(asked.pool, _count(asked.pool), asked.socket, asked.affinity)
    deadline = time.monotonic() + asked.wait_s
    pause_s = 0.05
    while True:
        source = None
        try:
            source = _source(asked, runner)
            answer = source.claim(request, _pin if asked.affinity else _unpinned)
            break
        except Unavailable as error:
            if source is not None:
                source.close()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            say("debug", f"trying again: {error}")
            runner.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return _run(asked, runner, source, answer)


def _run(asked: Arguments, runner: Runner, source: Source, answer: ClaimAnswer) -> int:
    is_over = True
    try:
        name = claims.wrapper_name(answer.task.pid)
        code, has_left_some = runner.run(asked.command, command_environment(answer.environment), name)
        is_over = not has_left_some
        return code
    finally:
        if is_over:
            _release(source, answer)
        else:
            source.leave(answer.task)
            cpus = cpulist.format_ranges(answer.cpus)
            say(
                "warning",
                f"processes that {asked.command[0]} started still run: CPUs {cpus} stay held until they end",
            )
        source.close()


def _release(source: Source, answer: ClaimAnswer) -> None:
    try:
        source.release(answer.task)
    except NodewiseError as error:
        cpus = cpulist.format_ranges(answer.cpus)
        say("warning", f"CPUs {cpus} are not given back now, the next sweep frees them: {error}")


def _count(pool: str) -> int:
    """How many lists are wanted; only of exclusive pools, of which there may be others than the known ones."""
    if not IS_EXCLUSIVE.get(pool, True):
        return 1
    return claims.parse_count(os.environ.get(claims.COUNT, "1"))


def _source(asked: Arguments, runner: Runner) -> Source:
    """The node agent wherever there is one, so that there are never two books; else the directory or the ConfigMap."""
    socket = Path(asked.agent_socket or names.DEFAULT_SOCKET)
    if not asked.is_direct and (socket.exists() or (not asked.conf_dir and socket.parent.is_dir())):
        from nodewise.cpu.workload.client import Agent

        if asked.conf_dir:
            say("warning", f"--conf-dir={asked.conf_dir} means nothing: the node agent at {socket} is asked")
        return Agent(socket)
    from nodewise.cpu.workload import direct

    proc = direct.host_proc(asked.proc_fs)
    if asked.conf_dir:
        from nodewise.cpu.store.files import DirectoryBook

        return direct.Direct(DirectoryBook(Path(asked.conf_dir), _lock_timeout_s()), proc, runner.sleep)
    from nodewise.cpu.workload import inside

    return direct.Direct(inside.book(asked), proc, runner.sleep)


def _lock_timeout_s() -> float:
    text = os.environ.get(names.LOCK_TIMEOUT, "")
    return arguments.parse_duration(names.LOCK_TIMEOUT, text) if text else 30.0


def _pin(answer: ClaimAnswer) -> None:
    affinity.confine(answer.cpus)


def _unpinned(answer: ClaimAnswer) -> None:
    say(
        "info",
        f"no affinity is set: the command has to run on CPUs {cpulist.format_ranges(answer.cpus)} by itself",
    )


def command_environment(told: Mapping[str, str]) -> Mapping[str, str]:
    """Ours with what the command is told, and without what started this program where it carries its own libraries."""
    found = {**os.environ, **told}
    if getattr(sys, "frozen", False):
        found = {name: text for name, text in found.items() if not name.startswith(("_PYI_", "_MEIPASS"))}
        original = found.pop("LD_LIBRARY_PATH_ORIG", None)
        found.pop("LD_LIBRARY_PATH", None)
        if original is not None:
            found["LD_LIBRARY_PATH"] = original
    return found
