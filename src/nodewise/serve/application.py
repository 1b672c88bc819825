"""Routes made into one ASGI callable: which handler, which limits, what happens when it fails.

The hot path is short on purpose: a table look-up, the body as one `bytes`, a plain function call, one answer.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from nodewise.errors import BadInput, NodewiseError, Problem, Unavailable, shown
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve import answers
from nodewise.serve.answers import (
    PINNED_ONLY_REFUSAL,
    Receive,
    Response,
    Scope,
    Send,
    TooLarge,
    problem,
)

__all__ = ["Application", "Handler", "Lane", "Request", "Response", "Route", "problem"]

_NO_QUERY: Final[Mapping[str, str]] = MappingProxyType({})
_JSON: Final = "application/json"


class Request(NamedTuple):
    """What a handler gets. `path` is decoded, `query` keeps the last of equal names, `peer` is host:port, `local` the
    address of ours that was called; empty where it is not known.
    """

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    content_type: str
    peer: str
    local: str = ""


Handler = Callable[[Request], Response | Awaitable[Response]]


class Lane:
    """Where large requests go one after another: at most `most` whose body has `large_bytes` or more are under
    way at once, from their header to the end of their answer, on all routes that share the lane. A further one
    is answered 503 before its body is read.
    """

    __slots__ = ("large_bytes", "most", "under_way")

    def __init__(self, most: int, large_bytes: int) -> None:
        self.most = most
        self.large_bytes = large_bytes
        self.under_way = 0


class Route(NamedTuple):
    """One method of one path; without a lane any number of requests of any size. A GET route answers HEAD as
    well. To a forgiving one, a path that differs in case or in slashes is redirected. A route for pinned clients only
    is refused to the other clients of a port with mutual TLS.
    """

    method: str
    path: str
    handler: Handler
    lane: Lane | None = None
    is_forgiving: bool = False
    pinned_only: bool = False


class _Gone(Exception):
    """The client left in the middle of its own request."""


class _Visit:
    """One request; `weigh` counts it into its lane as soon as it is known to be large."""

    __slots__ = ("_counted", "_lane")

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane
        self._counted = False

    def weigh(self, body_bytes: int) -> None:
        lane = self._lane
        if lane is None or self._counted or body_bytes < lane.large_bytes:
            return
        if lane.under_way >= lane.most:
            raise Unavailable(f"busy with {lane.under_way} large requests", retry_after_s=1.0)
        lane.under_way += 1
        self._counted = True

    def end(self) -> None:
        if self._lane is not None and self._counted:
            self._lane.under_way -= 1


class _Head(NamedTuple):
    length: int | None  # None: a chunked body
    content_type: str | None
    encoding: str


def _head(scope: Scope) -> _Head:
    length = content_type = None
    encoding = ""
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value)
        elif name == b"content-type":
            content_type = value.decode("latin-1")
        elif name == b"content-encoding":
            encoding = value.decode("latin-1")
    return _Head(length, content_type, encoding)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _local(scope: Scope) -> str:
    server = scope.get("server")
    return str(server[0]).removeprefix("::ffff:") if server else ""


def _check_json(content_type: str | None, encoding: str) -> None:
    """BadInput unless it is JSON as it is; parameters such as charset do not matter."""
    if encoding.strip().lower() not in ("", "identity"):
        found = Problem("Content-Encoding", shown(encoding), "none: a body is not unpacked here")
        raise BadInput("the request cannot be read", [found])
    if content_type is None:
        raise BadInput("the request cannot be read", [Problem("Content-Type", "missing", _JSON)])
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise BadInput("the request cannot be read", [Problem("Content-Type", shown(content_type), _JSON)])


def _plain(path: str) -> str:
    """Equal for paths that differ in case, in doubled slashes and in one at the end."""
    return "/".join(part for part in path.lower().split("/") if part)


def _moved(scope: Scope, path: str) -> Response:
    """To the path that was meant: the older systems' servers led there too."""
    status = 301 if scope["method"] in ("GET", "HEAD") else 307
    query = scope["query_string"]
    target = f"{path}?{query.decode('latin-1')}" if query else path
    return answers.refusal(status, Problem("path", shown(scope["path"]), path), [("Location", target)])


class Application:
    """A raw ASGI callable around routes.

    404 for an unknown path (or where it leads, from a path that a forgiving route is near to), 405 for a wrong method,
    400 for a POST that is not JSON, 413 for a body over `max_body_bytes` (before it is read where its length is
    declared), 503 over a route's limit, the kind's status for a NodewiseError of the handler, 500 for any other
    exception; each with a JSON body, and the connection goes on. ValueError for two routes of one path and method.
    """

    def __init__(self, routes: Sequence[Route], meters: MetricsRegistry, *, max_body_bytes: int) -> None:
        self._meters = meters
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
        self._plain = {_plain(route.path): route.path for route in routes if route.is_forgiving}

    async def __call__(self, scope: Scope, receive: Receive, to: Send) -> None:
        methods = self._routes.get(scope["path"])
        route = methods.get(scope["method"]) if methods else None
        if route is None:
            response = self._misdirected(scope)
            await answers.send(response, to)
        else:
            visit = _Visit(route.lane)
            refusal = (
                scope["state"].get(PINNED_ONLY_REFUSAL) if route.pinned_only and "state" in scope else None
            )
            try:
                response = refusal or await self._answer(visit, route, scope, receive)
                await answers.send(response, to)
            except _Gone:
                return
            except Exception:
                # a Response that cannot be sent; the connection ends, for part of it may be out
                self._complain(route, scope)
                raise
            finally:
                visit.end()
        path = scope["path"] if methods else "other"
        self._meters.count("requests_total", route=path, status=str(response.status))

    def _misdirected(self, scope: Scope) -> Response:
        methods = self._routes.get(scope["path"])
        if methods is None:
            meant = self._plain.get(_plain(scope["path"]))
            if meant is not None:
                return _moved(scope, meant)
            served = ", ".join(sorted(self._routes))
            return answers.refusal(404, Problem("path", shown(scope["path"]), f"one of {served}"))
        allowed = ", ".join(sorted(methods))
        return answers.refusal(405, Problem("method", scope["method"], allowed), [("Allow", allowed)])

    async def _answer(self, visit: _Visit, route: Route, scope: Scope, receive: Receive) -> Response:
        try:
            request = await self._read(visit, scope, receive)
            began = time.perf_counter()
            response = route.handler(request)
            if not isinstance(response, Response):
                response = await response
        except NodewiseError as error:
            return problem(error)
        except _Gone:
            raise
        except Exception:  # noqa: BLE001 - whatever a handler does, the client gets an answer and the rest lives
            self._complain(route, scope)
            return problem(NodewiseError("this is a defect of ours; the server's log says more"))
        self._meters.observe("request_seconds", time.perf_counter() - began, route=route.path)
        return response

    def _complain(self, route: Route, scope: Scope) -> None:
        logs.emit("request_failed", route=route.path, peer=_peer(scope), exc_info=True)

    async def _read(self, visit: _Visit, scope: Scope, receive: Receive) -> Request:
        head = _head(scope)
        if scope["method"] == "POST":
            _check_json(head.content_type, head.encoding)
        if head.length is not None:
            self._check_length("Content-Length", head.length)
        visit.weigh(head.length or 0)
        query = scope["query_string"]
        return Request(
            scope["method"],
            scope["path"],
            dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else _NO_QUERY,
            await self._body(visit, receive),
            head.content_type or "",
            _peer(scope),
            _local(scope),
        )

    def _check_length(self, field: str, length: int) -> None:
        if length > self._max_body_bytes:
            found = Problem(field, f"{length} bytes", f"at most {self._max_body_bytes}")
            raise TooLarge("the body is too large", [found])

    async def _body(self, visit: _Visit, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message["body"]
            size += len(part)
            self._check_length("body", size)
            visit.weigh(size)
            if not message["more_body"]:
                return b"".join((*parts, part)) if parts else part
            parts.append(part)
