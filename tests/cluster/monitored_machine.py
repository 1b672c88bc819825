"""A virtual machine with a node exporter and a CPU load that can be switched on: a node with its own metrics.

The machine contains busybox and the exporter. Two of its ports are forwarded from ports of this machine's loopback.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.cluster import child_processes, prometheus_process, virtual_machine
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import EmulatedHardware

CPUS = 2
MEMORY = "512Mi"
"""The memory of the machine; the kernel uses a small part of it."""
_PORT = 9100
_ORDERS = 9101
_INIT = """\
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


class MonitoredMachine:
    """A running virtual machine."""

    def __init__(self, exporter: str, orders: int) -> None:
        self.exporter = exporter
        """The host and port of the node exporter on this machine."""
        self._orders = orders

    @property
    def memory_bytes(self) -> int:
        """The total memory that the machine's kernel reports."""
        with httpx2.Client(trust_env=False) as client:
            lines = client.get(f"http://{self.exporter}/metrics").text.splitlines()
        return next(
            int(float(line.split()[1])) for line in lines if line.startswith("node_memory_MemTotal_bytes ")
        )

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Keeps all CPUs of the machine busy while the context is open."""
        self._order("load")
        try:
            yield
        finally:
            self._order("rest")

    def _order(self, word: str) -> None:
        with socket.create_connection(("127.0.0.1", self._orders), 30) as connection:
            connection.sendall(f"{word}\n".encode())


@contextlib.contextmanager
def running(packages: MachinePackages, exporter: Path, folder: Path) -> Iterator[MonitoredMachine]:
    """Boots a machine from the packages, with this node exporter. Raises NotReadyError."""
    measured, orders = child_processes.free_port(), child_processes.free_port()
    files = {
        "bin/node_exporter": virtual_machine.program(exporter),
        "lib/libc.so.6": virtual_machine.program(Path("/lib/x86_64-linux-gnu/libc.so.6")),
        "lib64/ld-linux-x86-64.so.2": virtual_machine.program(Path("/lib64/ld-linux-x86-64.so.2")),
        "init": virtual_machine.script(
            virtual_machine.START + _INIT.format(port=_PORT, orders=_ORDERS, cpus=CPUS)
        ),
    }
    # not a low priority: an idle machine that waits for the CPU appears to be busy
    hardware = EmulatedHardware(str(CPUS), MEMORY.removesuffix("i"))
    machine = MonitoredMachine(f"127.0.0.1:{measured}", orders)
    ports = (measured, _PORT), (orders, _ORDERS)
    with (
        httpx2.Client(trust_env=False) as client,
        virtual_machine.running(
            packages,
            folder,
            files,
            hardware,
            ports,
            lambda: prometheus_process.answers(f"http://{machine.exporter}/metrics", client),
        ),
    ):
        yield machine
