"""The HTTP server of the API server in memory: ends of connections."""

import asyncio
import gc
import logging
import socket
import struct

import pytest

from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.scheduling_model.in_memory_api_http_server import watch_disconnection


async def _reset_connection() -> None:
    accepted: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: accepted.put_nowait(reader), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        disconnected = watch_disconnection(await accepted.get())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.wait({disconnected})
    server.close()


def test_reset_of_a_connection_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A lost error would be formatted by the garbage collector, in the middle of whatever runs then."""
    with caplog.at_level(logging.ERROR):
        asyncio.run(_reset_connection())
        gc.collect()
    assert caplog.records == []


def test_end_of_a_connection_within_a_request_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR),
        in_memory_api_http_server.serving(FakeApi()) as server,
        socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client,
    ):
        client.sendall(b"POST /api/v1/nodes HTTP/1.1\r\ncontent-length: 798\r\n\r\n{")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert caplog.records == []
