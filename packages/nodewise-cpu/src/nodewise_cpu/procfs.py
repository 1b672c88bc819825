"""The processes of a node, their pods and CPU affinities, read from the host's `/proc`; and setting affinities.

Standard library only.

`proc` is the host's `/proc`, wherever it is mounted, so process ids are those of the host, also in a container. A
process that sets affinities has to be in the host's namespace of process ids. A thread is identified by its id and its
start, because ids are reused. A process's pod and container are those in the name of its cgroup.
"""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, BadSettings, Refused, Unavailable, shown
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.allocator import TASK_VARIABLE, process_id_of_wrapper_name
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.kernel_file_reader import WHITE_SPACE, read_text, split_lines
from nodewise_cpu.pool_allocations import Task

_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
"""Of a pod: a UUID, which systemd has with `_`, or of a static pod the checksum of its file."""
_POD: Final = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|\Z)")
_CONTAINER: Final = re.compile(
    r"[/:](?!crio-conmon-)(?:[a-z][a-z-]*[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/ ]|\Z)"
)
USER_SLICE: Final = "user.slice"
"""The pod of a process whose cgroup was named like a pod's by a user. Such a process has neither the rights of a pod
nor those of processes outside of pods.
"""
_IN_USER_SLICE: Final = re.compile(r"/(?:\.\./)*user\.slice(?=[/ ]|\Z)")


class CgroupOwner(NamedTuple):
    """The uid of the pod and the id of the container that a process runs in; empty outside of pods."""

    pod: str = ""
    container: str = ""


def parse_cgroup(text: str) -> CgroupOwner:
    """The pod and container in `/proc/<pid>/cgroup` (cgroups(7)) of version 1 or 2.

    Recognises the paths of kubelets with the cgroup driver cgroupfs or systemd, under any root, and of containerd,
    CRI-O and Docker. In a cgroup namespace of the reader they may begin with `/..`. The outermost pod of all lines
    counts, because a container can create and name cgroups below its own. systemd delegates cgroups of `user.slice` to
    users without privileges: one that is named like a pod's yields the pod `USER_SLICE`, which does not exist.
    """
    pods = []
    in_user_slice = False
    for line in split_lines(text):
        _, colon, rest = line.partition(":")
        controllers, second_colon, path = rest.partition(":")
        pod = _POD.search(path)
        if pod and _IN_USER_SLICE.match(path):
            in_user_slice = True
        elif colon and second_colon and pod:
            depth = sum(segment not in ("", "..") for segment in path[: pod.end()].split("/"))
            # version 1 has a line for each controller; between pods of one depth the line of CPUs decides, because a
            # container manager may leave a process where it was in the hierarchies of other controllers
            pods.append((depth, "cpuset" not in controllers.split(","), pod, path))
    if not pods:
        return CgroupOwner(USER_SLICE if in_user_slice else "")
    _, _, pod, path = min(pods, key=lambda entry: entry[:2])
    container = _CONTAINER.match(path, pod.end())
    return CgroupOwner(pod["uid"].replace("_", "-"), container["id"] if container else "")


_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
ALLOWED: Final = re.compile(r"^Cpus_allowed_list:[ \t]*([^ \t\n]+)", re.MULTILINE)
"""A line of `/proc/<pid>/status`. With re.MULTILINE `^` matches after `\\n` only, so a process name cannot forge it."""
_ENDED_STATES: Final = frozenset("ZXx")
_MAX_SCANS: Final = 20
_READ_ATTEMPTS: Final = 5
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EIO})
"""EIO if a process mapped a file of its own in place of its environment."""
_MAX_ENVIRONMENT_BYTES: Final = 6 * 2**20
"""The limit of execve(2): three quarters of 8 MiB, whatever the limit of the stack is."""
_PAUSE_S: Final = 0.002


class ProcessStat(NamedTuple):
    """The fields of `/proc/<pid>/stat` that are used here."""

    pid: int
    state: str
    parent: int
    start: int
    name: str = ""
    has_memory: bool = True
    """False for a kernel thread, and for a process that is just ending."""
    threads: int = 1

    @property
    def has_ended(self) -> bool:
        """Whether this thread is a zombie."""
        return self.state in _ENDED_STATES

    @property
    def process_has_ended(self) -> bool:
        """Whether the whole process has ended: its first thread may end before the others."""
        return self.has_ended and self.threads <= 1


class ProcessTable(NamedTuple):
    """The processes of a node, by id. The environment of `unreadable` ones cannot be read, so their task is unknown."""

    processes: dict[int, NodeProcess]
    unreadable: frozenset[int]


def parse_stat(text: str, field: str = "stat") -> ProcessStat:
    """Parse `/proc/<pid>/stat`. The second field, the name in parentheses, may hold anything, such as `) R 1 (`."""
    pid, _, rest = text.partition(" (")
    name, _, rest = rest.rpartition(") ")
    fields = rest.rstrip(WHITE_SPACE).split(" ")
    numbers = (pid, *fields[1:2], *fields[17:18], *fields[19:20])
    if len(numbers) < 4 or not all(map(_NUMBER.fullmatch, numbers)):  # noqa: PLR2004 - id, parent, threads and start
        raise BadInput.of("cannot read a process", field, shown(text), "proc(5), at least 22 fields")
    has_memory = fields[20:21] != ["0"]
    return ProcessStat(
        int(pid), fields[0], int(fields[1]), int(fields[19]), name, has_memory, int(fields[17])
    )


def read_own_process(proc: Path) -> ProcessStat:
    """The calling process as the host sees it. Unavailable if `proc` is not a mount of `/proc`."""
    return parse_stat(_read_proc_file(proc / "self/stat"), str(proc / "self/stat"))


def read_boot_id(proc: Path) -> str:
    """The kernel's boot id. Unavailable if it cannot be read."""
    return _read_proc_file(proc / "sys/kernel/random/boot_id").strip(WHITE_SPACE)


def _read_proc_file(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise Unavailable.of("cannot read the host's processes", str(path), str(error)) from error


def read_processes(proc: Path) -> ProcessTable:
    """All processes that have not ended; one that ends meanwhile is left out. Unavailable if `proc` cannot be read.

    A process may start another one and end before it is read, so the scan is repeated until there are no new ones.
    Only what the kernel reports as gone is left out: a process that cannot be read for any other reason may be alive.
    """
    processes: dict[int, NodeProcess] = {}
    unreadable: set[int] = set()
    scanned: set[int] = set()
    for _ in range(_MAX_SCANS):
        new = [pid for pid in pids(proc) if pid not in scanned]
        if not new:
            break
        scanned.update(new)
        for attempt in range(_READ_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            new = [pid for pid in new if _read_process(proc, pid, processes, unreadable)]
            if not new:
                break
    return ProcessTable(processes, frozenset(unreadable))


def _read_process(proc: Path, pid: int, processes: dict[int, NodeProcess], unreadable: set[int]) -> bool:
    """Add one process, or remove it if it has ended. Returns whether to read it again after a moment."""
    folder = proc / str(pid)
    processes.pop(pid, None)
    unreadable.discard(pid)
    try:
        stat = parse_stat(read_text(folder / "stat"))
        if stat.process_has_ended:
            return False
        mark, is_final = _read_task_mark(folder, stat)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise Unavailable.of("cannot read the host's processes", str(folder), str(error)) from error
    if mark is None:
        unreadable.add(pid)
    process = NodeProcess(stat.start, stat.parent, mark or "", process_id_of_wrapper_name(stat.name))
    if process.mark or process.wrapper:  # such a claim to belong to a task is valid in one container only
        with suppress(OSError):
            process = process._replace(container=parse_cgroup(read_text(folder / "cgroup")).container)
    processes[pid] = process
    return not is_final


def _read_task_mark(folder: Path, stat: ProcessStat) -> tuple[str | None, bool]:
    """The task's mark in a process's environment, None if it cannot be read; and whether that is final."""
    try:
        mark, is_empty = _find_task_mark_in_environment(folder / "environ")
        # during execve a process has neither an environment nor arguments; a moment later it has both
        if is_empty and stat.has_memory:
            with (folder / "cmdline").open("rb", buffering=0) as file:
                if not file.read(1):
                    return None, False
    except (FileNotFoundError, ProcessLookupError):
        if stat.threads <= 1:
            raise
        return _read_task_mark_of_threads(folder)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return None, True
    return mark, True


def _read_task_mark_of_threads(folder: Path) -> tuple[str | None, bool]:
    """The same if the first thread ended before the others: their files still hold the environment."""
    for path in sorted((folder / "task").iterdir()):
        try:
            return _find_task_mark_in_environment(path / "environ")[0], True
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            return None, True
    return None, False


def _find_task_mark_in_environment(path: Path) -> tuple[str, bool]:
    """The task's mark in an environment, and whether the environment is empty.

    A process can change the place and the length of its environment (prctl), so no more is read than execve allows.
    """
    with path.open("rb", buffering=0) as file:
        pieces = []
        left = _MAX_ENVIRONMENT_BYTES
        while left > 0 and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    environment = b"\0" + b"".join(pieces)
    _, separator, rest = environment.rpartition(b"\0" + TASK_VARIABLE.encode() + b"=")
    return rest.partition(b"\0")[0].decode("utf-8", "replace") if separator else "", not pieces


def pids(proc: Path) -> Iterable[int]:
    """The ids of all processes, without threads."""
    try:
        return numbers(proc)
    except OSError as error:
        raise Unavailable.of("cannot read the host's processes", str(proc), str(error)) from error


def numbers(folder: Path) -> list[int]:
    """The entries of a folder whose names are numbers, ascending. Raises OSError."""
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if re.fullmatch(r"\d{1,9}", name, re.ASCII))


def read_allowed_cpus(proc: Path, pid: int) -> frozenset[int] | None:
    """The CPUs that a process's first thread may use; None if it has ended. BadInput without a line that names them."""
    try:
        text = read_text(proc / f"{pid}/status")
    except OSError:
        return None
    match = ALLOWED.search(text)
    field = f"{pid}/status"
    if not match:
        raise BadInput.of("cannot tell where a process may run", field, "no Cpus_allowed_list", "such a line")
    return frozenset(cpu_set_formats.parse_cpu_numbers(match[1], field))


def unreadable_processes_of(task: Task, table: ProcessTable, proc: Path) -> tuple[int, ...]:
    """Unreadable processes that may belong to a task: started after it, and in its pod and container if known."""
    return tuple(
        pid
        for pid in sorted(table.unreadable)
        if task.start is not None
        and table.processes[pid].start >= task.start
        and _may_run_in_task_pod(task, proc / f"{pid}/cgroup")
    )


def _may_run_in_task_pod(task: Task, cgroup: Path) -> bool:
    """Whether a process may run in the task's pod. A task without a known pod may be in any of them."""
    try:
        owner = parse_cgroup(read_text(cgroup))
    except FileNotFoundError:
        return False  # it has ended meanwhile
    except OSError:
        return True
    return not task.pod or (task.pod == owner.pod and task.container in ("", owner.container))


class Thread(NamedTuple):
    """A thread and the CPUs that it may use."""

    pid: int
    tid: int
    start: int
    cpus: frozenset[int]

    @property
    def name(self) -> str:
        """The thread's identity: `<id>-<start>`."""
        return f"{self.tid}-{self.start}"


def check_pid_namespace(proc: Path) -> None:
    """BadSettings if the process ids below `proc` are not those of this process's namespace."""
    pid_in_proc = read_own_process(proc).pid
    if pid_in_proc != os.getpid():
        seen = f"we are {os.getpid()} here and {pid_in_proc} in {proc}"
        raise BadSettings.of(
            "cannot move processes from here",
            "process ids",
            seen,
            "the host's",
            remedy="run it with hostPID: true, or ask the node agent",
        )


def read_threads(proc: Path, pid: int) -> Iterator[Thread]:
    """The threads of a process; those that end meanwhile are left out."""
    try:
        tids = numbers(proc / str(pid) / "task")
    except OSError:
        return
    for tid in tids:
        folder = proc / str(pid) / "task" / str(tid)
        try:
            stat = parse_stat(read_text(folder / "stat"), str(folder / "stat"))
            allowed = ALLOWED.search(read_text(folder / "status"))
        except OSError:
            continue
        if allowed and not stat.has_ended:
            cpus = frozenset(cpu_set_formats.parse_cpu_numbers(allowed[1], str(folder / "status")))
            yield Thread(pid, tid, stat.start, cpus)


def set_thread_affinity(thread: Thread, cpus: frozenset[int]) -> None:
    """Let a thread run on exactly these CPUs. A thread that has ended is no error.

    Refused if the kernel does not allow all of them: then the affinity is unchanged.
    """
    where, wanted = f"process {thread.pid}, thread {thread.tid}", cpu_set_formats.format_cpu_ranges(cpus)
    try:
        os.sched_setaffinity(thread.tid, cpus)
        # the kernel drops CPUs outside of the cpuset without an error, as long as one is left
        actual = frozenset(os.sched_getaffinity(thread.tid))
    except ProcessLookupError:
        return
    except OSError as error:
        is_invalid = error.errno == errno.EINVAL
        why = "none of them is online and in its cpuset" if is_invalid else error.strerror
        raise Refused.of("cannot move a process", where, f"cannot use CPUs {wanted}: {why}") from error
    if actual != cpus:
        with suppress(OSError):
            os.sched_setaffinity(thread.tid, thread.cpus)
        seen = f"may use CPUs {cpu_set_formats.format_cpu_ranges(actual) or 'none'} only"
        raise Refused.of("cannot move a process", where, seen, wanted)
