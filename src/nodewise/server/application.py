"""Routes, the exchange of one request without sockets, and responses as bytes of HTTP/1.1.

An error or a refusal has one form: `{"error": text, "problems": [{"field", "seen", "wanted"}]}`.
"""

import asyncio
import http
import io
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from nodewise.base.errors import (
    BadInput,
    BadSettings,
    Conflict,
    NodewiseError,
    Problem,
    Refused,
    Unavailable,
    shown,
)
from nodewise.observe import logs, traces
from nodewise.observe.metrics_registry import MetricsRegistry

PIECE_BYTES: Final = 128 * 2**10
"""A large body is written in pieces of this size, each when the one before has left: OpenSSL's buffer grows to the
size of the largest write that it could not pass on, and keeps that size for as long as the connection is open."""
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus
}


class Response(NamedTuple):
    """A response. `body` may have many parts; they are joined only as far as needed."""

    status: int
    body: bytes | Sequence[bytes | memoryview] = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()
    completion: Callable[[], None] | None = None
    """Work for which the client does not wait, such as records. It is called once, in the next iteration of the event
    loop after all of the response was written, or when the client has gone."""


class TooLarge(BadInput):
    """A body longer than the limit."""


STATUS: Final[dict[type[NodewiseError], int]] = {
    TooLarge: 413,
    BadInput: 400,
    Refused: 403,
    Conflict: 409,
    Unavailable: 503,
    BadSettings: 500,  # settings are checked at start; only the webhook's mutations can become invalid later
    NodewiseError: 500,
}


def response_from_error(error: NodewiseError) -> Response:
    """The response to an error: its kind determines the status, its problems the body."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = []
    if isinstance(error, Unavailable):
        # whole seconds, and never 0, which would mean at once
        headers.append(("Retry-After", str(max(1, round(error.retry_after_s)))))
    return _json_response(status, str(error), error.problems, headers)


def refusal_response(status: int, problem: Problem, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """The response to a request that is refused before its body is read."""
    return _json_response(status, f"{http.HTTPStatus(status).phrase}: {problem}", (problem,), headers)


def _json_response(
    status: int, text: str, problems: Sequence[Problem], headers: Sequence[tuple[str, str]]
) -> Response:
    body = {"error": text, "problems": [problem.to_dict() for problem in problems]}
    return Response(status, msgspec.json.encode(body) + b"\n", headers=headers)


def encode_header(response: Response, *, close: bool, date: bytes = b"") -> bytes:
    """Status line and header fields with the empty line after them. TypeError if the body is not made of bytes.

    `close` announces that the connection ends with this response; `date` is the value of the field Date.
    """
    length = len(response.body) if isinstance(response.body, bytes) else sum(map(len, response.body))
    lines = [_STATUS_LINES[response.status]]
    if date:
        lines.append(b"date: %s\r\n" % date)
    lines.append(b"content-type: %s\r\n" % response.content_type.encode("latin-1"))
    lines.append(b"content-length: %d\r\n" % length)
    lines.extend(f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in response.headers)
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(lines)


def encode_response(
    response: Response, *, close: bool, date: bytes = b"", with_body: bool = True
) -> Iterator[bytes]:
    """The response in pieces. The header comes with the first piece of the body: one TLS record, one packet."""
    head = encode_header(response, close=close, date=date)
    rest = split_body(response.body) if with_body else iter(())
    return itertools.chain([head + next(rest, b"")], rest)


def split_body(body: bytes | Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """The body in pieces of about `PIECE_BYTES`. Nothing for an empty body."""
    pending: list[bytes | memoryview] = []
    size = 0
    for part in (body,) if isinstance(body, bytes) else body:
        pieces: Iterable[bytes | memoryview] = (part,)
        if len(part) > PIECE_BYTES:
            view = memoryview(part)  # a part may be a `msgspec.Raw`, which does not support slices
            pieces = (view[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES))
        for piece in pieces:
            pending.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
    if size:
        yield b"".join(pending)


_NO_QUERY: Final[Mapping[str, str]] = MappingProxyType({})
_JSON: Final = "application/json"
_SERVER_ERROR: Final = 500


class Request(NamedTuple):
    """A request as handlers get it."""

    method: str
    path: str
    """Decoded."""
    query: Mapping[str, str]
    """By name; the last value of a name that is repeated."""
    body: bytes
    content_type: str
    peer: str
    """The client as host:port; empty if unknown."""
    local: str = ""
    """The address of ours that the client connected to; empty if unknown."""


Handler = Callable[[Request], Response | Awaitable[Response]]


class ConcurrencyLimit:
    """Concurrency limit for large requests, or for all if `large_bytes` is 0. All routes that share the limit serve at
    most `max_requests` requests with a body of `large_bytes` or more at the same time, from the header to the end of
    the response. A further request gets status 503 before its body is read.
    """

    __slots__ = ("large_bytes", "max_requests", "under_way")

    def __init__(self, max_requests: int, large_bytes: int = 0) -> None:
        self.max_requests = max_requests
        self.large_bytes = large_bytes
        self.under_way = 0


class Route(NamedTuple):
    """One method of one path. A GET route also answers HEAD."""

    method: str
    path: str
    handler: Handler
    concurrency_limit: ConcurrencyLimit | None = None
    """None: no concurrency limit."""
    is_forgiving: bool = False
    """Redirect paths that differ from this one in case or slashes."""
    pinned_only: bool = False
    """On a port with mutual TLS, refuse clients that are not pinned."""


class RequestHeader(NamedTuple):
    """The header of a request, as far as it is used."""

    method: str
    path: str
    query: bytes = b""
    content_length: int | None = None
    """None for a chunked body, or none."""
    content_type: str | None = None
    content_encoding: str = ""
    keep_alive: bool = True
    expects_continue: bool = False
    traceparent: str = ""
    """The client's span, in the form of W3C Trace Context."""


class RemotePeer(NamedTuple):
    """The client of a connection."""

    address: str = ""
    """host:port; empty if unknown."""
    local: str = ""
    """The address of ours that it connected to; empty if unknown."""
    refusal: Response | None = None
    """The response to all of its requests; None if it is authorized."""
    pinned_only_refusal: Response | None = None
    """The response of routes for pinned clients only; None if it is authorized there."""


class HttpExchange:
    """One request and its response.

    After `start`, `receive` and `finish` the attribute `response` says whether the response is known: a refusal may
    come before the body. `close` must be called once.
    """

    def __init__(self, application: "Application", head: RequestHeader, peer: RemotePeer) -> None:
        self.head = head
        self.response: Response | None = None
        self._application = application
        self._peer = peer
        self._route: Route | None = None
        self._concurrency_limit: ConcurrencyLimit | None = None
        """The concurrency limit that counts this request."""
        self._body: bytes | io.BytesIO = b""
        """A buffer from the second part on: a list would hold an object for each chunk of one byte."""
        self._size = 0
        self._span = traces.NO_SPAN
        self.is_started = False

    def start(self) -> None:
        """Find the route and check the header; then the parts of the body that came before."""
        self.is_started = True
        if self._peer.refusal is not None:
            self.response = self._peer.refusal
            return
        head = self.head
        self._route, self.response = self._application.route(head, self._peer)
        if self.response is None:
            try:
                if head.method == "POST":
                    _check_json_content_type(head.content_type, head.content_encoding)
                if head.content_length is not None:
                    self._application.check_body_length("Content-Length", head.content_length)
                self._check_body_size()
            except NodewiseError as error:
                self._set_error_response(error)

    def receive(self, part: bytes) -> None:
        """Append a part of the body; the rest of a body that was refused is dropped."""
        if self.response is not None:
            return
        self._size += len(part)
        if self.is_started:
            try:
                self._check_body_size()
            except NodewiseError as error:
                self._set_error_response(error)
                return
        if isinstance(self._body, io.BytesIO):
            self._body.write(part)
        elif self._body:
            self._body = io.BytesIO(self._body)
            self._body.seek(0, io.SEEK_END)
            self._body.write(part)
        else:
            self._body = part

    def finish(self) -> Awaitable[None] | None:
        """Call the handler with the complete request. An awaitable is returned where the handler returned one."""
        if self.response is not None:
            return None
        if self._route is None:
            raise ValueError("the exchange has not started")
        began_s = time.perf_counter()
        request = self._build_request()
        if self.head.method == "POST":  # no spans of probes
            self._span = traces.start_request_span(self.head.path, self.head.traceparent)
        try:
            with self._span.activate():
                response = self._route.handler(request)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, the client gets a response
            self._set_response_of_exception(error)
            return None
        if not isinstance(response, Response):
            return self._await_response(response, began_s)
        self._complete_response(response, began_s)
        return None

    def close(self, *, sent: bool) -> None:
        """Release the concurrency limit, count the request if its response was sent, and schedule the work that the
        handler left for after the response.
        """
        if self._concurrency_limit is not None:
            self._concurrency_limit.under_way -= 1
            self._concurrency_limit = None
        self._body = b""
        if sent and self.response is not None and self._peer.refusal is None:
            self._application.count(self.head.path, self.response.status)
        if self.response is not None and self.response.completion is not None:
            # uvloop sends what was written at the end of an iteration
            asyncio.get_running_loop().call_soon(self._run_completion, self.response.completion)

    def _run_completion(self, completion: Callable[[], None]) -> None:
        try:
            completion()
        except Exception:  # noqa: BLE001 - the client has its response
            self.log_exception()

    def log_exception(self) -> None:
        """Log the present exception."""
        logs.emit("request_failed", route=self.head.path, peer=self._peer.address, exc_info=True)

    async def _await_response(self, pending: Awaitable[Response], began_s: float) -> None:
        try:
            with self._span.activate():
                response = await pending
        except Exception as error:  # noqa: BLE001 - as in `finish`
            self._set_response_of_exception(error)
        else:
            self._complete_response(response, began_s)

    def _complete_response(self, response: Response, began_s: float) -> None:
        self._body = b""
        self.response = response
        self._application.observe(self.head.path, time.perf_counter() - began_s)
        self._end_span(response)

    def _end_span(self, response: Response) -> None:
        self._span.set("http.response.status_code", response.status)
        if response.status >= _SERVER_ERROR:
            self._span.fail("")
        self._span.end()

    def _set_response_of_exception(self, error: Exception) -> None:
        if not isinstance(error, NodewiseError):
            self.log_exception()
            error = NodewiseError("a defect of nodewise; see the log of the server")
        self._end_span(self._set_error_response(error))

    def _set_error_response(self, error: NodewiseError) -> Response:
        self._body = b""
        self.response = response_from_error(error)
        return self.response

    def _build_request(self) -> Request:
        head, peer = self.head, self._peer
        query = (
            dict(parse_qsl(head.query.decode("latin-1"), keep_blank_values=True)) if head.query else _NO_QUERY
        )
        body = self._body if isinstance(self._body, bytes) else self._body.getvalue()
        return Request(head.method, head.path, query, body, head.content_type or "", peer.address, peer.local)

    def _check_body_size(self) -> None:
        self._application.check_body_length("body", self._size)
        limit = self._route.concurrency_limit if self._route is not None else None
        size = max(self._size, self.head.content_length or 0)
        if limit is None or self._concurrency_limit is not None or size < limit.large_bytes:
            return
        if limit.under_way >= limit.max_requests:
            which = "large requests" if limit.large_bytes else f"requests of {self.head.path}"
            raise Unavailable(f"busy with {limit.under_way} {which}", retry_after_s=1.0)
        limit.under_way += 1
        self._concurrency_limit = limit


class Application:
    """Routes by path and method.

    404 for an unknown path (or a redirect, for a path close to a forgiving route), 405 for a wrong method, 400 for a
    POST that is not JSON, 413 for a body over `max_body_bytes` (before it is read if its length is declared), 503 over
    the concurrency limit of the route, the kind's status for a NodewiseError of the handler, 500 for any other
    exception; each with a JSON body, and the connection stays open. ValueError for two routes of one path and method.
    """

    def __init__(
        self, routes: Sequence[Route], metrics_registry: MetricsRegistry, *, max_body_bytes: int
    ) -> None:
        self._metrics_registry = metrics_registry
        self._max_body_bytes = max_body_bytes
        self._routes: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = self._routes.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.method] = route
        for methods in self._routes.values():
            if "GET" in methods:
                methods.setdefault("HEAD", methods["GET"])
        self._forgiving = {_normalize_path(route.path): route.path for route in routes if route.is_forgiving}

    def open(self, head: RequestHeader, peer: RemotePeer) -> HttpExchange:
        """An exchange for a request header."""
        return HttpExchange(self, head, peer)

    def route(self, head: RequestHeader, peer: RemotePeer) -> tuple[Route | None, Response | None]:
        """The route for a request, or the response that refuses it."""
        methods = self._routes.get(head.path)
        if methods is None:
            return None, self._unknown_path_response(head)
        route = methods.get(head.method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            problem = Problem("method", head.method, allowed)
            return None, refusal_response(405, problem, [("Allow", allowed)])
        return route, peer.pinned_only_refusal if route.pinned_only else None

    def check_body_length(self, field: str, length: int) -> None:
        """`TooLarge` for a body over the limit."""
        if length > self._max_body_bytes:
            problem = Problem(field, f"{length} bytes", f"at most {self._max_body_bytes}")
            raise TooLarge("the body is too large", [problem])

    def count(self, path: str, status: int) -> None:
        """Count an answered request."""
        route = path if path in self._routes else "other"
        self._metrics_registry.count("requests_total", route=route, status=str(status))

    def observe(self, path: str, seconds: float) -> None:
        """Observe how long a handler took."""
        self._metrics_registry.observe("request_seconds", seconds, route=path)

    def _unknown_path_response(self, head: RequestHeader) -> Response:
        """404, or a redirect as the servers of the older systems gave it."""
        path = self._forgiving.get(_normalize_path(head.path))
        if path is None:
            served = ", ".join(sorted(self._routes))
            return refusal_response(404, Problem("path", shown(head.path), f"one of {served}"))
        status = 301 if head.method in ("GET", "HEAD") else 307
        target = f"{path}?{head.query.decode('latin-1')}" if head.query else path
        return refusal_response(status, Problem("path", shown(head.path), path), [("Location", target)])


def _normalize_path(path: str) -> str:
    """Equal for paths that differ in case, in doubled slashes and in one at the end."""
    return "/".join(part for part in path.lower().split("/") if part)


def _check_json_content_type(content_type: str | None, encoding: str) -> None:
    """BadInput unless the body is JSON without compression; parameters such as charset do not matter."""
    if encoding.strip().lower() not in ("", "identity"):
        problem = Problem("Content-Encoding", shown(encoding), "none: a body is not unpacked here")
    elif content_type is None or content_type.partition(";")[0].strip().lower() != _JSON:
        problem = Problem("Content-Type", "missing" if content_type is None else shown(content_type), _JSON)
    else:
        return
    raise BadInput("the request cannot be read", [problem])
