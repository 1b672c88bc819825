"""A virtual machine with a node exporter and a load that can be switched on: a node with metrics of its own.

It has busybox and the exporter; two of its ports lead to ports of this machine's loopback.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2

from tests.cluster import processes, prometheus_process, virtual_machine
from tests.cluster.virtual_machine import EmulatedHardware

CPUS = 2
MEMORY = "512Mi"
"""A little of it is the kernel's."""
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
def running(root: Path, exporter: Path, folder: Path) -> Iterator[MonitoredMachine]:
    """A machine of the packages below `root`, with that node exporter. Raises NotReadyError."""
    measured, orders = processes.free_port(), processes.free_port()
    files = {
        "bin/node_exporter": virtual_machine.program(exporter),
        "lib/libc.so.6": virtual_machine.program(Path("/lib/x86_64-linux-gnu/libc.so.6")),
        "lib64/ld-linux-x86-64.so.2": virtual_machine.program(Path("/lib64/ld-linux-x86-64.so.2")),
        "init": virtual_machine.script(
            virtual_machine.START + _INIT.format(port=_PORT, orders=_ORDERS, cpus=CPUS)
        ),
    }
    hardware = EmulatedHardware(str(CPUS), MEMORY.removesuffix("i"))
    with virtual_machine.running(
        root, folder, files, hardware, ((measured, _PORT), (orders, _ORDERS))
    ) as process:
        machine = MonitoredMachine(f"127.0.0.1:{measured}", orders)
        with httpx2.Client(trust_env=False) as client:
            process.wait_ready(
                lambda: prometheus_process.answers(f"http://{machine.exporter}/metrics", client)
            )
        yield machine
