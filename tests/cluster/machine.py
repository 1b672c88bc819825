"""A virtual machine with a node exporter and a load that can be switched on: a node whose figures are its own.

qemu emulates it in software, with Debian's kernel and an initial file system of busybox and the exporter; it is up in
some five seconds and, idle, costs next to nothing. Two of its ports lead to ports of this machine's loopback.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.cluster import processes, prometheus
from tests.cluster.processes import Process

CPUS = 2
MEMORY = "512Mi"
"""A little of it is the kernel's."""
_PORT = 9100
_ORDERS = 9101
_MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
)
"""Each after those that it needs."""
_INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for name in {modules}; do /bin/busybox insmod /modules/$name.ko; done
/bin/busybox ip link set lo up
/bin/busybox ip link set eth0 up
/bin/busybox ip addr add 10.0.2.15/24 dev eth0
while true; do /bin/busybox nc -l -p {orders} </dev/null; done | while read order; do
  case $order in
    load) for cpu in $(/bin/busybox seq {cpus}); do
      while true; do :; done & loops="$loops $!"
    done ;;
    rest) kill $loops; loops= ;;
  esac
done &
exec /bin/node_exporter --web.listen-address=:{port} --web.disable-exporter-metrics \\
  --collector.disable-defaults --collector.cpu --collector.meminfo
"""
_FOLDER, _PROGRAM = 0o40755, 0o100755


class Machine:
    """A machine that runs."""

    def __init__(self, exporter: str, orders: int) -> None:
        self.exporter = exporter
        """The address of its node exporter, on this machine."""
        self._orders = orders

    @property
    def memory_bytes(self) -> int:
        """What its kernel has to give."""
        with httpx2.Client(trust_env=False) as client:
            lines = client.get(f"http://{self.exporter}/metrics").text.splitlines()
        return next(
            int(float(line.split()[1])) for line in lines if line.startswith("node_memory_MemTotal_bytes ")
        )

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """All its CPUs are busy, until the block is left."""
        self._order("load")
        try:
            yield
        finally:
            self._order("rest")

    def _order(self, word: str) -> None:
        with socket.create_connection(("127.0.0.1", self._orders), 30) as connection:
            connection.sendall(f"{word}\n".encode())


@contextlib.contextmanager
def running(root: Path, exporter: Path, folder: Path) -> Iterator[Machine]:
    """A machine of the packages below `root`, with that node exporter. Raises NotReadyError."""
    measured, orders = processes.free_port(), processes.free_port()
    folder.mkdir(parents=True, exist_ok=True)
    initrd = folder / "initrd"
    initrd.write_bytes(_file_system(root, exporter))
    libraries = ":".join(str(root / name / "x86_64-linux-gnu") for name in ("usr/lib", "lib"))
    forwarded = ((measured, _PORT), (orders, _ORDERS))
    forwards = ",".join(f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwarded)
    with Process(
        [
            *(
                "nice",
                "-n",
                "10",
            ),  # it is to be loaded by what runs in it, and not to hold up what it is a node for
            root / "usr/bin/qemu-system-x86_64",
            *("-accel", "tcg", "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"),
            *("-smp", str(CPUS), "-m", MEMORY.removesuffix("i")),
            *("-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios"),
            *("-kernel", next((root / "boot").glob("vmlinuz-*")), "-initrd", initrd),
            *("-append", "console=ttyS0 panic=1 quiet"),
            *("-netdev", f"user,id=net,restrict=on,{forwards}"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
        ],
        folder / "machine.log",
        os.environ | {"LD_LIBRARY_PATH": libraries},
    ) as process:
        machine = Machine(f"127.0.0.1:{measured}", orders)
        with httpx2.Client(trust_env=False) as client:
            process.wait_ready(lambda: prometheus.answers(f"http://{machine.exporter}/metrics", client))
        yield machine


def _file_system(root: Path, exporter: Path) -> bytes:
    """What the kernel begins with, in cpio's form `newc`."""
    modules = root / "lib/modules"
    programs = {
        "bin/busybox": root / "bin/busybox",
        "bin/node_exporter": exporter,
        "lib/libc.so.6": Path("/lib/x86_64-linux-gnu/libc.so.6"),
        "lib64/ld-linux-x86-64.so.2": Path("/lib64/ld-linux-x86-64.so.2"),
        **{f"modules/{name}.ko": next(modules.rglob(f"{name}.ko")) for name in _MODULES},
    }
    init = _INIT.format(modules=" ".join(_MODULES), port=_PORT, orders=_ORDERS, cpus=CPUS).encode()
    entries = [
        *((name, _FOLDER, b"") for name in ("bin", "dev", "lib", "lib64", "modules", "proc", "sys")),
        *((name, _PROGRAM, path.read_bytes()) for name, path in programs.items()),
        ("init", _PROGRAM, init),
        ("TRAILER!!!", 0, b""),
    ]
    return b"".join(_entry(number, *one) for number, one in enumerate(entries, 1))


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
