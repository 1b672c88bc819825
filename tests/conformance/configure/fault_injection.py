"""Faults for a run, injected in its own process: a signal at a write call, another user, a full disk."""

import os
import resource
import signal
from collections.abc import Callable
from typing import Any, Final

WRITE_FUNCTIONS: Final = (
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
"""Functions of `os` that are counted."""


def signal_at_write(count: int, number: signal.Signals) -> None:
    """Send a signal to this process at the write call of this number.

    SIGKILL comes before the call, or after half of the bytes of a write; any other signal after the call.
    """
    injector = SignalAtWrite(count, number)
    for name in WRITE_FUNCTIONS:
        setattr(os, name, injector.wrap(name))


def become_nobody() -> None:
    os.setgid(65534)
    os.setuid(65534)


def limit_files(size: int) -> None:
    """Limit the size of files in bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class SignalAtWrite:
    """Counts write calls and sends the signal."""

    def __init__(self, count: int, number: signal.Signals) -> None:
        self._remaining = count
        self._signal = number

    def wrap(self, name: str) -> Callable[..., Any]:
        """The function of `os` of this name, with counting."""
        function = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            writes = name != "open" or arguments[1] & (os.O_CREAT | os.O_TRUNC)
            self._remaining -= bool(writes)
            is_last = writes and self._remaining == 0
            if is_last and self._signal == signal.SIGKILL:
                if name == "write":
                    function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if is_last:
                os.kill(os.getpid(), self._signal)
            return result

        return call
