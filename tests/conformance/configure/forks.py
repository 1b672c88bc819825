"""Runs of `nodewise configure` that need no start of their own: forked off a process that has imported it.

Each is still a process, with its own working directory, that can be killed; hundreds of them take some seconds.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nodewise.agents import telemetry
from nodewise.cli import configure, main

WRITING: Final = (
    "open",
    "write",
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "chmod",
    "fchmod",
    "fchown",
    "setxattr",
)
KILLED: Final = -signal.SIGKILL
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, configure.__name__, telemetry.__name__])


def run(folder: Path, *words: str, killed_at: int = 0) -> int:
    """The exit code of the command in a folder; KILLED if it made so many calls that write, and was ended at the last.

    The process that forks has the environment of the tests.
    """
    process = _FORKS.Process(target=_run, args=(folder, words, killed_at))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(folder: Path, words: tuple[str, ...], killed_at: int) -> None:
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("NODEWISE_")]:
        del os.environ[name]
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        if killed_at:
            ending = Ending(killed_at)
            for name in WRITING:
                setattr(os, name, ending.counted(name))
        main.run(["configure", *words])


class Ending:
    """Counts calls that write, and ends the process at the last of so many, in the middle if that one writes bytes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def counted(self, name: str) -> Callable[..., Any]:
        """The call of `os` by this name, which counts."""
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            if name != "open" or given[1] & (os.O_CREAT | os.O_TRUNC):
                self._left -= 1
                if self._left == 0:
                    if name == "write":
                        real(given[0], bytes(given[1])[: len(given[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return call
