"""The connections that calls use, and when old connections are closed."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpcore2
import httpx2
import pytest

from nodewise.base.errors import Conflict, Unavailable
from nodewise.kube import http_transport
from nodewise.kube.api_server_interface import TokenBucket
from nodewise.kube.credentials import BearerTokenFile
from nodewise.kube.http_client import ConnectionInfo, HttpApi
from nodewise.kube.http_transport import (
    AiohttpTransport,
    HttpTransport,
    RenewingTransport,
    drop_idle_connections,
    is_on_retired_connection,
)
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.kube import virtual_time


class Body(httpx2.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"some"
        yield b"body"


class FakeTransport(httpx2.AsyncBaseTransport):
    """A transport whose responses contain its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert not self.is_closed
        if request.url.path == "/unreachable":
            raise httpx2.ConnectError("nobody listens")
        return httpx2.Response(200, headers={"number": str(self.number)}, stream=Body())

    async def aclose(self) -> None:
        self.is_closed = True


class FakeCertificateFiles:
    """The transports of a `RenewingTransport`, and whether its certificate files have changed."""

    def __init__(self) -> None:
        self.made: list[FakeTransport] = []
        self.news = False
        self.transport = RenewingTransport(self.make, self.has_changed)
        self.http = httpx2.AsyncClient(transport=self.transport, base_url="https://host")

    def make(self) -> FakeTransport:
        self.made.append(FakeTransport(len(self.made) + 1))
        return self.made[-1]

    def has_changed(self) -> bool:
        news, self.news = self.news, False
        return news

    async def called(self) -> str:
        return str((await self.http.get("/")).headers["number"])

    @property
    def closed(self) -> list[bool]:
        return [transport.is_closed for transport in self.made]


async def test_a_change_has_the_next_call_go_out_on_new_connections() -> None:
    files = FakeCertificateFiles()
    assert [await files.called(), await files.called()] == ["1", "1"]
    files.news = True
    assert [await files.called(), await files.called()] == ["2", "2"]
    assert files.closed == [True, False]


async def test_a_call_under_way_is_finished_on_its_old_connection() -> None:
    files = FakeCertificateFiles()
    async with files.http.stream("GET", "/") as under_way:
        assert not is_on_retired_connection(under_way)
        files.news = True
        assert is_on_retired_connection(under_way), "who watches asks, and so notices without another call"
        assert await files.called() == "2"
        assert files.closed == [False, False]
        assert b"".join([piece async for piece in under_way.aiter_bytes()]) == b"somebody"
    assert await files.called() == "2"
    assert files.closed == [True, False]


async def test_a_call_that_fails_keeps_no_connections_open() -> None:
    files = FakeCertificateFiles()
    with pytest.raises(httpx2.ConnectError):
        await files.http.get("/unreachable")
    files.news = True
    assert await files.called() == "2"
    assert files.closed == [True, False]


async def test_calls_after_a_timeout_use_new_connections_and_watches_continue() -> None:
    files = FakeCertificateFiles()
    async with files.http.stream("GET", "/") as watch:
        silent, also_silent = [(await files.http.get("/")).request for _ in range(2)]
        drop_idle_connections(silent)
        assert await files.called() == "2"
        drop_idle_connections(also_silent)
        assert await files.called() == "2", "timeouts of the same connections replace them once"
        assert not is_on_retired_connection(watch)
        assert files.closed == [False, False]
        files.news = True
        assert is_on_retired_connection(watch)
    assert await files.called() == "3"
    assert files.closed == [True, True, False]


async def test_a_close_closes_all() -> None:
    files = FakeCertificateFiles()
    async with files.http.stream("GET", "/"):
        files.news = True
        assert await files.called() == "2"
        await files.http.aclose()
    assert files.closed == [True, True]


async def test_a_transport_of_another_kind_is_never_retired() -> None:
    assert not is_on_retired_connection(httpx2.Response(200))


VIA = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environ", "wanted"),
    [
        pytest.param("https://api:6443", {}, "", id="none in the environment"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": VIA}, VIA, id="https"),
        pytest.param("https://api:6443", {"https_proxy": VIA}, VIA, id="lower case"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": "proxy:3128"}, VIA, id="without a scheme"),
        pytest.param("https://api:6443", {"HTTP_PROXY": VIA}, "", id="of another scheme"),
        pytest.param("http://api:8080", {"HTTP_PROXY": VIA}, VIA, id="http"),
        pytest.param("https://127.0.0.1:6443", {"HTTPS_PROXY": VIA}, "", id="loopback is asked directly"),
        pytest.param("https://[::1]:6443", {"HTTPS_PROXY": VIA}, "", id="loopback of IPv6"),
        pytest.param("https://localhost:6443", {"HTTPS_PROXY": VIA}, "", id="loopback by name"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": VIA, "NO_PROXY": "*"}, "", id="all excepted"),
        pytest.param("https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "10.96.0.1"}, "", id="an address"),
        pytest.param(
            "https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "x, 10.0.0.0/8"}, "", id="a network"
        ),
        pytest.param(
            "https://11.0.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "10.0.0.0/8"}, VIA, id="another network"
        ),
        pytest.param(
            "https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "1.svc"}, VIA, id="a name for an address"
        ),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "svc"}, "", id="below a name"),
        pytest.param("https://svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "SVC"}, "", id="the name itself"),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": ".svc"}, "", id="below a dot"),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "*.svc"}, "", id="below a star"),
        pytest.param(
            "https://svc", {"HTTPS_PROXY": VIA, "NO_PROXY": ".svc"}, VIA, id="a dot is not the name itself"
        ),
        pytest.param(
            "https://my-svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "svc"}, VIA, id="half a name is no name"
        ),
    ],
)
def test_which_proxy(server: str, environ: dict[str, str], wanted: str) -> None:
    assert http_transport.proxy_url(server, environ) == wanted


class TlsStream(httpcore2.AsyncNetworkStream):
    """A stream whose first record arrives with these others, which its TLS object returns."""

    def __init__(self, *records: bytes | ssl.SSLError) -> None:
        self._records = list(records)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.take(max_bytes)

    def take(self, max_bytes: int) -> bytes:
        record = self._records.pop(0) if self._records else ssl.SSLWantReadError()
        if isinstance(record, ssl.SSLError):
            raise record
        if len(record) > max_bytes:
            self._records.insert(0, record[max_bytes:])
        return record[:max_bytes]

    def get_extra_info(self, info: str) -> Any:
        return SimpleNamespace(read=self.take) if info == "ssl_object" else None


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([b"ab", b"cd", b"e"], [b"abcd", b"e"]),
        ([b"ab"], [b"ab"]),
        ([b"", b"cd"], [b""]),
        ([b"abcd", b"e"], [b"abcd", b"e"]),
        ([b"a", b"", b"e"], [b"a", b"e"]),
        ([b"a", ssl.SSLError("bad record"), b"e"], [b"a", b"e"]),
    ],
    ids=["several", "one", "end of the stream", "full", "end after a record", "error after a record"],
)
async def test_a_read_returns_all_records_that_have_arrived(
    records: list[bytes | ssl.SSLError], expected: list[bytes]
) -> None:
    stream = http_transport._SeveralRecordsStream(TlsStream(*records))
    assert [await stream.read(4) for _ in expected] == expected


async def test_a_stream_without_tls_is_read_once() -> None:
    class Plain(TlsStream):
        def get_extra_info(self, info: str) -> Any:
            return None

    stream = http_transport._SeveralRecordsStream(Plain(b"ab", b"cd"))
    assert await stream.read(4) == b"ab"


class RecordedWrites(TlsStream):
    """A stream that records what is written, and has a response for each request."""

    def __init__(self) -> None:
        super().__init__(*[b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] * 9)
        self.writes: list[bytes] = []

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self.writes.append(buffer)


@pytest.mark.parametrize(
    ("content", "writes"),
    [
        (None, ["GET / HTTP/1.1|"]),
        (b"{}", ["GET / HTTP/1.1|{}"]),
        (b"ends like a head\r\n\r\n", ["GET / HTTP/1.1|ends like a head\r\n\r\n"]),
        ([b"a" * 9, b"b" * 9], ["GET / HTTP/1.1|9\r\naaaaaaaaa\r\n", "9\r\nbbbbbbbbb\r\n", "0\r\n\r\n"]),
    ],
    ids=["no body", "a body", "a body that ends like a head", "a body in parts"],
)
async def test_the_head_of_a_request_is_sent_together_with_its_body(content: Any, writes: list[str]) -> None:
    inner = RecordedWrites()
    connection = httpcore2.AsyncHTTP11Connection(
        httpcore2.Origin(b"http", b"a", 80), http_transport._SeveralRecordsStream(inner)
    )
    for _ in range(2):  # the second uses the same connection

        async def parts() -> Any:
            for part in content:
                yield part

        body = parts() if isinstance(content, list) else content
        headers = {"Host": "a"} | (
            {"Content-Length": str(len(content))} if isinstance(content, bytes) else {}
        )
        if isinstance(content, list):
            headers |= {"Transfer-Encoding": "chunked"}
        await connection.request("GET", "http://a/", headers=headers, content=body)
    shown = [
        re.sub(r"\r\n(Host|Content|Transfer)[^|]*?\r\n\r\n", "|", each.decode(), count=1)
        for each in inner.writes
    ]
    assert shown == [*writes, *writes]


async def test_connections_of_the_transport_gather_the_events_of_a_watch() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = RenewingTransport(HttpTransport, lambda: False)
    async with (
        server,
        httpx2.AsyncClient(transport=transport, trust_env=False) as client,
        client.stream("GET", f"http://127.0.0.1:{port}/") as response,
    ):
        stream = response.extensions["network_stream"]
        assert not stream.gathering.is_on
        with http_transport.gathering(response):
            assert stream.gathering.is_on
        assert not stream.gathering.is_on


class EventStream(httpcore2.AsyncNetworkStream):
    """A stream to which one byte arrives at each of these times. A read returns all that have arrived."""

    def __init__(self, *times_s: float, event: bytes = b"e") -> None:
        self._event = event
        self._times_s = list(times_s)
        self.reads_s: list[float] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._times_s[0] - loop.time()))
        arrived = [at_s for at_s in self._times_s if at_s <= loop.time()]
        del self._times_s[: len(arrived)]
        self.reads_s.append(round(loop.time(), 3))
        return self._event * len(arrived)

    def get_extra_info(self, info: str) -> Any:
        return None


class AiohttpContent(NamedTuple):
    """What `_AiohttpBody` reads of a response of aiohttp."""

    stream: EventStream

    @property
    def content(self) -> "AiohttpContent":
        return self

    async def readany(self) -> bytes:
        return await self.stream.read(100)

    def release(self) -> None:
        pass


def reader_of_httpx2(inner: EventStream) -> tuple[httpx2.Response, Callable[[], Awaitable[bytes]]]:
    stream = http_transport._SeveralRecordsStream(inner)
    return httpx2.Response(200, extensions={"network_stream": stream}), lambda: stream.read(100)


def reader_of_aiohttp(inner: EventStream) -> tuple[httpx2.Response, Callable[[], Awaitable[bytes]]]:
    body = http_transport._AiohttpBody(AiohttpContent(inner))  # type: ignore[arg-type]
    pieces = aiter(body)
    return httpx2.Response(200, extensions={"network_stream": body}), lambda: anext(pieces)


@pytest.mark.parametrize("reader", [reader_of_httpx2, reader_of_aiohttp])
@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ([1, 1.005, 1.010, 1.015, 1.025, 1.035], [1, 1.02, 1.04]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 1.025, 1.05], [1, 1.025, 1.05]),
    ],
    ids=["fast events are read together", "slow events are read at once", "slower than the pause"],
)
def test_a_watch_reads_fast_events_together(
    reader: Callable[[EventStream], tuple[httpx2.Response, Callable[[], Awaitable[bytes]]]],
    times_s: list[float],
    expected: list[float],
) -> None:
    inner = EventStream(*times_s)

    async def read_all() -> bytes:
        response, read = reader(inner)
        received = b""
        with http_transport.gathering(response):
            while len(received) < len(times_s):
                received += await read()
        return received

    assert virtual_time.run(read_all()) == b"e" * len(times_s)
    assert inner.reads_s == pytest.approx(expected)


@pytest.mark.parametrize("reader", [reader_of_httpx2, reader_of_aiohttp])
def test_a_watch_reads_large_events_without_pauses(
    reader: Callable[[EventStream], tuple[httpx2.Response, Callable[[], Awaitable[bytes]]]],
) -> None:
    inner = EventStream(1, 1.005, 1.01, event=b"e" * 20_000)

    async def read_all() -> None:
        response, read = reader(inner)
        with http_transport.gathering(response):
            for _ in range(3):
                await read()

    virtual_time.run(read_all())
    assert inner.reads_s == pytest.approx([1, 1.005, 1.01])


def test_reads_after_a_watch_do_not_wait() -> None:
    inner = EventStream(1, 1.005, 1.010)
    stream = http_transport._SeveralRecordsStream(inner)
    response = httpx2.Response(200, extensions={"network_stream": stream})

    async def read() -> None:
        with http_transport.gathering(response):
            await stream.read(100)
        await stream.read(100)
        await stream.read(100)

    virtual_time.run(read())
    assert inner.reads_s == [1, 1.005, 1.010]


class RawServer:
    """A server that answers each request on a connection with the next of the bytes, and closes after the last."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers
        self.received: list[bytes] = []
        self.connections = 0

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            for answer in self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(2) if b"content-length: 2" in head.lower() else b""
                self.received.append(head + body)
                writer.write(answer)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def served_by_aiohttp(server: RawServer) -> AsyncIterator[httpx2.AsyncClient]:
    transport = AiohttpTransport(ssl.create_default_context(), 60.0, ())
    async with await asyncio.start_server(server.serve_connection, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:
            yield client


async def test_aiohttp_sends_paths_as_they_are_and_bodies_with_their_length() -> None:
    server = RawServer(*[b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"] * 2)
    async with served_by_aiohttp(server) as client:
        responses = [await client.post("/apis/nodes/%2A/a%2Fb?q=%3D", content=b"[]") for _ in range(2)]
    assert [(response.status_code, response.content) for response in responses] == [(201, b"{}")] * 2
    assert server.connections == 1
    assert server.received[0].startswith(b"POST /apis/nodes/%2A/a%2Fb?q=%3D HTTP/1.1\r\n")
    assert server.received[0].endswith(b"\r\n\r\n[]")


async def test_aiohttp_sends_the_credentials_of_a_url_in_a_header() -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with served_by_aiohttp(server) as client:
        await client.get(client.base_url.copy_with(username="u", password="p", raw_path=b"/a%2Fb?q=%3D"))
    assert server.received[0].startswith(b"GET /a%2Fb?q=%3D HTTP/1.1\r\n")
    assert server.received[0].lower().count(b"authorization: basic dtpw\r\n") == 1


async def test_aiohttp_passes_on_pieces_before_the_end_of_the_body() -> None:
    chunk = b"3\r\none\r\n"
    server = RawServer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk, b"")
    async with served_by_aiohttp(server) as client, client.stream("GET", "/") as response:
        assert await anext(response.aiter_bytes()) == b"one"


TRUNCATED = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (b"", httpx2.RemoteProtocolError, "without sending a response"),
        (b"SSH-2.0-OpenSSH\r\n", httpx2.ReadError, r"^Bad status line: [^\n]*'$"),
        (TRUNCATED, httpx2.ReadError, "not completed"),
    ],
    ids=["a closed connection", "another protocol", "a truncated body"],
)
async def test_errors_of_aiohttp_are_those_of_httpx2(answer: bytes, kind: type[Exception], text: str) -> None:
    async with served_by_aiohttp(RawServer(answer)) as client:
        with pytest.raises(kind, match=text):
            await client.post("/", content=b"[]")


@pytest.mark.parametrize("method", ["DELETE", "GET", "PATCH", "POST", "PUT"])
async def test_aiohttp_sends_no_call_again_whose_connection_was_closed(method: str) -> None:
    server = RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"")
    async with served_by_aiohttp(server) as client:
        await client.get("/")
        with pytest.raises(httpx2.RemoteProtocolError, match=r"^Server disconnected"):
            await client.request(method, "/")
    assert len(server.received) == 2


@pytest.mark.parametrize("token", ["a\nb", "a\x00b"])
async def test_aiohttp_refuses_a_header_that_cannot_be_sent(token: str) -> None:
    async with served_by_aiohttp(RawServer()) as client:
        with pytest.raises(httpx2.LocalProtocolError, match="control character"):
            await client.get("/", headers={"Authorization": f"Bearer {token}"})


async def test_aiohttp_refuses_a_host_name_that_no_host_has() -> None:
    async with served_by_aiohttp(RawServer()) as client:
        with pytest.raises(httpx2.TransportError, match="label"):
            await client.get("http://a..b/")


async def test_a_refused_connection_of_aiohttp_names_its_cause_only() -> None:
    async with served_by_aiohttp(RawServer()) as client:
        unused = client.base_url.port
    transport = AiohttpTransport(ssl.create_default_context(), 60.0, ())
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{unused}") as client:
        with pytest.raises(httpx2.ConnectError, match="127") as raised:
            await client.get("/")
    assert "0x" not in str(raised.value)


@contextlib.asynccontextmanager
async def api_of_short_writes(
    server: RawServer, auth: httpx2.Auth | None = None, *, is_short: bool = True
) -> AsyncIterator[HttpApi]:
    transport = RenewingTransport(
        lambda: AiohttpTransport(ssl.create_default_context(), 60.0, ()), lambda: False
    )
    async with await asyncio.start_server(server.serve_connection, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        http = httpx2.AsyncClient(transport=transport, base_url=f"{url}/k8s", auth=auth)
        info = ConnectionInfo(url, send_short=transport.send_short if is_short else None)
        api = HttpApi(http, info, TokenBucket(100.0, 100), ManualClock(), MetricsRegistry())
        yield api
        await api.close()


def header_lines(request: bytes) -> list[bytes]:
    first, *lines = request.lower().split(b"\r\n")
    return [first, *sorted(line for line in lines if not line.startswith(b"host:"))]


CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


async def test_short_writes_equal_other_writes_on_the_wire() -> None:
    sent: list[list[list[bytes]]] = []
    for is_short in (True, False):
        server = RawServer(*[CREATED] * 7)
        async with api_of_short_writes(server, is_short=is_short) as api:
            for path in ("/api/v1/a%2Fb", "/api/../v1", "/api/v1/ä b"):
                assert await api.create(path, []) == b"{}"
            await api.replace("/a", b"[]")
            await api.patch("/a", [], "merge", {"fieldManager": "nodewise"})
            await api.with_metadata_only().patch("/a", [], "apply")
            await api.delete("/a")
        sent.append([header_lines(request) for request in server.received])
    assert len(sent[0]) == 7
    assert sent[0] == sent[1]


async def test_a_short_write_with_a_refused_token_is_sent_again_with_the_token_of_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    server = RawServer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}",
        CREATED,
    )
    async with api_of_short_writes(server, BearerTokenFile(path, ManualClock())) as api:
        await api.create("/a", [])
        path.write_text("new")
        assert await api.create("/a", []) == b"{}"
    tokens = [request.lower().partition(b"authorization: bearer ")[2][:3] for request in server.received]
    assert tokens == [b"old", b"old", b"new"]


async def test_a_short_write_has_the_errors_of_other_writes() -> None:
    refusal = b'{"kind": "Status", "message": "changed"}'
    server = RawServer(
        b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(refusal), refusal), b""
    )
    async with api_of_short_writes(server) as api:
        with pytest.raises(Conflict, match=r"create http://127\.0\.0\.1:\d+/k8s/a: changed"):
            await api.create("/a", [])
        with pytest.raises(Unavailable, match="Server disconnected"):
            await api.create("/a", [])
    assert len(server.received) == 2


async def test_calls_after_a_short_write_without_a_response_use_a_new_connection() -> None:
    server = RawServer(CREATED, b"", CREATED)
    async with api_of_short_writes(server) as api:
        await api.create("/a", [])
        with pytest.raises(Unavailable, match="no answer within"):
            await api.create("/a", [], timeout_s=0.05)
        await api.create("/a", [])
    assert server.connections == 2
