"""Obstacles for a run, set up in its own process: a signal in the middle, another user, a full disk."""

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
"""Functions of `os`."""


def signal_at_write(count: int, number: signal.Signals) -> None:
    """Send this process a signal at the call of that number that writes.

    SIGKILL comes before the call, or after half of the bytes of a write; any other signal after the call.
    """
    injector = SignalAtWrite(count, number)
    for name in WRITE_FUNCTIONS:
        setattr(os, name, injector.wrap(name))


def become_nobody() -> None:
    os.setgid(65534)
    os.setuid(65534)


def limit_files(size: int) -> None:
    """Let no file grow beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class SignalAtWrite:
    """Counts calls that write."""

    def __init__(self, count: int, number: signal.Signals) -> None:
        self._remaining = count
        self._signal = number

    def wrap(self, name: str) -> Callable[..., Any]:
        """The function of `os` by this name, which counts."""
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
