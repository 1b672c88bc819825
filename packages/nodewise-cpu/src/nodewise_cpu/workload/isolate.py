"""`isolate`: allocates CPUs, runs a command on them, and releases them.

Standard library only.

The command is a child process. When it ends, however it ends, its CPUs are released. If this process is killed, the
node agent's next garbage collection, or `reconcile`, releases them once all processes of the command have ended.
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from nodewise import __version__
from nodewise.base.errors import NodewiseError, Problem, Refused, Unavailable, visible
from nodewise_cpu import allocator, cmk_names, cpu_set_formats
from nodewise_cpu.agent_messages import AllocateRequest, AllocateResponse
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import IS_EXCLUSIVE
from nodewise_cpu.workload import isolate_arguments
from nodewise_cpu.workload.command_runner import CommandRunner, CommandStartError, SignalBeforeStart
from nodewise_cpu.workload.isolate_arguments import IsolateArguments

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
        if option := isolate_arguments.find_help_or_version_flag(words):
            print(isolate_arguments.format_help(program) if option == "--help" else f"nodewise {__version__}")  # noqa: T201
            return 0
        return _run_isolated(isolate_arguments.parse_isolate_arguments(words), CommandRunner())
    except SignalBeforeStart as terminated:
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
    request = AllocateRequest(
        options.pool, _requested_list_count(options.pool), options.socket, options.affinity
    )
    deadline = time.monotonic() + options.wait_s
    pause_s = 0.05
    while True:
        cpu_allocator = None
        try:
            cpu_allocator = _open_allocator(options, runner)
            response = cpu_allocator.allocate(
                request, _pin_to_allocation if options.affinity else _log_unpinned
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
    except NodewiseError as error:
        cpus = cpu_set_formats.format_cpu_ranges(response.cpus)
        print_log_line("warning", f"CPUs {cpus} stay held until the next garbage collection: {error}")


def _requested_list_count(pool: str) -> int:
    """The number of requested lists. Only exclusive pools have more than one; unknown pools may be exclusive."""
    if not IS_EXCLUSIVE.get(pool, True):
        return 1
    return allocator.parse_core_count(os.environ.get(allocator.COUNT_VARIABLE, "1"))


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
        return AgentClient(socket)
    from nodewise_cpu.workload import agentless_allocator

    proc = agentless_allocator.find_host_proc(options.proc_fs)
    if options.conf_dir:
        from nodewise_cpu.store.directory import DirectoryStore

        directory = DirectoryStore(Path(options.conf_dir), _lock_timeout_s())
        return agentless_allocator.DirectAllocator(directory, proc, runner.sleep)
    from nodewise_cpu.workload import service_account_client

    return agentless_allocator.DirectAllocator(
        service_account_client.open_config_map_store(options), proc, runner.sleep
    )


def _lock_timeout_s() -> float:
    text = os.environ.get(cmk_names.LOCK_TIMEOUT, "")
    return isolate_arguments.parse_duration(cmk_names.LOCK_TIMEOUT, text) if text else 30.0


def _pin_to_allocation(response: AllocateResponse) -> None:
    set_own_affinity(response.cpus)


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


def set_own_affinity(cpus: Collection[int]) -> None:
    """Let this process, and all that it will start, run on exactly these CPUs.

    The kernel drops CPUs that are offline or outside of the cpuset without an error as long as one is left, so the
    result is read back. Refused if it differs: then the affinity is unchanged.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        actual = os.sched_getaffinity(0)
        why = ""
    except OSError as error:
        actual, why = set(), error.strerror or str(error)
    if actual == set(cpus):
        return
    usable = _cpus_this_process_can_use()
    os.sched_setaffinity(0, before)
    missing = cpu_set_formats.format_cpu_ranges(set(cpus) - usable) or why
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
    """All CPUs that this process could use."""
    try:
        os.sched_setaffinity(0, _ALL_CPUS)
    except OSError:
        return set()
    return os.sched_getaffinity(0)
