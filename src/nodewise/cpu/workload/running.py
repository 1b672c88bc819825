"""Runs one command: signals go on to it, its end and that of all that it starts is seen.

Standard library only.
"""

import errno
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.errors import NodewiseError, Problem

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128

_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): what the command starts is our child once its parent ended, and no other's."""
_NAME: Final = 15
"""PR_SET_NAME."""
_FROM_KERNEL: Final = 0x80
"""SI_KERNEL, the code of a signal that a terminal sends to all of its foreground."""
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})
_OURS: Final = frozenset(
    {
        signal.SIGKILL, signal.SIGSTOP,  # nobody sees these
        signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS,
        signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip
"""Signals that are about this process and not for its command."""
_PASSED: Final = signal.valid_signals() - _OURS - {signal.SIGCHLD}
_DEADLY: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; a command should not."""


class CannotStart(NodewiseError):
    """There is no such command, or it cannot be executed."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__("cannot start the command", [Problem(command, error.strerror or str(error), "")])
        self.code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE


class Ended(Exception):
    """Somebody wants this process to end while it waits."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.code = BY_SIGNAL + number


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    """Its exit code, 128 + N if it ended by signal N."""
    has_left_some: bool
    """Whether processes that it started still run."""


class Runner:
    """From now on no signal is lost: each waits for `run` to pass it on."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._before: Collection[int] = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED | {signal.SIGCHLD})

    def sleep(self, seconds: float) -> None:
        """Wait; Ended if somebody wants this process to end meanwhile."""
        found = signal.sigtimedwait(_DEADLY, seconds)
        if found is not None:
            raise Ended(found.si_signo)

    def run(self, command: Sequence[str], environment: Mapping[str, str], name: str) -> Outcome:
        """Start the command without a shell, and come back when it has ended. CannotStart says why it did not.

        `name` is this process's from now on, and its child's until that is the command.
        """
        _control(_SUBREAPER, 1)
        _control(_NAME, name.encode())
        try:
            child = os.posix_spawnp(
                command[0], list(command), environment, setsigmask=self._before, setsigdef=_RESTORED
            )
        except OSError as error:
            raise CannotStart(command[0], error) from error
        while True:
            seen = signal.sigwaitinfo(_PASSED | {signal.SIGCHLD})
            if seen.si_signo != signal.SIGCHLD:
                _pass_on(seen, child)
            elif (code := _reap(child)) is not None:
                return Outcome(code, _has_children())


def _control(option: int, value: int | bytes) -> None:
    """prctl(2), which Python has no function for."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _pass_on(seen: signal.struct_siginfo, child: int) -> None:
    """A signal of a terminal reaches all its foreground, the command too, unless it left our group."""
    try:
        is_told = seen.si_code == _FROM_KERNEL and os.getpgid(child) == os.getpgrp()
        if not (is_told and seen.si_signo in _OF_TERMINALS):
            os.kill(child, seen.si_signo)
    except ProcessLookupError:
        return


def _reap(child: int) -> int | None:
    """Hear of all that ended; the command's exit code if it is among them. If it stopped we stop as well."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid != child:
            continue
        if os.WIFSTOPPED(status):
            _stop(os.WSTOPSIG(status))
        else:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else BY_SIGNAL - ended


def _stop(number: int) -> None:
    """As the shell that started us expects of a job; SIGCONT wakes us, and is passed on."""
    if number in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
        os.kill(os.getpid(), signal.SIGSTOP)


def _has_children() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
