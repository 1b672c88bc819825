"""Transports of the API server, and the proxy of a server.

`RenewingTransport` opens new connections when its certificates change, or may have gone silent.

A connection presents the client certificate once, in its handshake. So new calls use new connections, and an old one is
closed when its call has ended; client-go closes it at once, which would fail the calls in flight. A NAT gateway or a
proxy that loses its entries silences several connections at once, so after a timeout calls use new ones.

Source of the proxy: golang.org/x/net http/httpproxy, which client-go uses. httpx2 supports no networks in NO_PROXY.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpcore2
import httpx2

from nodewise.server.options import is_loopback

if TYPE_CHECKING:
    import aiohttp
    import yarl

RETIRED: Final = "nodewise_retired"
"""Extension of each response: a function that returns whether the connection uses old certificates."""
TIMED_OUT: Final = "nodewise_timed_out"
"""Extension of each request: a function to call after its timeout."""
GATHERING_S: Final = 0.02
"""The pause between two reads of a watch whose events come faster than this. With a longer one, pods
would be placed by older snapshots."""
_GATHERED_BYTES: Final = 2**14
"""After a read of more than this no read waits, so that the pauses do not limit the rate of large objects."""
_HEAD_MARK: Final = b" HTTP/1.1\r\n"
"""In the first line of a request."""


class _Gathering:
    """Pauses between the reads of a watch while its events come fast, so that a read returns several."""

    def __init__(self) -> None:
        self.is_on = False
        self._read_s = float("-inf")
        self._size = 0
        """Bytes of the last read."""

    async def read(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """The result of a read, after `GATHERING_S` if the one before has just ended."""
        if not self.is_on:
            return await read()
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_s < GATHERING_S and self._size <= _GATHERED_BYTES:
            await asyncio.sleep(GATHERING_S)
        received = await read()
        self._read_s, self._size = loop.time(), len(received)
        return received


class _SeveralRecordsStream(httpcore2.AsyncNetworkStream):
    """A stream that returns all received TLS records at once, up to the requested size, and sends the head of a request
    together with its body.

    A record has at most 16 KiB, and each read takes 60 µs in the layers of the client: for the lists and metrics of
    50,000 nodes this is a third of their processor time. Each write costs time as well, also on the server.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._tls: ssl.SSLObject | None = inner.get_extra_info("ssl_object")
        self.gathering = _Gathering()
        self._head = b""
        """The head of a request whose body is not known yet."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - its interface
        return await self.gathering.read(partial(self._read_records, max_bytes, timeout))

    async def _read_records(self, max_bytes: int, timeout_s: float | None) -> bytes:
        received = await self._inner.read(max_bytes, timeout_s)
        if self._tls is None or not received:
            return received
        records, size = [received], len(received)
        while size < max_bytes:
            try:
                record = self._tls.read(max_bytes - size)
            except ssl.SSLError:
                break  # mostly SSLWantReadError: no record is left; the next read raises any other error again
            if not record:
                break
            records.append(record)
            size += len(record)
        return b"".join(records)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - its interface
        """Send bytes. httpcore2 writes the head, each part of the body, and at the end of a request nothing."""
        self._head += buffer
        if not (buffer.endswith(b"\r\n\r\n") and _HEAD_MARK in buffer):
            complete, self._head = self._head, b""
            await self._inner.write(complete, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _SeveralRecordsStream(await self._inner.start_tls(*arguments, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _SeveralRecordsBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections as another backend does, with streams that return several records."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(self, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _SeveralRecordsStream(await self._inner.connect_tcp(*arguments, **options))

    async def connect_unix_socket(self, *arguments: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return await self._inner.connect_unix_socket(*arguments, **options)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class HttpTransport(httpx2.AsyncHTTPTransport):
    """The transport of httpx2, with streams that return several TLS records at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        pool = self._pool  # httpx2 has no option for the backend
        pool._network_backend = _SeveralRecordsBackend(pool._network_backend)  # noqa: SLF001


class ShortRequest(NamedTuple):
    """What a call needs of an `httpx2.Request`, without the time that parsing and normalizing take."""

    method: str
    target: str
    """A URL that needs no escaping."""
    headers: httpx2.Headers
    content: bytes
    extensions: dict[str, Any]

    @property
    def url(self) -> httpx2.URL:
        return httpx2.URL(self.target)


class ShortResponse(NamedTuple):
    """What a call needs of an `httpx2.Response`."""

    request: ShortRequest
    status_code: int
    headers: Mapping[str, str]
    """Case of the names does not matter."""
    stream: httpx2.AsyncByteStream

    @property
    def is_success(self) -> bool:
        return httpx2.codes.is_success(self.status_code)

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        return aiter(self.stream)

    async def aclose(self) -> None:
        await self.stream.aclose()


class _Generation:
    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.calls = 0
        self.has_old_certificates = False


class _CountedBody(httpx2.AsyncByteStream):
    """Body of a response that decrements the generation's count of calls when it is closed."""

    def __init__(self, inner: httpx2.AsyncByteStream, generation: _Generation) -> None:
        self._inner = inner
        self._generation: _Generation | None = generation

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._inner)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._generation is not None:
                self._generation.calls -= 1
                self._generation = None


class RenewingTransport(httpx2.AsyncBaseTransport):
    """Transport that replaces its inner transport. `make` creates one without connecting; it may raise errors."""

    def __init__(
        self, make: Callable[[], httpx2.AsyncBaseTransport], has_changed: Callable[[], bool]
    ) -> None:
        """`has_changed` is called before each request: whether `make` would use other certificates than before."""
        self._make = make
        self._has_changed = has_changed
        self._current = _Generation(make())
        self._old: list[_Generation] = []

    def renew(self) -> None:
        """Use new connections from now on, because certificates changed. Calls in flight finish on their old one."""
        self._replace_current_generation()
        for generation in self._old:
            generation.has_old_certificates = True

    def _replace_current_generation(self) -> None:
        made = _Generation(self._make())
        self._old.append(self._current)
        self._current = made

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async with self._begin_call(request) as generation:
            response = await generation.transport.handle_async_request(request)

        def is_retired() -> bool:
            self._renew_if_certificates_changed()
            return generation.has_old_certificates

        response.extensions[RETIRED] = is_retired
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CountedBody(response.stream, generation)
        return response

    @property
    def is_aiohttp(self) -> bool:
        return isinstance(self._current.transport, AiohttpTransport)

    async def send_short(self, request: ShortRequest) -> ShortResponse:
        """Send a request, if the inner transports are of `AiohttpTransport`."""
        async with self._begin_call(request) as generation:
            assert isinstance(generation.transport, AiohttpTransport)
            response = await generation.transport.send_short(request)
        return response._replace(stream=_CountedBody(response.stream, generation))

    @contextlib.asynccontextmanager
    async def _begin_call(self, request: httpx2.Request | ShortRequest) -> AsyncGenerator[_Generation, None]:
        """The generation that sends a request. Its count of calls includes this one, unless the context fails."""
        self._renew_if_certificates_changed()
        generation = self._current

        def drop_connections() -> None:
            # unless another timeout has replaced them; a watch in flight continues on its own
            if generation is self._current:
                self._replace_current_generation()

        request.extensions[TIMED_OUT] = drop_connections
        generation.calls += 1
        try:
            unused = [old for old in self._old if not old.calls]
            self._old = [old for old in self._old if old.calls]
            for old in unused:
                await old.transport.aclose()
            yield generation
        except BaseException:
            generation.calls -= 1
            raise

    async def aclose(self) -> None:
        for generation in (*self._old, self._current):
            await generation.transport.aclose()
        self._old = []

    def _renew_if_certificates_changed(self) -> None:
        if self._has_changed():
            self.renew()


@contextlib.contextmanager
def gathering(response: httpx2.Response) -> Iterator[None]:
    """Read the body of a watch in larger pieces while events come fast: each read takes longer than an event."""
    stream = response.extensions.get("network_stream")
    if not isinstance(stream, _SeveralRecordsStream | _AiohttpBody):
        yield
        return
    stream.gathering.is_on = True
    try:
        yield
    finally:
        stream.gathering.is_on = False  # the connection serves other calls


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """A transport over aiohttp, whose calls take a quarter of the processor time of httpx2's own.

    It supports no proxies and no WebSockets. It takes 10 MiB of memory, so it is for programs that make several calls
    for each pod, and fetch large metrics (ADR 39).
    """

    def __init__(
        self, ssl_context: ssl.SSLContext, kept_s: float, socket_options: Iterable[tuple[int, int, int]]
    ) -> None:
        """Idle connections are closed after `kept_s`."""
        self._ssl_context = ssl_context
        self._kept_s = kept_s
        self._socket_options = tuple(socket_options)
        self._session: aiohttp.ClientSession | None = None

    def _open_session(self) -> "aiohttp.ClientSession":
        """A session, which belongs to the running event loop."""
        # memory and start-up time: most programs do not need it
        import aiohttp

        connector = aiohttp.TCPConnector(
            ssl=self._ssl_context, limit=0, keepalive_timeout=self._kept_s, socket_factory=self._create_socket
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # every call has its own deadline
            auto_decompress=False,
        )
        # a write that aiohttp sends twice would conflict with itself
        session._retry_connection = False  # noqa: SLF001 - aiohttp has no option
        return session

    def _create_socket(self, address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        created = socket.socket(family, kind, protocol)
        for option in self._socket_options:
            created.setsockopt(*option)
        return created

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        import yarl

        # a header has the credentials already
        response = await self._send(request, yarl.URL(str(request.url), encoded=True).with_user(None))
        body = _AiohttpBody(response)
        return httpx2.Response(
            response.status, headers=response.raw_headers, stream=body, extensions={"network_stream": body}
        )

    async def send_short(self, request: ShortRequest) -> ShortResponse:
        """Send a request as `handle_async_request` does."""
        import yarl

        response = await self._send(request, yarl.URL(request.target, encoded=True))
        return ShortResponse(request, response.status, response.headers, _AiohttpBody(response))

    async def _send(
        self, request: httpx2.Request | ShortRequest, url: "yarl.URL"
    ) -> "aiohttp.ClientResponse":
        import aiohttp

        if self._session is None:
            self._session = self._open_session()
        try:
            return await self._session.request(
                request.method,
                url,
                headers=request.headers.multi_items(),
                data=request.content or None,
                allow_redirects=False,
                server_hostname=request.extensions.get("sni_hostname"),
            )
        except aiohttp.ClientError as error:
            raise _httpx2_error(error) from error
        except ValueError as error:  # a header or a host name that cannot be sent
            raise httpx2.LocalProtocolError(str(error)) from error

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _AiohttpBody(httpx2.AsyncByteStream):
    """Body of a response of aiohttp, in pieces as they arrive."""

    def __init__(self, response: "aiohttp.ClientResponse") -> None:
        self._response = response
        self.gathering = _Gathering()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        import aiohttp

        try:
            while piece := await self.gathering.read(self._response.content.readany):
                yield piece
        except aiohttp.ClientError as error:
            raise _httpx2_error(error) from error

    async def aclose(self) -> None:
        self._response.release()  # closes the connection if the body was not read to its end


def _httpx2_error(error: "aiohttp.ClientError") -> httpx2.TransportError:
    """The error of httpx2 for one of aiohttp, without the text of aiohttp, which names objects in memory."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return httpx2.ConnectError(str(error.certificate_error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx2.ConnectError(str(error.os_error))
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return httpx2.RemoteProtocolError("Server disconnected without sending a response.")
    if isinstance(error, aiohttp.ClientOSError):
        return httpx2.RemoteProtocolError(f"Server disconnected: {error}")
    # the text of a response error has the URL with its query, and its message lines that mark a position by ^
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return httpx2.ReadError(" ".join(text.split()).removesuffix(" ^") or type(error).__name__)


def is_on_retired_connection(response: httpx2.Response) -> bool:
    """Whether the connection of a response uses certificates that have been replaced."""
    ask: Callable[[], bool] | None = response.extensions.get(RETIRED)
    return ask is not None and ask()


def drop_idle_connections(request: httpx2.Request | ShortRequest) -> None:
    """Use new connections for the calls after a request without a response."""
    drop: Callable[[], None] | None = request.extensions.get(TIMED_OUT)
    if drop is not None:
        drop()


def proxy_url(server: str, environ: Mapping[str, str]) -> str:
    """The URL of the proxy for a server; empty for a direct connection, which loopback addresses always have."""
    url = urlsplit(server)
    host = url.hostname or ""
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or is_loopback(host) or _is_in_no_proxy(host, environ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_in_no_proxy(host: str, environ: Mapping[str, str]) -> bool:
    listed = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    rules = (rule.strip().lower() for rule in listed.split(",") if rule.strip())
    return any(_matches_no_proxy_rule(host.lower(), rule) for rule in rules)


def _matches_no_proxy_rule(host: str, rule: str) -> bool:
    """A rule is `*`, an address, a network, `name` (the host and its subdomains) or `.name` (subdomains only)."""
    if rule == "*":
        return True
    address = _parse_ip_address(host)
    if address is not None:
        try:
            return address in ip_network(rule.strip("[]"), strict=False)
        except ValueError:
            return False
    suffix = rule.removeprefix("*")
    return host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix


def _parse_ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
