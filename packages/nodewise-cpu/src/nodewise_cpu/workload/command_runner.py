"""Runs one command as a child: passes on signals, and notices the end of the command and of all that it started.

Standard library only.
"""

import errno
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from nodewise.base.errors import NodewiseError, Problem

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128

_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphaned descendants become children of this process."""
_NAME: Final = 15
"""PR_SET_NAME."""
_FROM_KERNEL: Final = 0x80
"""SI_KERNEL, the code of a signal that a terminal sends to its foreground process group."""
_OF_TERMINALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})
_NOT_FORWARDED: Final = frozenset(
    {
        signal.SIGKILL, signal.SIGSTOP,  # cannot be handled
        signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS,
        signal.SIGPIPE, signal.SIGTTIN, signal.SIGTTOU, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip
"""Signals that concern this process and not its command."""
_FORWARDED: Final = signal.valid_signals() - _NOT_FORWARDED - {signal.SIGCHLD}
_TERMINATING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these signals; a command should have their default action."""


class CommandStartError(NodewiseError):
    """The command does not exist, or cannot be executed."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__("cannot start the command", [Problem(command, error.strerror or str(error), "")])
        self.code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE


class SignalBeforeStart(Exception):
    """A terminating signal arrived before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.code = BY_SIGNAL + number


class CommandResult(NamedTuple):
    """The end of a command."""

    code: int
    """Its exit code, 128 + N if it ended by signal N."""
    left_processes: bool
    """Whether processes that it started are still running."""


class CommandRunner:
    """Blocks signals from its creation on, so that none is lost: `run` passes them on."""

    def __init__(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask_before: Collection[int] = signal.pthread_sigmask(
            signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD}
        )

    def sleep(self, seconds: float) -> None:
        """Wait. Raises SignalBeforeStart if a terminating signal arrives."""
        signal_info = signal.sigtimedwait(_TERMINATING, seconds)
        if signal_info is not None:
            raise SignalBeforeStart(signal_info.si_signo)

    def run(self, command: Sequence[str], environment: Mapping[str, str], name: str) -> CommandResult:
        """Start the command without a shell, and return when it has ended. CommandStartError if it does not start.

        This process takes the `name`, and so does its child until it executes the command.
        """
        _prctl(_SUBREAPER, 1)
        _prctl(_NAME, name.encode())
        try:
            child = os.posix_spawnp(
                command[0], list(command), environment, setsigmask=self._mask_before, setsigdef=_RESTORED
            )
        except OSError as error:
            raise CommandStartError(command[0], error) from error
        while True:
            signal_info = signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})
            if signal_info.si_signo != signal.SIGCHLD:
                _forward_signal(signal_info, child)
            elif (code := _reap_children(child)) is not None:
                return CommandResult(code, _has_children())


def _prctl(option: int, value: int | bytes) -> None:
    """prctl(2), for which Python has no function."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _forward_signal(signal_info: signal.struct_siginfo, child: int) -> None:
    """Send a signal to the command, unless a terminal has sent it to the process group of both already."""
    try:
        in_same_group = os.getpgid(child) == os.getpgrp()
        was_sent = signal_info.si_code == _FROM_KERNEL and in_same_group
        if not (was_sent and signal_info.si_signo in _OF_TERMINALS):
            os.kill(child, signal_info.si_signo)
    except ProcessLookupError:
        return


def _reap_children(child: int) -> int | None:
    """Wait for all ended children; returns the command's exit code if it ended. Stops if the command stopped."""
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
            _stop_own_process(os.WSTOPSIG(status))
        else:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else BY_SIGNAL - exit_code


def _stop_own_process(number: int) -> None:
    """Stop this process, as the shell that started the job expects. SIGCONT continues it, and is passed on."""
    if number in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
        os.kill(os.getpid(), signal.SIGSTOP)


def _has_children() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
