"""Requests through port-forward, to a fake of the API server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import replicas
from nodewise.kube.http_client import HttpApi
from nodewise.kube.replicas import PodPort
from tests.cluster import child_processes
from tests.cluster.asgi_server_thread import Receive, Send
from tests.cluster.fake_port_forward import FakePortForward
from tests.unit.kube import port_forward_suite
from tests.unit.kube.port_forward_suite import TIMEOUT_S, PortForwardSuite

PORT = PodPort("nodewise", "replica", 9002)


@pytest.fixture
def http_port() -> Iterator[int]:
    yield from port_forward_suite.serving_large_file()


@pytest.fixture
def fake(http_port: int) -> FakePortForward:
    fake = FakePortForward()
    fake.ports[tuple(PORT)] = http_port
    return fake


@pytest.fixture
async def api(fake: FakePortForward, tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with port_forward_suite.connected(fake, tmp_path) as api:
        yield api


class TestFakePortForward(PortForwardSuite):
    @pytest.fixture
    def pod_port(self) -> PodPort:
        return PORT

    @pytest.fixture
    def closed_port(self) -> int:
        return child_processes.free_port()


async def test_the_query_is_encoded(api: HttpApi) -> None:
    body = await replicas.get(api, PORT, "/echo", {"pod": "a b&c", "limit": "3"}, TIMEOUT_S)
    assert body == b"pod=a+b%26c&limit=3"


async def test_a_missing_right_is_refused_with_the_message_of_the_api_server(
    api: HttpApi, fake: FakePortForward
) -> None:
    fake.refusals["replica"] = 403
    with pytest.raises(Refused, match=r'cannot create resource "pods/portforward"'):
        await replicas.get(api, PORT, "/large", {}, TIMEOUT_S)


async def test_a_pod_that_does_not_answer_is_unavailable_after_the_timeout(
    api: HttpApi, fake: FakePortForward
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fake.ports[tuple(PORT)] = silent.getsockname()[1]
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            await replicas.get(api, PORT, "/large", {}, 0.05)


async def test_a_pod_that_closes_the_connection_is_unavailable(api: HttpApi, fake: FakePortForward) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        fake.ports[tuple(PORT)] = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="disconnected without sending a response"):
            await replicas.get(api, PORT, "/large", {}, TIMEOUT_S)


async def test_a_message_on_another_channel_is_an_error(
    api: HttpApi, fake: FakePortForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forward(_target: int, _port: int, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.send", "bytes": b"\x07"})
        await receive()

    monkeypatch.setattr(fake, "_forward", forward)
    with pytest.raises(Unavailable, match="a message on channel 7; expected channel 0 or 1"):
        await replicas.get(api, PORT, "/large", {}, TIMEOUT_S)


async def test_no_empty_message_follows_the_request(
    api: HttpApi, fake: FakePortForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod may have answered and closed the connection by then."""
    messages: list[bytes] = []

    async def forward(_target: int, _port: int, receive: Receive, send: Send) -> None:
        messages.append((await receive())["bytes"])
        header, response = PORT.port.to_bytes(2, "little"), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        await send({"type": "websocket.send", "bytes": b"\x00" + header + response})
        while (message := await receive())["type"] == "websocket.receive":
            messages.append(message["bytes"])

    monkeypatch.setattr(fake, "_forward", forward)
    assert await replicas.get(api, PORT, "/decisions", {}, TIMEOUT_S) == b"ok"
    (message,) = messages
    assert message.startswith(b"\x00GET /decisions ")


async def test_a_large_response_is_limited(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "MOST_BYTES", 1000)
    with pytest.raises(Unavailable, match="more than"):
        await replicas.get(api, PORT, "/large", {}, TIMEOUT_S)


async def test_an_api_server_that_does_not_upgrade_is_named(api: HttpApi, fake: FakePortForward) -> None:
    fake.refusals["replica"] = 200
    with pytest.raises(Unavailable, match="HTTP status 200; expected an upgrade to WebSocket"):
        await replicas.get(api, PORT, "/large", {}, TIMEOUT_S)
