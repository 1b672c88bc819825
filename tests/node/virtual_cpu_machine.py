"""A virtual machine of eight CPUs: two sockets, two NUMA nodes, two threads a core, cgroups of version 2.

The installed program is in it, and no Python beside it; commands go to a shell of it. What it held over a boot is
handed to the next one, as a disk would. Multi-threaded workloads are this interpreter with the modules that they need.
"""

import base64
import contextlib
import io
import json
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nodewise_cpu import cmk_names, cpu_set_formats, installation
from nodewise_cpu.node import machine_features
from nodewise_cpu.topology import CPUS, NODES, ROOT_CGROUP
from tests.cluster import child_processes, virtual_machine
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import EmulatedHardware, FileEntry

STATE = "/state"
"""The folder that persists across boots."""
CMK = f"{cmk_names.DEFAULT_INSTALL_DIR}/cmk"
HARDWARE = EmulatedHardware(
    smp="8,sockets=2,cores=2,threads=2",
    memory="1024",
    options=(
        *("-cpu", "Nehalem"),  # its instructions need no emulation of AVX
        *("-object", "memory-backend-ram,id=m0,size=512M", "-object", "memory-backend-ram,id=m1,size=512M"),
        *("-numa", "node,cpus=0-3,memdev=m0", "-numa", "node,cpus=4-7,memdev=m1"),
    ),
)
_FILES = (
    "/(present|online|isolated|cpulist|has_memory|physical_package_id|core_id|die_id|thread_siblings_list|cmdline"
    r"|cpuset\.cpus\..*)$"
)
_PORT = 9101
READY_S = 110
"""The deadline of a start in seconds. It suits a loaded machine and is shorter than that of `run`."""
_INIT = f"""\
/bin/busybox mount -t cgroup2 none /sys/fs/cgroup
echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
/bin/busybox --install -s /bin
/bin/busybox tar -x -C {STATE} -f /state.tar
while true; do /bin/busybox nc -ll -p {_PORT} -e /bin/serve; done
"""
_SERVE = """#!/bin/sh
export PATH=/bin
read -r script
printf %s "$script" | base64 -d > /tmp/script.$$
sh /tmp/script.$$ </dev/null >/tmp/out.$$ 2>/tmp/err.$$
echo $?
base64 -w 0 /tmp/out.$$; echo
base64 -w 0 /tmp/err.$$; echo
rm /tmp/*.$$
"""
_LOADED = """
import os, sys, threading, time
print("\\n".join(getattr(one, "__file__", "") or "" for one in list(sys.modules.values())))
"""
WORKLOAD = """
import os, sys, threading, time
below, count, pinned = map(int, sys.argv[1:4])
while below and not os.fork():
    below -= 1

def wait(ready, cpu):
    if cpu >= 0:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[cpu]})
    ready.wait()
    time.sleep(10000)

ready = threading.Barrier(count + 1)
for number in range(count):
    threading.Thread(target=wait, args=(ready, -1 if number else pinned), daemon=True).start()
ready.wait()
os.write(1, b"ready\\n")
time.sleep(10000)
"""
"""A chain of processes, each with so many further threads; of each the first one goes to one CPU, if wanted."""


class CommandOutput(NamedTuple):
    code: int
    out: str
    err: str


class VirtualCpuMachine:
    """One that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def try_run(self, script: str, timeout_s: float = 120) -> CommandOutput:
        """What came of lines for a shell."""
        with socket.create_connection(("127.0.0.1", self._port), timeout_s) as connection:
            connection.sendall(base64.b64encode(script.encode()) + b"\n")
            with connection.makefile() as lines:
                answer = lines.read().splitlines()
        code, out, err = answer
        return CommandOutput(int(code), *(base64.b64decode(part).decode() for part in (out, err)))

    def run(self, script: str, timeout_s: float = 120) -> str:
        """What lines for a shell print; AssertionError if they fail."""
        response = self.try_run(script, timeout_s)
        assert response.code == 0, f"{script}: {response.err}"
        return response.out

    def cmk(self, *words: str | int) -> Any:
        """What a command of the program prints, which is JSON if it prints anything."""
        out = self.run(shlex.join([CMK, *map(str, words)]))
        return json.loads(out) if out.strip() else None

    def boot(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").strip()

    def start(self, name: str, *options: str, inside: str = "", below: int = 2, pinned: int = -1) -> None:
        """Start a workload by `isolate`, perhaps in a cgroup; until all of it is there.

        The wait is a read of a pipe in the machine: checks from outside would take most of the emulated CPU time.
        """
        words = [CMK, "isolate", *options, "/bin/workload", "--", str(below), "2", str(pinned)]
        enter = f"echo $$ > /sys/fs/cgroup/{inside}/cgroup.procs; " if inside else ""
        line = f"{enter}echo $$ > /tmp/{name}.pid; exec {shlex.join(words)}"
        ready = self.run(
            f"rm -f /tmp/{name}.out; mkfifo /tmp/{name}.out\n"
            f"setsid sh -c {shlex.quote(line)} > /tmp/{name}.out 2> /tmp/{name}.err &\n"
            f"timeout {READY_S} head -n {below + 1} /tmp/{name}.out || true"
        )
        assert ready == "ready\n" * (below + 1), (
            f"{name} printed {ready!r}; {self.run(f'cat /tmp/{name}.err')}"
        )

    def pid(self, name: str) -> int:
        """Of the wrapper."""
        return int(self.run(f"cat /tmp/{name}.pid"))

    def kill(self, name: str) -> None:
        """All processes of a workload, and the wrapper."""
        self.run(f"kill -9 -{self.pid(name)}")

    def end(self, name: str) -> None:
        """Have the wrapper end its command, and wait for it to be over."""
        self.run(f"kill {(pid := self.pid(name))}; while kill -0 {pid} 2>/dev/null; do sleep 0.1; done")

    def everybody_ends(self) -> None:
        """All workloads, and what started them."""
        self.run("for file in /tmp/*.pid; do kill -9 -$(cat $file); done 2>/dev/null; rm -f /tmp/*.pid; true")

    def threads(self, name: str) -> Mapping[int, "ThreadPlacement"]:
        """All threads of a workload and its wrapper, by id, and where they may run: read from outside."""
        fields = "Name|Tgid|Pid|PPid|Cpus_allowed_list|Mems_allowed_list"
        end = "/^Mems_allowed_list:/"
        script = (
            "cat /proc/[0-9]*/task/[0-9]*/status 2>/dev/null |"
            f' awk \'/^({fields}):/ {{printf "%s ", $2}} {end} {{print ""}}\''
        )
        threads: dict[int, tuple[int, int, ThreadPlacement]] = {}
        for line in self.run(script).splitlines():
            if len(words := line.split()) == len(fields.split("|")):  # else it ended meanwhile
                comm, tgid, pid, parent, cpus, mems = words
                where = ThreadPlacement(
                    comm, *(frozenset(cpu_set_formats.parse_cpu_numbers(text)) for text in (cpus, mems))
                )
                threads[int(pid)] = (int(tgid), int(parent), where)
        family = {self.pid(name)}
        while more := {tgid for tgid, parent, _ in threads.values() if parent in family} - family:
            family |= more
        return {tid: where for tid, (tgid, _, where) in threads.items() if tgid in family}

    def everywhere(self, name: str) -> set[frozenset[int]]:
        """The CPUs of all threads."""
        return {where.cpus for where in self.threads(name).values()}

    def cgroup(self, name: str, cpus: Iterable[int], mems: Iterable[int]) -> None:
        """Make one with a cpuset."""
        place = f"/sys/fs/cgroup/{name}"
        lists = [cpu_set_formats.format_cpu_ranges(numbers) for numbers in (cpus, mems)]
        self.run(
            f"mkdir -p {place}; echo {lists[0]} > {place}/cpuset.cpus; echo {lists[1]} > {place}/cpuset.mems"
        )

    def sysfs(self) -> Mapping[str, str]:
        """The files of the machine, as `sysfs.read_sysfs_files` gives them."""
        with tempfile.TemporaryDirectory() as folder:
            paths = f"{CPUS}/ {NODES}/ {ROOT_CGROUP}/cpuset.cpus.* proc/cmdline"
            files = self.run(
                f"cd /; find {paths} -type f -perm -400 2>/dev/null | grep -E '{_FILES}'"
            ).split()
            texts = self.run(
                f"cd /; for file in {' '.join(files)}; do base64 -w 0 $file; echo; done"
            ).splitlines()
            for file, text in zip(files, texts, strict=True):
                path = Path(folder) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(text))
            return machine_features.read_sysfs_files(Path(folder))

    def state(self) -> bytes:
        """All that is to outlive the boot, as a tar file."""
        return base64.b64decode(self.run(f"tar -c -C {STATE} . | base64 -w 0"))


class ThreadPlacement(NamedTuple):
    """Where a thread may run."""

    name: str
    cpus: frozenset[int]
    mems: frozenset[int]


def files(ready: Path) -> Mapping[str, FileEntry]:
    """All that is on the machine but its state: the installed program, and the workload."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder)
        installation.install(ready, into, Path(cmk_names.DEFAULT_INSTALL_DIR), None)
        installed = virtual_machine.tree(into, cmk_names.DEFAULT_INSTALL_DIR.lstrip("/"))
    return {
        **installed,
        **_interpreter(),
        "bin/serve": virtual_machine.script(_SERVE),
        "bin/workload": virtual_machine.script("#!/bin/python3 -S\n" + WORKLOAD),
        "tmp/empty": virtual_machine.script(""),
        f"{STATE.lstrip('/')}/empty": virtual_machine.script(""),
        "init": virtual_machine.script(virtual_machine.START + _INIT),
    }


def _interpreter() -> Mapping[str, FileEntry]:
    """This interpreter, its libraries, and the modules that the workload imports, where it looks for them."""
    base = Path(sys.base_prefix)
    real = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    loaded = subprocess.run(
        [real, "-S", "-I", "-c", _LOADED], capture_output=True, text=True, check=True
    ).stdout
    ldd = subprocess.run(["ldd", real], capture_output=True, text=True, check=True).stdout
    libraries = [Path(word) for word in ldd.split() if word.startswith("/")]
    modules = [Path(name) for name in loaded.splitlines() if name]
    files = {str(path).lstrip("/"): virtual_machine.program(path) for path in (*libraries, *modules)}
    link = FileEntry(0o120777, str(real).encode())
    return {**files, str(real).lstrip("/"): virtual_machine.program(real), "bin/python3": link} | _marked(
        base
    )


def _marked(base: Path) -> Mapping[str, FileEntry]:
    """By this file an interpreter knows where its modules are."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {f"{base}/lib/{version}/os.py".lstrip("/"): virtual_machine.program(base / f"lib/{version}/os.py")}


@contextlib.contextmanager
def running(
    packages: MachinePackages,
    entries: Mapping[str, FileEntry],
    folder: Path,
    state: bytes = b"",
    kernel: str = "",
    hardware: EmulatedHardware = HARDWARE,
) -> Iterator[VirtualCpuMachine]:
    """A machine of the packages with `files`, and the state of an earlier boot. Raises NotReadyError."""
    port = child_processes.free_port()
    kube_host = {**entries, "state.tar": FileEntry(0o100644, state or _nothing())}
    hardware = hardware._replace(kernel=kernel)
    machine = VirtualCpuMachine(port)
    with virtual_machine.running(
        packages, folder, kube_host, hardware, ((port, _PORT),), lambda: _answers(machine)
    ):
        yield machine


def _answers(machine: VirtualCpuMachine) -> bool:
    try:
        return machine.try_run("true", 20).code == 0
    except (OSError, ValueError):
        return False


def _nothing() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w"):
        pass
    return content.getvalue()
