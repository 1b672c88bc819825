"""A load balancer on loopback that forwards connections to ready replicas, as a Service does.

A new connection goes to one of the endpoints that were ready when they were looked at last. One that is open stays
where it is, also when its endpoint is no longer ready. Nothing is tried again: whoever meets an endpoint that is gone
is refused, and so is everybody where none is ready.
"""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

PROBE_S = 0.2
"""Between two probes. A cluster's are seconds apart, but it hears of a pod that ends, or is deleted, at once."""
PROBE_TIMEOUT_S = 5.0


class BalancedEndpoint(NamedTuple):
    """A replica: the URL that it serves, and that of its admin port."""

    url: str
    health: str

    @property
    def address(self) -> tuple[str, int]:
        address = urlsplit(self.url)
        return address.hostname or "", address.port or 0


class LoadBalancer:
    """Runs in a thread of its own, from `serving`. `url` is the Service's."""

    def __init__(self) -> None:
        self.url = ""
        self.ready: list[BalancedEndpoint] = []
        self.only: BalancedEndpoint | None = None
        """All new connections go there, ready or not; None: to each that is ready in turn."""
        self.taken: dict[int, BalancedEndpoint] = {}
        """Which endpoint a connection went to, by the client's port."""
        self._endpoints: Sequence[BalancedEndpoint] = ()
        self._turns = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    def set_endpoints(self, *endpoints: BalancedEndpoint) -> None:
        """The replicas from now on; each is used as soon as it was found ready."""
        self._endpoints = endpoints

    async def serve(self, listening: socket.socket) -> None:
        """Until cancelled."""
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
        self.taken[writer.get_extra_info("peername")[1]] = endpoint
        try:
            theirs, to_them = await asyncio.open_connection(*endpoint.address)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, to_them), pump(theirs, writer))


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Bytes from one side to the other; an end is handed on as what it is, an orderly one or a reset."""
    try:
        while data := await source.read(2**16):
            target.write(data)
            await target.drain()
        target.close()
    except OSError:
        target.transport.abort()


async def _is_ready(endpoint: BalancedEndpoint) -> bool:
    address = urlsplit(endpoint.health)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            status = await reader.readline()
            writer.close()
    except OSError:
        return False
    return status.split()[1:2] == [b"200"]


@contextlib.contextmanager
def serving() -> Iterator[LoadBalancer]:
    """A Service without endpoints yet."""
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
