"""`isolate`: allocates CPUs, runs a command on them, and releases them.

Standard library only.

The command is a child process, to which signals are passed on. When it ends, however it ends, its CPUs are released. If
this process is killed, the node agent's next garbage collection, or `reconcile`, releases them once all processes of
the command have ended.

Options may appear anywhere before `--`, also after the command's name, as in CMK. Everything after `--` belongs to the
command, and so do `--help` and `--version` after its name, which CMK answered itself. A long option may be abbreviated
if that is unambiguous; options of CMK take precedence over newer ones.
"""

import errno
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from nodewise import __version__
from nodewise.base import clock
from nodewise.base.errors import BadSettings, NodewiseError, Problem, Refused, Unavailable, shown, visible
from nodewise_cpu import allocator, cmk_names, cpu_set_formats
from nodewise_cpu.agent_messages import AllocateRequest, AllocateResponse
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import IS_EXCLUSIVE


class IsolateOption(NamedTuple):
    """An option: `metavar` is empty for a flag, `in_cmk` is set if CMK had it."""

    name: str
    metavar: str
    help: str
    in_cmk: bool = False


OPTIONS: Final = (
    IsolateOption("--pool", "POOL", "The pool of the CPUs.", in_cmk=True),
    IsolateOption(
        "--socket-id", "N", "CPUs of this socket; -1 for any. Ignored for the pool infra.", in_cmk=True
    ),
    IsolateOption(
        "--no-affinity", "", "Allocate the CPUs and set no affinity: the command does it itself.", in_cmk=True
    ),
    IsolateOption(
        "--wait", "DURATION", "How long to retry if too few CPU lists are free, such as 30s or 5m."
    ),
    IsolateOption("--agent-socket", "PATH", f"The node agent's socket. Default: {cmk_names.DEFAULT_SOCKET}."),
    IsolateOption(
        "--conf-dir", "DIR", "Without a node agent: the directory of the node's state.", in_cmk=True
    ),
    IsolateOption("--direct", "", "Do not use the node agent; without --conf-dir use a ConfigMap."),
    IsolateOption("--namespace", "NAMESPACE", "Namespace of the ConfigMap. Default: default.", in_cmk=True),
    IsolateOption(
        "--node-name",
        "NAME",
        f"The node, without a node agent. Default: {cmk_names.NODE_NAME}, else this pod's.",
    ),
    IsolateOption("--kubeconfig", "FILE", "A kubeconfig file. Default: the pod's service account."),
    IsolateOption(
        "--proc-fs", "DIR", f"The host's /proc, without a node agent. Default: {cmk_names.PROC_FS}."
    ),
    IsolateOption("--help", "", "Show this message and exit.", in_cmk=True),
    IsolateOption("--version", "", "Show the version and exit.", in_cmk=True),
)
_INFORMATION: Final = {"--help", "--version"}
_SHORT: Final = {"-h": "--help"}
_KNOWN: Final = {option.name: option for option in OPTIONS}

SUMMARY: Final = "Run a command on CPUs of a pool, and release them when it ends."
DETAILS: Final = "The variable CMK_NUM_CORES has the number of CPU lists of an exclusive pool."
EXIT_CODES: Final = {
    "125": "the command was not started; see stderr",
    "126": "it cannot be executed",
    "127": "there is no such command",
    "128+N": "it ended by signal N",
    "else": "its own",
}
EXAMPLES: Final = (
    "isolate --pool=exclusive -- spin --forever",
    "isolate --pool=shared --wait=30s sleep -- 100",
)


class IsolateArguments(NamedTuple):
    """The parsed arguments; an empty text is the default."""

    command: tuple[str, ...]
    pool: str = ""
    socket: int | None = None
    affinity: bool = True
    wait_s: float = 0.0
    agent_socket: str = ""
    conf_dir: str = ""
    is_direct: bool = False
    namespace: str = ""
    node_name: str = ""
    kubeconfig: str = ""
    proc_fs: str = ""


def find_help_or_version_flag(words: Sequence[str]) -> str:
    """`--help` or `--version`, if it is before the command, else empty. Behind it, it belongs to the command."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--" or not word.startswith("-"):
            break
        options: dict[str, str] = {}
        with suppress(BadSettings):  # help is shown even if other options are invalid
            _take_option(_SHORT.get(word, word), left, options)
        if requested := options.keys() & _INFORMATION:
            return requested.pop()
    return ""


def parse_isolate_arguments(words: Sequence[str]) -> IsolateArguments:
    """The arguments in these words. BadSettings names all that are invalid."""
    options, command = _split_command_line(words)
    problems = [] if "--pool" in options else [Problem("--pool", "not given", "a pool, such as exclusive")]
    if not command or not command[0]:
        actual = "empty" if command else "not given"
        problems.append(Problem("command", actual, "a command, such as `-- sleep 10`"))
    if problems:
        raise _bad_arguments_error(problems)
    return IsolateArguments(
        tuple(command),
        options["--pool"],
        _parse_socket_number(options.get("--socket-id", "-1")),
        "--no-affinity" not in options,
        parse_duration("--wait", options.get("--wait", "0")),
        options.get("--agent-socket", ""),
        options.get("--conf-dir", ""),
        "--direct" in options,
        options.get("--namespace", ""),
        options.get("--node-name", ""),
        options.get("--kubeconfig", ""),
        options.get("--proc-fs", ""),
    )


def _split_command_line(words: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    options: dict[str, str] = {}
    command: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return options, command + left
        is_information = _SHORT.get(word, word) in _INFORMATION
        if not word.startswith("-") or word == "-" or (command and is_information):
            command.append(word)
        else:
            _take_option(word, left, options)
    return options, command


def _take_option(word: str, left: list[str], options: dict[str, str]) -> None:
    """Add one option to `options`, with its value from the word or from those that are left."""
    prefix, equals, value = word.partition("=")
    option = _find_option(prefix)
    if not option.metavar and equals:
        raise _bad_arguments_error([Problem(option.name, shown(value), "no value")])
    if option.metavar and not equals:
        if not left:
            raise _bad_arguments_error([Problem(option.name, "nothing after it", option.metavar)])
        value = left.pop(0)
    options[option.name] = value


def _find_option(prefix: str) -> IsolateOption:
    """The option of this name, or the only one whose name begins with it."""
    if prefix in _KNOWN:
        return _KNOWN[prefix]
    matches = (
        [option for option in OPTIONS if option.name.startswith(prefix)] if prefix.startswith("--") else []
    )
    matches = [option for option in matches if option.in_cmk] or matches
    if len(matches) != 1:
        wanted = " or ".join(option.name for option in matches)
        wanted = wanted or "an option of isolate (the command's own ones stand after --)"
        raise _bad_arguments_error(
            [Problem(prefix, "not one option" if matches else "no such option", wanted)]
        )
    return matches[0]


def _parse_socket_number(text: str) -> int | None:
    if text.strip() == "-1":
        return None
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII):
        raise _bad_arguments_error([Problem("--socket-id", shown(text), "a number, or -1 for any socket")])
    return int(text)


def parse_duration(field: str, text: str) -> float:
    """Seconds of `1.5`, `30s`, `5m`. BadSettings names `field`."""
    try:
        seconds = clock.parse_option_duration(text, has_default_unit=True)
    except ValueError as error:
        raise _bad_arguments_error([Problem(field, shown(text), "a duration, such as 30s or 5m")]) from error
    if seconds < 0:
        raise _bad_arguments_error([Problem(field, shown(text), "0 or more")])
    return seconds


def _bad_arguments_error(problems: Sequence[Problem]) -> BadSettings:
    return BadSettings("cannot read the command line", problems, remedy="see isolate --help")


def format_help(program: str) -> str:
    """The text of `--help`."""
    import textwrap

    width = max(len(option.name) + len(option.metavar) for option in OPTIONS) + 3
    lines = [
        f"Usage: {program} isolate --pool=POOL [OPTIONS] COMMAND [-- ARGUMENTS...]",
        "",
        f"  {SUMMARY}",
        "",
    ]
    lines += [*textwrap.wrap(DETAILS, 78, initial_indent="  ", subsequent_indent="  "), "", "Options:"]
    for option in OPTIONS:
        first = f"  {f'{option.name} {option.metavar}'.rstrip():<{width}} "
        lines += textwrap.wrap(option.help, 78, initial_indent=first, subsequent_indent=" " * len(first))
    lines += ["", "Examples:", *(f"  {program} {example}" for example in EXAMPLES)]
    lines += ["", "Exit codes:", *(f"  {code:<5}  {meaning}" for code, meaning in EXIT_CODES.items())]
    return "\n".join(lines)


NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128

_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphaned descendants become children of this process."""
_NAME: Final = 15  # PR_SET_NAME
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


class TerminatedWhileWaiting(Exception):
    """A terminating signal arrived while no command ran."""

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
        """Wait. Raises TerminatedWhileWaiting if a terminating signal arrives."""
        signal_info = signal.sigtimedwait(_TERMINATING, seconds)
        if signal_info is not None:
            raise TerminatedWhileWaiting(signal_info.si_signo)

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
                return CommandResult(code, has_running_children())


def _prctl(option: int, value: int | bytes) -> None:
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
            # as the shell that started the job expects; SIGCONT continues this process, and is passed on
            if os.WSTOPSIG(status) in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
                os.kill(os.getpid(), signal.SIGSTOP)
        else:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else BY_SIGNAL - exit_code


def has_running_children() -> bool:
    """Whether any child is running. Children that have ended are waited for: others may run beside them."""
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return False
    return True


FAILED: Final = 125
"""The exit code of failures before the command starts, as of env(1)."""
_LEVELS: Final = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 3}
_MAX_PAUSE_S: Final = 2.0
_ALL_CPUS: Final = range(cpu_set_formats.LAST_CPU + 1)


class CpuAllocator(Protocol):
    """Allocates CPUs to this process: the node agent (`agent_client.py`) or a store (`agentless_allocator.py`)."""

    def allocate(
        self, request: AllocateRequest, pin: Callable[[AllocateResponse], None]
    ) -> AllocateResponse: ...

    def release(self, task: Task) -> None: ...

    def leave(self, task: Task) -> None: ...

    def close(self) -> None: ...


def main(words: Sequence[str], program: str = "cmk") -> int:
    """Run `isolate` with these arguments; returns the exit code."""
    try:
        if option := find_help_or_version_flag(words):
            print(format_help(program) if option == "--help" else f"nodewise {__version__}")  # noqa: T201
            return 0
        return _run_isolated(parse_isolate_arguments(words), CommandRunner())
    except TerminatedWhileWaiting as terminated:
        return terminated.code
    except NodewiseError as error:
        print_log_line("error", str(error))
        return error.code if isinstance(error, CommandStartError) else FAILED


def print_log_line(level: str, text: str) -> None:
    """Print a line on stderr, unless `CMK_LOG_LEVEL` is higher. An unknown level means info."""
    least = _LEVELS.get(os.environ.get(cmk_names.LOG_LEVEL, "info").strip().lower(), 1)
    if _LEVELS[level] >= least:
        print(f"nodewise: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201


def _run_isolated(options: IsolateArguments, runner: CommandRunner) -> int:
    # only exclusive pools have more than one list per task; unknown pools may be exclusive
    is_exclusive = IS_EXCLUSIVE.get(options.pool, True)
    count = allocator.parse_core_count(os.environ.get(allocator.COUNT_VARIABLE, "1")) if is_exclusive else 1
    request = AllocateRequest(options.pool, count, options.socket, options.affinity)
    deadline = time.monotonic() + options.wait_s
    pause_s = 0.05
    while True:
        cpu_allocator = None
        try:
            cpu_allocator = _open_allocator(options, runner)
            response = cpu_allocator.allocate(
                request, set_own_affinity if options.affinity else _log_unpinned
            )
            break
        except Unavailable as error:
            if cpu_allocator is not None:
                cpu_allocator.close()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            print_log_line("debug", f"trying again: {error}")
            runner.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    return _run_on_allocated_cpus(options, runner, cpu_allocator, response)


def _run_on_allocated_cpus(
    options: IsolateArguments, runner: CommandRunner, cpu_allocator: CpuAllocator, response: AllocateResponse
) -> int:
    has_ended = True
    try:
        name = allocator.wrapper_process_name(response.task.pid)
        environment = command_environment(response.environment)
        code, left_processes = runner.run(options.command, environment, name)
        has_ended = not left_processes
        return code
    finally:
        if has_ended:
            _release_or_log(cpu_allocator, response)
        else:
            with suppress(TerminatedWhileWaiting):
                cpu_allocator.leave(response.task)
            cpus = cpu_set_formats.format_cpu_ranges(response.cpus)
            print_log_line(
                "warning",
                f"processes that {options.command[0]} started still run: CPUs {cpus} stay held until they end",
            )
        cpu_allocator.close()


def _release_or_log(cpu_allocator: CpuAllocator, response: AllocateResponse) -> None:
    try:
        cpu_allocator.release(response.task)
    except (NodewiseError, TerminatedWhileWaiting) as error:
        cpus = cpu_set_formats.format_cpu_ranges(response.cpus)
        print_log_line("warning", f"CPUs {cpus} stay held until the next garbage collection: {error}")


def _open_allocator(options: IsolateArguments, runner: CommandRunner) -> CpuAllocator:
    """The node agent if there is one, so that a node never has two states; else the directory or the ConfigMap."""
    socket = Path(options.agent_socket or cmk_names.DEFAULT_SOCKET)
    has_agent = socket.exists() or (not options.conf_dir and socket.parent.is_dir())
    if has_agent and not options.is_direct:
        from nodewise_cpu.workload.agent_client import AgentClient

        if options.conf_dir:
            print_log_line(
                "warning",
                f"--conf-dir={options.conf_dir} is ignored: the node agent at {socket} allocates the CPUs",
            )
        return AgentClient(socket, runner.sleep)
    from nodewise_cpu.workload import agentless_allocator

    proc = agentless_allocator.find_host_proc(options.proc_fs)
    if options.conf_dir:
        from nodewise_cpu.directory_store import DirectoryStore

        text = os.environ.get(cmk_names.LOCK_TIMEOUT, "")
        timeout_s = parse_duration(cmk_names.LOCK_TIMEOUT, text) if text else 30.0
        directory = DirectoryStore(Path(options.conf_dir), timeout_s, runner.sleep)
        return agentless_allocator.DirectAllocator(directory, proc, runner.sleep)
    from nodewise_cpu.workload import service_account_client

    return agentless_allocator.DirectAllocator(
        service_account_client.open_config_map_store(options, runner.sleep), proc, runner.sleep
    )


def _log_unpinned(response: AllocateResponse) -> None:
    cpus = cpu_set_formats.format_cpu_ranges(response.cpus)
    print_log_line("info", f"no affinity is set: the command has to run on CPUs {cpus} by itself")


def command_environment(allocation: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of the calling process with the allocation's variables.

    The variables by which the bundled program finds its own libraries are removed or restored.
    """
    environment = {**os.environ, **allocation}
    if getattr(sys, "frozen", False):
        environment = {
            name: text for name, text in environment.items() if not name.startswith(("_PYI_", "_MEIPASS"))
        }
        original = environment.pop("LD_LIBRARY_PATH_ORIG", None)
        environment.pop("LD_LIBRARY_PATH", None)
        if original is not None:
            environment["LD_LIBRARY_PATH"] = original
    return environment


def set_own_affinity(response: AllocateResponse) -> None:
    """Let this process, and all that it will start, run on exactly the allocated CPUs.

    The kernel drops CPUs that are offline or outside of the cpuset without an error as long as one is left, so the
    result is read back. Refused if it differs: then the affinity is unchanged.
    """
    before, cpus = os.sched_getaffinity(0), set(response.cpus)
    try:
        os.sched_setaffinity(0, cpus)
        actual = os.sched_getaffinity(0)
        why = ""
    except OSError as error:
        actual, why = set(), error.strerror or str(error)
    if actual == cpus:
        return
    usable = _cpus_this_process_can_use()
    os.sched_setaffinity(0, before)
    missing = cpu_set_formats.format_cpu_ranges(cpus - usable) or why
    problem = Problem(
        "affinity",
        f"CPUs {missing} cannot be used here, {cpu_set_formats.format_cpu_ranges(usable)} can",
        f"all of {cpu_set_formats.format_cpu_ranges(cpus)}",
    )
    remedy = (
        "they are offline, or the container's cpuset lacks them: does the kubelet's CPU manager choose CPUs?"
    )
    raise Refused("cannot run on the CPUs of the pool", [problem], remedy=remedy)


def _cpus_this_process_can_use() -> set[int]:
    try:
        os.sched_setaffinity(0, _ALL_CPUS)
    except OSError:
        return set()
    return os.sched_getaffinity(0)
