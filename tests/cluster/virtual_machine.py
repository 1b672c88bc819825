"""Boots a virtual machine with qemu's software emulation, Debian's kernel, and an initial file system from a test.

The machine boots in about three seconds of CPU time and needs little while idle. Its ports are forwarded from loopback.
"""

import contextlib
import functools
import lzma
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from tests.cluster.child_processes import NotReadyError, Process
from tests.cluster.debian_packages import MachinePackages

NETWORK = ("failover", "net_failover", "virtio_net")
"""The kernel modules in load order: each after its dependencies."""
UP: Final = "the network is up"
"""What a machine prints on its console when it can receive connections."""
START = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for name in {modules}; do /bin/busybox insmod /modules/$name.ko; done
/bin/busybox ip link set lo up
/bin/busybox ip link set eth0 up
/bin/busybox ip addr add 10.0.2.15/24 dev eth0
echo {up}
""".format(modules=" ".join(NETWORK), up=UP)
"""The beginning of every init script: it mounts file systems, loads the modules and configures the network."""
KERNEL: Final = "console=ttyS0 panic=1 quiet mitigations=off cryptomgr.notests"
"""The command line of the kernel. The mitigations protect against attacks that need a real CPU: they switch page tables
at each system call, which doubles the time that software emulation takes. The kernel's tests of its own cryptography
keep all CPUs busy in the boot.
"""
ATTEMPTS: Final = 5
"""The number of boots that are tried. An emulated machine of several CPUs sometimes stops in its boot, above all on a
loaded machine: the kernel reports `soft lockup`, because one CPU waits for another that does not run. The tests verify
programs in the machine and not the emulator, so such a machine is replaced by a new one.
"""
BOOT_DEADLINE_S: Final = 120.0
_LOCKUP: Final = "soft lockup"
_FOLDER, _PROGRAM, _LINK = 0o40755, 0o100755, 0o120777


class FileEntry(NamedTuple):
    """A file of an initial file system."""

    mode: int
    content: bytes


class EmulatedHardware(NamedTuple):
    """The machine that qemu emulates, and the command line of its kernel."""

    smp: str
    """The number of CPUs and their topology, in the format of qemu's option `-smp`."""
    memory: str
    options: Sequence[str] = ()
    kernel: str = ""
    """Words for the kernel in addition to `KERNEL`."""


def program(path: Path) -> FileEntry:
    """An executable file, copied from this machine."""
    return FileEntry(_PROGRAM, path.read_bytes())


def script(text: str) -> FileEntry:
    return FileEntry(_PROGRAM, text.encode())


def tree(folder: Path, at: str) -> dict[str, FileEntry]:
    """All files below a folder by their paths below `at`. Links stay links."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = f"{at}/{path.relative_to(folder)}"
        if path.is_symlink():
            entries[name] = FileEntry(_LINK, os.fsencode(path.readlink()))
        elif path.is_dir():
            entries[name] = FileEntry(_FOLDER, b"")
        else:
            entries[name] = FileEntry(0o100000 | path.stat().st_mode & 0o7777, path.read_bytes())
    return entries


@contextlib.contextmanager
def running(
    packages: MachinePackages,
    folder: Path,
    files: Mapping[str, FileEntry],
    hardware: EmulatedHardware,
    forwards: Sequence[tuple[int, int]],
    is_ready: Callable[[], bool],
) -> Iterator[Process]:
    """Boots a machine from the packages with these files, which include `init`, and yields it once it is ready.

    `forwards` are pairs of a local port and a port of the machine. Raises NotReadyError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root, initrd = packages.emulator, folder / "initrd"
    initrd.write_bytes(_file_system(packages, files))
    forwarded = ",".join(f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwards)
    command = [
        root / "usr/bin/qemu-system-x86_64",
        *("-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"),
        # One thread emulates all CPUs in turn. With a thread for each CPU, one whose thread does not run for a while
        # stops all others, which wait for it in the kernel. On two cores one thread is not slower.
        *("-accel", "tcg,thread=single"),
        *("-smp", hardware.smp, "-m", hardware.memory, *hardware.options),
        *("-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios"),
        *("-kernel", next((packages.kernel / "boot").glob("vmlinuz-*")), "-initrd", initrd),
        *("-append", f"{KERNEL} {hardware.kernel}".strip()),
        *("-netdev", f"user,id=net,restrict=on,{forwarded}"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
    ]
    libraries = ":".join(str(root / name / "x86_64-linux-gnu") for name in ("usr/lib", "lib"))
    with booted(command, folder, os.environ | {"LD_LIBRARY_PATH": libraries}, is_ready) as process:
        yield process


def booted(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str], is_ready: Callable[[], bool]
) -> Process:
    """The first machine that is ready in time, of at most `ATTEMPTS`."""
    for attempt in range(1, ATTEMPTS + 1):
        process = Process(command, folder / f"machine-{attempt}.log", environment)
        try:
            process.wait_ready(functools.partial(_is_up, process, is_ready), BOOT_DEADLINE_S)
        except NotReadyError:
            process.kill()
            if attempt == ATTEMPTS:
                raise
        except BaseException:
            process.kill()
            raise
        else:
            return process
    raise AssertionError("not reached")


def _is_up(process: Process, is_ready: Callable[[], bool]) -> bool:
    """Whether the machine answers. Raises NotReadyError if a CPU is stuck.

    No connection is tried before the network is up: qemu would accept one, and repeat a lost packet after six seconds.
    """
    console = process.log.read_text(errors="replace")
    if _LOCKUP in console:
        raise NotReadyError(f"a CPU of the machine is stuck:\n{process.tail()}")
    return UP in console and is_ready()


def _file_system(packages: MachinePackages, files: Mapping[str, FileEntry]) -> bytes:
    """The initial file system in cpio's format `newc`. Folders come before their content."""
    whole = {
        "bin/busybox": program(packages.emulator / "bin/busybox"),
        **{f"modules/{name}.ko": _kernel_module(packages.kernel, name) for name in NETWORK},
        **files,
    }
    parents = {str(parent) for name in whole for parent in PurePosixPath(name).parents} - {"."}
    folders = dict.fromkeys({*parents, "dev", "proc", "sys"} - whole.keys(), FileEntry(_FOLDER, b""))
    ordered = sorted((folders | whole).items())
    entries = [*ordered, ("TRAILER!!!", FileEntry(0, b""))]
    return b"".join(_entry(number, name, entry) for number, (name, entry) in enumerate(entries, 1))


def _kernel_module(kernel: Path, name: str) -> FileEntry:
    """A module of the kernel, which Debian compresses."""
    path = next((kernel / "usr/lib/modules").rglob(f"{name}.ko.xz"))
    return FileEntry(_PROGRAM, lzma.decompress(path.read_bytes()))


def _entry(number: int, name: str, entry: FileEntry) -> bytes:
    fields = (number, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(entry.content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
