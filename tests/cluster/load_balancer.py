"""A load balancer on loopback that forwards connections to ready replicas, as a Service does.

A new connection goes to one of the endpoints that were ready at the last probe. An open connection stays with its
endpoint, even if that is no longer ready. There are no retries: a connection is aborted if its endpoint does not accept
it, or if no endpoint is ready.
"""

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

PROBE_S = 0.2
"""Seconds between two probes. In a cluster, probes are seconds apart, but the end or deletion of a pod takes effect at
once.
"""
PROBE_TIMEOUT_S = 5.0
_UNVERIFIED = ssl._create_unverified_context()


class BalancedEndpoint(NamedTuple):
    """A replica: the URL of its port, and the URL of the port with /readyz."""

    url: str
    health: str

    @property
    def address(self) -> tuple[str, int]:
        address = urlsplit(self.url)
        return address.hostname or "", address.port or 0


class LoadBalancer:
    """The load balancer, which `serving` runs in a thread. `url` is the URL of the Service."""

    def __init__(self) -> None:
        self.url = ""
        self.ready: list[BalancedEndpoint] = []
        self.only: BalancedEndpoint | None = None
        """The endpoint for all new connections, ready or not. If None, the ready endpoints take turns."""
        self.taken: dict[int, BalancedEndpoint] = {}
        """The endpoint of each connection, by the client's port."""
        self.unanswered: set[int] = set()
        """The client's ports of connections whose last bytes came from the client."""
        self._endpoints: Sequence[BalancedEndpoint] = ()
        self._turns = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    def set_endpoints(self, *endpoints: BalancedEndpoint) -> None:
        """Replaces the endpoints. Each is used as soon as a probe finds it ready."""
        self._endpoints = endpoints

    async def serve(self, listening: socket.socket) -> None:
        """Accepts connections and probes endpoints until cancelled."""
        async with await asyncio.start_server(self._connected, sock=listening):
            while True:
                endpoints = self._endpoints
                readiness = await asyncio.gather(*map(_is_ready, endpoints))
                self.ready = [
                    endpoint for endpoint, is_ready in zip(endpoints, readiness, strict=True) if is_ready
                ]
                await asyncio.sleep(PROBE_S)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [self.only] if self.only else self.ready
        if not ready:
            writer.transport.abort()
            return
        endpoint = ready[next(self._turns) % len(ready)]
        port = writer.get_extra_info("peername")[1]
        self.taken[port] = endpoint
        try:
            theirs, to_them = await asyncio.open_connection(*endpoint.address)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(
            pump(reader, to_them, lambda: self.unanswered.add(port)),
            pump(theirs, writer, lambda: self.unanswered.discard(port)),
        )


async def pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, on_data: Callable[[], None] = lambda: None
) -> None:
    """Copies bytes from one side to the other. An orderly close is forwarded as a close, an error as a reset."""
    try:
        while data := await source.read(2**16):
            on_data()
            target.write(data)
            await target.drain()
        target.close()
    except OSError:
        target.transport.abort()


async def _is_ready(endpoint: BalancedEndpoint) -> bool:
    address = urlsplit(endpoint.health)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            tls = _UNVERIFIED if address.scheme == "https" else None
            reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=tls)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
    except OSError:
        return False
    return status.split()[1:2] == [b"200"]


@contextlib.contextmanager
def serving() -> Iterator[LoadBalancer]:
    """Runs a load balancer without endpoints while the context is open."""
    balancer, loop = LoadBalancer(), asyncio.new_event_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        balancer.url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        task = loop.create_task(balancer.serve(listening))

        def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield balancer
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join(10)
