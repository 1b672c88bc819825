"""HTTP client of the API server: implements `api_server_interface.Api` with httpx2 and translates its exceptions."""

import asyncio
import copy
import io
import re
import secrets
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx2
import msgspec

from nodewise.base.clock import Clock
from nodewise.base.cooperative_scheduling import Pacer
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, Unavailable, shown
from nodewise.kube import api_server_interface, http_transport
from nodewise.kube.api_server_interface import (
    DEADLINE_S,
    NONE,
    WATCH_DEADLINE_S,
    ApiCall,
    BeforeBody,
    Params,
    Patch,
    TokenBucket,
)
from nodewise.kube.http_transport import ShortRequest, ShortResponse
from nodewise.kube.write_rate import WriteRate
from nodewise.observe.metrics_registry import MetricsRegistry

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

TRANSLATED: Final[Mapping[type[Exception], type[NodewiseError]]] = {
    httpx2.HTTPError: Unavailable,
    httpx2.StreamError: Unavailable,
    httpx2.SSEError: Unavailable,
    httpx2.UnsupportedProtocol: BadSettings,
    httpx2.InvalidURL: BadSettings,
    httpx2.CookieConflict: Unavailable,
    ssl.SSLError: Unavailable,
    OSError: Unavailable,
}
"""Kind of error for each exception of httpx2 and of the system; the most specific row applies."""

_TYPES: Final[Mapping[Patch, str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",  # JSON is YAML, and every version since 1.16 accepts this type
}
_JSON: Final = "application/json"
_METADATA: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
"""Requests objects without spec and status; the name ends in `List` for a list."""
MOST_BYTES: Final = 256 << 20
"""Limit of a response. The first page of a list is 150 MiB if its objects are as large as etcd accepts."""
_UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Accept": "*/*",  # a kubelet refuses application/json
}
_MESSAGE_BYTES: Final = 1 << 20
"""Limit of a message of a WebSocket. Container runtimes send up to 32 KiB."""
_SERVER_ERROR: Final = 500
"""Statuses from this one on mean that the server or its storage cannot respond."""


_SAFE_PATH: Final = re.compile(r"(?:/(?!\.)(?:[\w.:~-]|%[0-9A-Fa-f]{2})+)+", re.ASCII)
"""Paths that are sent as they are: they need no escaping, and have no empty segments or dots to resolve."""

AnyRequest = httpx2.Request | ShortRequest
AnyResponse = httpx2.Response | ShortResponse


class ConnectionInfo(NamedTuple):
    """Server, default namespace and request settings of a connection."""

    server: str
    namespace: str = "default"
    extensions: Mapping[str, Any] = {}
    """httpx2 extensions of each request; `sni_hostname` is the kubeconfig's tls-server-name."""
    hint: Callable[[], str] = str
    """Returns a known problem of the credentials; called when the server rejects them."""
    metadata_only: bool = False
    """Whether lists, watches and responses to patches contain only the metadata of objects."""
    send_short: Callable[[ShortRequest], Awaitable[ShortResponse]] | None = None
    """Sends writes with less processor time than httpx2; None if the transport is that of httpx2."""


_DISCONNECTED: Final = "Server disconnected"
"""The beginning of the error of httpcore2 for a connection that ends before a response."""


_LONG_CALL_S: Final = 0.1
"""The longest time that a write waits for others: single objects, such as nodes whose webhook does not respond, must
not delay those of all others."""


class _CallsInFlight:
    """Lets calls begin in their order while fewer than `most` others are in flight, or after `_LONG_CALL_S`."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def enter(self, most: Callable[[], int]) -> AsyncGenerator[None, None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._count < most() and not self._waiting:
            self._count += 1
            turn.set_result(None)
        else:
            self._waiting.append(turn)
        try:
            await asyncio.wait([turn], timeout=_LONG_CALL_S)
            if not turn.done():
                self._waiting.remove(turn)
                self._count += 1
                turn.set_result(None)
            yield
        finally:
            if not turn.done():
                self._waiting.remove(turn)
            else:
                self._count -= 1
                while self._waiting and self._count < most():
                    self._count += 1
                    self._waiting.popleft().set_result(None)


class HttpApi:
    """An `Api` over HTTP. `server` is its URL, `namespace` the namespace of nodewise's own objects."""

    def __init__(
        self,
        http: httpx2.AsyncClient,
        connection_info: ConnectionInfo,
        bucket: TokenBucket,
        clock: Clock,
        metrics_registry: MetricsRegistry,
        on_response: Callable[[], None] = lambda: None,
    ) -> None:
        self._http = http
        self._connection_info = connection_info
        self._bucket = bucket
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._on_response = on_response
        self._writes_in_flight = _CallsInFlight()
        self._base_url = str(http.base_url).rstrip("/")
        self._headers = http.headers
        self._headers_by_type: dict[str, httpx2.Headers] = {}
        """With the content type of a body: a request copies prepared headers in half of the time."""
        self.server = connection_info.server
        self.namespace = connection_info.namespace

    async def get(
        self,
        path: str,
        params: Params = NONE,
        *,
        timeout_s: float = DEADLINE_S,
        before_body: BeforeBody | None = None,
    ) -> bytes:
        request = self._request("GET", path, params)
        if self._connection_info.metadata_only:
            request.headers["Accept"] = _METADATA.format("List")
        # sending a request, and receiving and using a long response take half a millisecond each; writes are short
        await asyncio.sleep(0)
        body = await self._send_request("get", request, timeout_s, before_body)
        await asyncio.sleep(0)
        return body

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        request = self._write_request("POST", path, params, body)
        return await self._send_rate_limited_write("create", request, timeout_s)

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        request = self._write_request("PUT", path, params, body)
        return await self._send_rate_limited_write("replace", request, timeout_s)

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        request = self._write_request("PATCH", path, params, body, _TYPES[kind])
        if self._connection_info.metadata_only:
            request.headers["Accept"] = _METADATA.format("")
        return await self._send_rate_limited_write("patch", request, timeout_s)

    async def delete(
        self, path: str, body: object = b"", params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        request = self._write_request("DELETE", path, params, body)
        return await self._send_rate_limited_write("delete", request, timeout_s)

    async def watch(
        self, path: str, params: Params = NONE, *, timeout_s: float = WATCH_DEADLINE_S
    ) -> AsyncGenerator[bytes, None]:
        request = self._request("GET", path, {**params, "watch": "1"})
        if self._connection_info.metadata_only:
            request.headers["Accept"] = _METADATA.format("")
        splitter = LineSplitter()
        with self._translate_errors("watch", request):
            async with _deadline("watch", request, DEADLINE_S):
                response = await self._http.send(request, stream=True)
            try:
                await self._check_response("watch", request, response)
                pieces = response.aiter_bytes()
                end_s = asyncio.get_running_loop().time() + timeout_s
                with http_transport.gathering(response):
                    while True:
                        left_s = end_s - asyncio.get_running_loop().time()
                        async with _deadline("watch", request, timeout_s, left_s):
                            piece = await anext(pieces, None)
                        if piece is None:
                            break
                        for line in splitter.feed(piece):
                            yield line
                        if http_transport.is_on_retired_connection(response):
                            return  # as if the server had ended the watch; the caller continues from the last event
                if rest := splitter.rest():
                    yield rest
            finally:
                await response.aclose()

    @asynccontextmanager
    async def web_socket(
        self, path: str, params: Params, subprotocol: str
    ) -> AsyncGenerator["AsyncWebSocketSession", None]:
        """A WebSocket, with the credentials of all calls. `Unavailable` if the connection breaks in the context."""
        # start-up time: servers do not need it
        from httpx2.websockets import AsyncWebSocketSession, HTTPXWSException

        request = self._request("GET", path, params)
        key = b64encode(secrets.token_bytes(16)).decode()
        request.headers.update(_UPGRADE | {"Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": subprotocol})
        with self._translate_errors("connect", request):
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code != httpx2.codes.SWITCHING_PROTOCOLS:
                    await self._check_response("connect", request, response)
                    problem = Problem("", f"HTTP status {response.status_code}", "an upgrade to WebSocket")
                    raise Unavailable(str(_api_call("connect", request)), [problem])
                stream = response.extensions["network_stream"]
                async with AsyncWebSocketSession(
                    stream, max_message_size_bytes=_MESSAGE_BYTES, keepalive_ping_interval_seconds=None
                ) as session:
                    yield session
            except BaseExceptionGroup as group:
                # the session has a task group, which also wraps errors of the context
                error = group.exceptions[0]
                if isinstance(error, HTTPXWSException):
                    problem = Problem("", "the connection broke", "")
                    raise Unavailable(str(_api_call("connect", request)), [problem]) from error
                raise error from None
            finally:
                await response.aclose()

    def with_rate_limit(
        self, qps: float, burst: int, on_response: Callable[[], None] = lambda: None
    ) -> "HttpApi":
        """A client with the same connections and its own rate limit, for writes that must not wait for others.

        `on_response` is called after each response, including refusals, except those that mean that the server is
        unavailable.
        """
        return HttpApi(
            self._http,
            self._connection_info,
            TokenBucket(qps, burst),
            self._clock,
            self._metrics_registry,
            on_response,
        )

    def with_metadata_only(self) -> "HttpApi":
        """A client with the same connections, for calls of whose responses only the metadata of objects is used."""
        api = copy.copy(self)
        api._connection_info = self._connection_info._replace(metadata_only=True)  # noqa: SLF001 - of our class
        return api

    async def close(self) -> None:
        """Close all connections; open watches end."""
        await self._http.aclose()

    def _request(
        self, method: str, path: str, params: Params, body: object = b"", content_type: str = _JSON
    ) -> httpx2.Request:
        if self._http.is_closed:
            raise Unavailable.of(f"{method} {self.server}{path}", "", "the connection was closed by us")
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = self._headers_with(content_type) if content else self._headers
        try:
            # `build_request` of the client would parse the URL three times, and `params` twice
            query = f"?{httpx2.QueryParams(dict(params))}" if params else ""
            return httpx2.Request(
                method,
                httpx2.URL(self._base_url + path + query),
                headers=headers,
                content=content or None,
                extensions=dict(self._connection_info.extensions),
            )
        except httpx2.InvalidURL as error:
            problem = Problem("path", str(error), "one that a URL can hold")
            raise BadInput(f"{method} {self.server}{path[:200]}", [problem]) from error

    def _headers_with(self, content_type: str) -> httpx2.Headers:
        headers = self._headers_by_type.get(content_type)
        if headers is None:
            headers = httpx2.Headers([*self._headers.multi_items(), ("Content-Type", content_type)])
            self._headers_by_type[content_type] = headers
        return headers

    def _write_request(
        self, method: str, path: str, params: Params, body: object, content_type: str = _JSON
    ) -> AnyRequest:
        is_short = self._connection_info.send_short and not params and _SAFE_PATH.fullmatch(path)
        if not is_short or self._http.is_closed:
            return self._request(method, path, params, body, content_type)
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = httpx2.Headers(self._headers_with(content_type) if content else self._headers)
        extensions = dict(self._connection_info.extensions)
        return ShortRequest(method, self._base_url + path, headers, content, extensions)

    async def _send_rate_limited_write(self, verb: str, request: AnyRequest, timeout_s: float) -> bytes:
        """Send a write when the client-side rate limit allows it. `Unavailable` if that exceeds the timeout."""
        write_rate = self._bucket
        if not isinstance(write_rate, WriteRate):
            left_s = await self._wait_for_rate_limit(verb, request, timeout_s, timeout_s)
            return await self._send_request(verb, request, timeout_s, left_s=left_s)
        began_s = self._clock.monotonic()
        async with self._writes_in_flight.enter(lambda: write_rate.concurrency):
            first_s = timeout_s - (self._clock.monotonic() - began_s)
            left_s = await self._wait_for_rate_limit(verb, request, timeout_s, first_s)
            while left_s < first_s and write_rate.is_paused(self._clock.monotonic()):
                left_s = await self._wait_for_rate_limit(verb, request, timeout_s, left_s)
            sent_s, failure = self._clock.monotonic(), None
            try:
                return await self._send_request(verb, request, timeout_s, left_s=left_s)
            except Unavailable as error:
                failure = error
                raise
            finally:
                now_s = self._clock.monotonic()
                if failure is None or failure.http_status != httpx2.codes.TOO_MANY_REQUESTS:
                    write_rate.record_response(sent_s, now_s, is_failure=failure is not None)
                elif failure.requests_pause:  # else admission refused one object: EventRateLimit an event
                    write_rate.record_refusal(sent_s, now_s, failure.retry_after_s)
                self._metrics_registry.set("kube_write_rate", write_rate.qps)

    async def _wait_for_rate_limit(
        self, verb: str, request: AnyRequest, timeout_s: float, left_s: float
    ) -> float:
        """Wait for the turn of a write, and return what is left of its timeout, of which `left_s` is left before."""
        wait_s = self._bucket.take(self._clock.monotonic(), left_s)
        if wait_s is None:
            self._metrics_registry.count("kube_requests_total", verb=verb, outcome="held_back")
            problem = Problem(
                "", f"the client-side rate limit would delay it for more than {timeout_s:g} s", ""
            )
            is_reduced = isinstance(self._bucket, WriteRate) and self._bucket.is_reduced
            remedy = api_server_interface.REMEDIES[429] if is_reduced else "raise --kube-qps and --kube-burst"
            raise Unavailable(str(_api_call(verb, request)), [problem], remedy=remedy)
        if wait_s:
            await self._clock.sleep(wait_s)
        return left_s - wait_s

    async def _send_request(
        self,
        verb: str,
        request: AnyRequest,
        timeout_s: float,
        before_body: BeforeBody | None = None,
        left_s: float | None = None,
    ) -> bytes:
        with self._translate_errors(verb, request):
            async with _deadline(verb, request, timeout_s, left_s):
                response: AnyResponse
                if isinstance(request, ShortRequest):
                    response = await self._send_short(request)
                else:
                    response = await self._send_again_if_disconnected(request)
                try:
                    await self._check_response(verb, request, response)
                    if before_body is not None:
                        await before_body()
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        return body

    async def _send_again_if_disconnected(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. A read is sent once more if the server closed its connection, as Go's transport does: a busy
        process may use a connection before it notices that the server has closed it while it was idle.
        """
        try:
            return await self._http.send(request, stream=True)
        except httpx2.RemoteProtocolError as error:
            if request.method != "GET" or not str(error).startswith(_DISCONNECTED):
                raise
        return await self._http.send(request, stream=True)

    async def _send_short(self, request: ShortRequest) -> ShortResponse:
        """Send a request with the credentials, as the client of httpx2 does."""
        send_short = self._connection_info.send_short
        assert send_short is not None
        if self._http.auth is None:
            return await send_short(request)
        # the flow uses what both kinds of requests and responses have
        flow: AsyncGenerator[Any, Any] = self._http.auth.async_auth_flow(request)  # type: ignore[arg-type]
        async with aclosing(flow):
            await anext(flow)
            while True:
                response = await send_short(request)
                try:
                    await flow.asend(response)
                except StopAsyncIteration:
                    return response
                except BaseException:
                    await response.aclose()
                    raise
                await response.aclose()

    async def _check_response(self, verb: str, request: AnyRequest, response: AnyResponse) -> None:
        if problem := compression_problem(response):
            raise Unavailable(str(_api_call(verb, request)), [problem])
        if response.status_code < _SERVER_ERROR and response.status_code != httpx2.codes.TOO_MANY_REQUESTS:
            self._on_response()
        if response.is_success:
            return
        status = api_server_interface.parse_status_body(await _read_body(response))
        retry_after = response.headers.get("retry-after", "")
        call = _api_call(verb, request)
        hint = self._connection_info.hint() if response.status_code == httpx2.codes.UNAUTHORIZED else ""
        raise api_server_interface.error_from_status(call, response.status_code, status, retry_after, hint)

    @contextmanager
    def _translate_errors(self, verb: str, request: AnyRequest) -> Iterator[None]:
        outcome = "ok"
        try:
            yield
        except NodewiseError as error:
            outcome = type(error).__name__.lower()
            raise
        except tuple(TRANSLATED) as error:
            ours = translate_error(error, _api_call(verb, request), self.server)
            outcome = type(ours).__name__.lower()
            raise ours from error
        finally:
            self._metrics_registry.count("kube_requests_total", verb=verb, outcome=outcome)


@asynccontextmanager
async def _deadline(
    verb: str, request: AnyRequest, timeout_s: float, left_s: float | None = None
) -> AsyncGenerator[None, None]:
    """Limit the time of the context to `timeout_s`, of which `left_s` is left. `Unavailable` after that, with the same
    text whatever was left: controllers log a failure again when its text changes.

    Other idle connections may have gone silent together with this one, so later calls use new ones.
    """
    try:
        async with asyncio.timeout(timeout_s if left_s is None else left_s):
            yield
    except TimeoutError as error:
        http_transport.drop_idle_connections(request)
        problem = Problem("", f"no answer within {timeout_s:g} s", "")
        raise Unavailable(str(_api_call(verb, request)), [problem], timeout_s=timeout_s) from error


def error_kind_of_exception(error: type[Exception]) -> type[NodewiseError] | None:
    """The kind of error for an exception or the nearest of its base classes; None for an unknown one."""
    return next((TRANSLATED[parent] for parent in error.__mro__ if parent in TRANSLATED), None)


def translate_error(error: Exception, call: ApiCall, server: str) -> NodewiseError:
    """The `NodewiseError` for a library's exception. It names the server's URL, the most frequent cause."""
    kind = error_kind_of_exception(type(error)) or Unavailable
    actual = str(error) or type(error).__name__
    remedy = f"is the API server at {server} up, and is this its address?"
    return kind(str(call), [Problem("", actual, "")], remedy=remedy)


def _api_call(verb: str, request: AnyRequest) -> ApiCall:
    """The call for messages, without the query: its tokens and times would make each failure look different."""
    return ApiCall(verb, str(request.url.copy_with(query=None)))


def compression_problem(response: AnyResponse) -> Problem | None:
    """The problem of a compressed response, although the request does not accept any; None if it is not compressed.

    Decompression would block the event loop, and its size has no limit.
    """
    encoding = response.headers.get("content-encoding", "identity")
    return None if encoding == "identity" else Problem("Content-Encoding", shown(encoding), "no compression")


async def _read_body(response: AnyResponse) -> bytes:
    """The body, in one growing block: a list of pieces would leave gaps in memory between later objects."""
    body = io.BytesIO()
    pace = Pacer()
    async for piece in response.aiter_bytes():
        await pace.pause()
        body.write(piece)
        if body.tell() > MOST_BYTES:
            actual = f"more than {MOST_BYTES // 2**20} MiB"
            raise Unavailable.of(f"{response.request.method} {response.request.url.path}", "answer", actual)
    return body.getvalue()


LONGEST_LINE_BYTES: Final = 64 << 20
"""Limit of a line, against exhaustion of memory by a broken server. Objects are smaller: etcd accepts 1.5 MiB by
default."""


class LineSplitter:
    """Splits chunks of bytes into complete lines, and scans each byte once."""

    def __init__(self, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._longest = longest_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes, without line ends. Empty lines are left out."""
        head, *rest = piece.split(b"\n")
        self._append_to_line(head)
        for part in rest:
            line = self._take_line()
            if line:
                yield line
            self._append_to_line(part)

    def rest(self) -> bytes:
        """The bytes after the last line end: empty or a document, unless the stream was truncated."""
        return self._take_line()

    def _append_to_line(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            actual = f"a line of more than {self._longest} bytes"
            raise Unavailable("the watch", [Problem("", actual, "one JSON document a line")])
        self._parts.append(part)

    def _take_line(self) -> bytes:
        line = b"".join(self._parts).strip(b"\r")
        self._parts.clear()
        self._size = 0
        return line
