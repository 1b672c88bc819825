"""Boots a virtual machine with qemu's software emulation, Debian's kernel, and an initial file system from a test.

The machine boots in about five seconds and needs little CPU time while idle. Its ports are forwarded from loopback.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.cluster.child_processes import Process

NETWORK = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
)
"""The kernel modules in load order: each after its dependencies."""
START = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for name in {modules}; do /bin/busybox insmod /modules/$name.ko; done
/bin/busybox ip link set lo up
/bin/busybox ip link set eth0 up
/bin/busybox ip addr add 10.0.2.15/24 dev eth0
""".format(modules=" ".join(NETWORK))
"""The beginning of every init script: it mounts file systems, loads the modules and configures the network."""
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
    options: Sequence[str] = ("-accel", "tcg")
    kernel: str = ""


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
    root: Path,
    folder: Path,
    files: Mapping[str, FileEntry],
    hardware: EmulatedHardware,
    forwards: Sequence[tuple[int, int]],
) -> Iterator[Process]:
    """Boots a machine from the packages below `root` with these files, which include `init`. `forwards` are pairs of a
    local port and a port of the machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    initrd = folder / "initrd"
    initrd.write_bytes(_file_system(root, files))
    libraries = ":".join(str(root / name / "x86_64-linux-gnu") for name in ("usr/lib", "lib"))
    forwarded = ",".join(f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwards)
    with Process(
        [
            # a low priority, so that the load in the machine does not slow down the programs that watch it
            *("nice", "-n", "10"),
            root / "usr/bin/qemu-system-x86_64",
            *("-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"),
            *("-smp", hardware.smp, "-m", hardware.memory, *hardware.options),
            *("-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios"),
            *("-kernel", next((root / "boot").glob("vmlinuz-*")), "-initrd", initrd),
            *("-append", f"console=ttyS0 panic=1 quiet {hardware.kernel}".strip()),
            *("-netdev", f"user,id=net,restrict=on,{forwarded}"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
        ],
        folder / "machine.log",
        os.environ | {"LD_LIBRARY_PATH": libraries},
    ) as process:
        yield process


def _file_system(root: Path, files: Mapping[str, FileEntry]) -> bytes:
    """The initial file system in cpio's format `newc`. Folders come before their content."""
    modules = root / "lib/modules"
    whole = {
        "bin/busybox": program(root / "bin/busybox"),
        **{f"modules/{name}.ko": program(next(modules.rglob(f"{name}.ko"))) for name in NETWORK},
        **files,
    }
    parents = {str(parent) for name in whole for parent in PurePosixPath(name).parents} - {"."}
    folders = dict.fromkeys({*parents, "dev", "proc", "sys"} - whole.keys(), FileEntry(_FOLDER, b""))
    ordered = sorted((folders | whole).items())
    entries = [*ordered, ("TRAILER!!!", FileEntry(0, b""))]
    return b"".join(_entry(number, name, entry) for number, (name, entry) in enumerate(entries, 1))


def _entry(number: int, name: str, entry: FileEntry) -> bytes:
    fields = (number, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(entry.content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
