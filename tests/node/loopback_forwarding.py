"""The network of a runtime and its pods: addresses of its loopback interface, and the servers behind them.

Connections to an address are forwarded one by one: out of the network, for example to the API server of the test, or to
pods in it, as kube-proxy does for a Service. A connection without a target is closed at once.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.cluster.api_client import ClusterApi
from tests.cluster.load_balancer import pump
from tests.node.containerd_runtime import Containerd

_NEWNET = 0x40000000  # CLONE_NEWNET of <sched.h>

Address = tuple[str, int]


class ForwardingTarget(NamedTuple):
    """The target of a connection: an address outside of the network, or in it."""

    address: Address
    is_inside: bool = False


Choice = Callable[[], ForwardingTarget | None]


class Network:
    """Created by `of`. A thread in the network creates its sockets, which stay in it whichever thread uses them."""

    def __init__(self, runtime: Containerd, busybox: Path) -> None:
        self._runtime = runtime
        self._busybox = busybox
        self._inside = ThreadPoolExecutor(
            1, initializer=enter, initargs=(Path(f"/proc/{runtime.pid}/ns/net"),)
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._serving: set[asyncio.Task[None]] = set()
        self._ip("link", "set", "lo", "up")

    def add(self, address: str) -> None:
        """Add an address outside of 127.0.0.0/8 to the loopback interface, so that pods can reach it."""
        self._ip("addr", "add", f"{address}/32", "dev", "lo")

    def forward(self, address: Address, choose: Choice) -> None:
        """Forward connections to this address of the network, which must exist, to the result of `choose`."""
        listening = self._socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        self._run(self._listen(listening, choose))

    def serve(self, api: ClusterApi, namespace: str, service: str) -> None:
        """Act as kube-proxy: forward connections to a Service's address to its ready pods in turn."""
        spec = api.get(f"/api/v1/namespaces/{namespace}/services/{service}")["spec"]
        self.add(spec["clusterIP"])
        turns = itertools.count()

        def choose() -> ForwardingTarget | None:
            ready = _ready(api, namespace, service)
            return ForwardingTarget(ready[next(turns) % len(ready)], is_inside=True) if ready else None

        for port in spec["ports"]:
            self.forward((spec["clusterIP"], port["port"]), choose)

    def connect(self, address: Address) -> socket.socket:
        """A connection from within the network."""
        made = self._socket()
        made.settimeout(30)
        made.connect(address)
        return made

    def close(self) -> None:
        """Close all connections and listening sockets."""
        self._run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._inside.shutdown()

    def _ip(self, *words: str) -> None:
        command = ["nsenter", f"--target={self._runtime.pid}", "--net", "--", self._busybox, "ip", *words]
        subprocess.run(command, check=True, capture_output=True)

    def _socket(self) -> socket.socket:
        return self._inside.submit(socket.socket, socket.AF_INET, socket.SOCK_STREAM).result()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self, listening: socket.socket, choose: Choice) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                target = await asyncio.to_thread(choose)
                if target:
                    await self._hand_on(reader, writer, target)
            except OSError:
                writer.transport.abort()
            except asyncio.CancelledError:
                return  # at the end; asyncio asks for the error of this task, and a cancelled one raises it
            finally:
                writer.close()

        server = await asyncio.start_server(connected, sock=listening)
        self._serving = {*self._serving, asyncio.create_task(server.serve_forever())}

    async def _hand_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: ForwardingTarget
    ) -> None:
        theirs, to_them = await self._connect(target)
        try:
            await asyncio.gather(pump(reader, to_them), pump(theirs, writer))
        finally:
            to_them.close()

    async def _connect(self, target: ForwardingTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not target.is_inside:
            return await asyncio.open_connection(*target.address)
        made = await asyncio.to_thread(self._socket)
        made.setblocking(False)
        try:
            await self._loop.sock_connect(made, target.address)
        except OSError:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)


def address_of(url: str) -> Address:
    """Host and port of a URL."""
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def out_to(address: Address) -> Choice:
    """A choice of a fixed target outside of the network."""
    return lambda: ForwardingTarget(address)


@contextlib.contextmanager
def of(runtime: Containerd, busybox: Path) -> Iterator[Network]:
    """The network of a running containerd."""
    network = Network(runtime, busybox)
    try:
        yield network
    finally:
        network.close()


def enter(place: Path) -> None:
    """Move the calling thread into a network, given by its file; open sockets stay in their network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with place.open() as network:
        if libc.setns(network.fileno(), _NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


async def _end_all() -> None:
    """Cancel all other tasks of the event loop, and wait for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _ready(api: ClusterApi, namespace: str, service: str) -> Sequence[Address]:
    """The ready endpoints of a Service with one port."""
    about = f"kubernetes.io/service-name={service}"
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slices = api.get(path, labelSelector=about)["items"]
    return [
        (address, endpoint_slice["ports"][0]["port"])
        for endpoint_slice in slices
        for endpoint in endpoint_slice["endpoints"] or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    ]
