"""A network between a client and the API server with faults: a TCP proxy on loopback."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit


class FaultyNetwork:
    """The proxy, which `between` runs in a thread."""

    def __init__(self, server: str, url: str) -> None:
        address = urlsplit(server)
        self._server = (address.hostname or "", address.port or 0)
        self._silenced: set[int] = set()
        self._connections = 0
        self.ended = asyncio.Event()
        self.url = url
        self.delay_s = 0.0
        """Delay of each direction: a call takes twice this time, and a new connection another two times."""

    def silence(self) -> int:
        """Discard all further packets of the open connections, as after the loss of their entries in a NAT gateway.

        The kernel still acknowledges packets, so keepalive probes do not show it. Returns the number of connections.
        """
        before = len(self._silenced)
        self._silenced |= set(range(self._connections))
        return len(self._silenced) - before

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections until `ended` is set."""
        server = await asyncio.start_server(self._accept, sock=listening)
        await self.ended.wait()
        server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self._connections
        self._connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._server)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(
            self._forward(number, reader, far_writer), self._forward(number, far_reader, writer)
        )

    async def _forward(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward each packet after the delay. Packets do not wait for those before them."""
        loop = asyncio.get_running_loop()
        packets: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    packets.put_nowait((loop.time() + self.delay_s, data))
            packets.put_nowait((loop.time() + self.delay_s, b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                at_s, data = await packets.get()
                await asyncio.sleep(at_s - loop.time())
                if number in self._silenced:
                    continue
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            pass
        finally:
            reading.cancel()
            if not writer.is_closing():
                writer.transport.abort()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A kubeconfig with the credentials of another one, whose server is reached through this network."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"]["server"] = self.url
        path = folder / "faulty-network.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path


@contextlib.contextmanager
def between(server: str) -> Iterator[FaultyNetwork]:
    """Runs the network while the context is open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        network = FaultyNetwork(server, f"https://127.0.0.1:{listening.getsockname()[1]}")
        loop = asyncio.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:  # ends open connections, too
                runner.run(network.serve(listening))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield network
        finally:
            loop.call_soon_threadsafe(network.ended.set)
            thread.join(10)
