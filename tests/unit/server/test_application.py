"""Exchanges without sockets: headers and bodies in, responses out."""

import asyncio

import pytest
from structlog.testing import capture_logs

from nodewise.base import errors
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import application
from nodewise.server.application import (
    Application,
    ConcurrencyLimit,
    RemotePeer,
    Request,
    RequestHeader,
    Response,
    Route,
)
from tests.unit.server.raw_http_client import ECHO, JSON, ParsedResponse, metric_value


class CountedHandler:
    """The parts of a body, and how many of them the exchange has received."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = parts
        self.taken = 0


def head_of(method: str, path: str, headers: dict[str, str]) -> RequestHeader:
    path, _, query = path.partition("?")
    fields = {name.lower(): value for name, value in headers.items()}
    length = fields.get("content-length")
    return RequestHeader(
        method,
        path,
        query.encode(),
        None if length is None else int(length),
        fields.get("content-type"),
        fields.get("content-encoding", ""),
    )


async def ask(app, path="/echo", *parts: bytes, method="POST", headers=None, body=None) -> ParsedResponse:
    """The response that a client receives from `HttpConnection`."""
    body = body or CountedHandler(*(parts or (b"{}",)))
    exchange = app.open(
        head_of(method, path, JSON if headers is None else headers), RemotePeer("10.0.0.1:4711")
    )
    exchange.start()
    for part in body.parts:
        if exchange.response is not None:
            break
        exchange.receive(part)
        body.taken += 1
    pending = exchange.finish()
    if pending is not None:
        await pending
    exchange.close(sent=True)
    return answer_of(exchange.response)


async def test_completion_runs_once_after_the_response_and_cannot_fail_it() -> None:
    ran = []

    def complete() -> None:
        ran.append(1)
        raise ValueError

    app = app_of(Route("POST", "/x", lambda _: Response(200, b"{}", completion=complete)))
    exchange = app.open(head_of("POST", "/x", JSON), RemotePeer())
    exchange.start()
    exchange.receive(b"{}")
    assert exchange.finish() is None
    assert ran == []
    with capture_logs() as lines:
        exchange.close(sent=True)
        assert ran == []
        await asyncio.sleep(0)
    assert ran == [1]
    assert [line["event"] for line in lines] == ["request_failed"]
    assert answer_of(exchange.response).status == 200


def answer_of(response: Response) -> ParsedResponse:
    header, _, body = b"".join(application.encode_response(response, close=False)).partition(b"\r\n\r\n")
    status, *lines = header.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["content-length"] == str(len(body))
    return ParsedResponse(int(status.split()[1]), headers, body)


def app_of(
    *routes: Route, metrics_registry: MetricsRegistry | None = None, max_body_bytes: int = 1000
) -> Application:
    return Application(
        routes or (ECHO,), metrics_registry or MetricsRegistry(), max_body_bytes=max_body_bytes
    )


# the rows of the older product's HTTP layer (spec/tas.md 29.1), with the responses of design.md section 6


@pytest.mark.parametrize(
    ("method", "path", "content_type", "status", "field"),
    [
        pytest.param("POST", "/echo", None, 400, "Content-Type", id="H1 no content type"),
        pytest.param(
            "POST", "/echo", "application/json; charset=utf-8", 200, "", id="H2 parameters do not matter"
        ),
        pytest.param("POST", "/echo", "text/plain", 400, "Content-Type", id="another content type"),
        pytest.param("POST", "/echo", "Application/JSON", 200, "", id="media types have no case"),
        pytest.param("GET", "/echo", "application/json", 405, "method", id="H4 GET"),
        pytest.param("GET", "/echo", None, 405, "method", id="H5 GET without content type"),
        pytest.param("PUT", "/echo", "application/json", 405, "method", id="H6 PUT"),
        pytest.param("HEAD", "/echo", "application/json", 405, "method", id="H6 HEAD"),
        pytest.param("POST", "/foo", "application/json", 404, "path", id="H7 unknown path"),
        pytest.param("POST", "/foo", None, 404, "path", id="H8 unknown path without content type"),
        pytest.param("GET", "/foo", "application/json", 404, "path", id="H9 GET of an unknown path"),
        pytest.param("POST", "/echo/", "application/json", 404, "path", id="H10 trailing slash"),
        pytest.param("POST", "//echo", "application/json", 404, "path", id="a path that needs cleaning"),
    ],
)
async def test_invalid_requests_get_their_reason(method, path, content_type, status, field):
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await ask(app_of(), path, method=method, headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    if status != 200:
        assert answer.field() == field
        assert answer.json()["error"]
        assert set(answer.json()["problems"][0]) == {"field", "seen", "wanted"}


@pytest.mark.parametrize(
    ("method", "path", "status", "location"),
    [
        ("GET", "/Here", 301, "/here"),
        ("HEAD", "//here/", 301, "/here"),
        ("POST", "/here/", 307, "/here"),
        ("POST", "/HERE", 307, "/here"),
        ("POST", "/here", 200, None),
        ("POST", "/echo/", 404, None),
    ],
)
async def test_a_path_that_is_almost_right_leads_to_a_forgiving_route(method, path, status, location):
    forgiving = Route("POST", "/here", ECHO.handler, is_forgiving=True)
    answer = await ask(app_of(ECHO, forgiving), path, method=method)
    assert (answer.status, answer.headers.get("location")) == (status, location)


async def test_wrong_method_gets_the_allowed_ones():
    app = app_of(ECHO, Route("GET", "/echo", ECHO.handler))
    answer = await ask(app, method="PUT")
    assert answer.headers["allow"] == "GET, HEAD, POST"


async def test_unknown_path_gets_the_known_ones():
    assert "/echo" in (await ask(app_of(), "/foo")).json()["problems"][0]["wanted"]


async def test_h12_h13_a_declared_length_is_checked_before_anything_is_read():
    body = CountedHandler(b"{}")
    answer = await ask(app_of(), body=body, headers=JSON | {"Content-Length": "1000000001"})
    assert (answer.status, answer.field(), body.taken) == (413, "Content-Length", 0)
    answer = await ask(app_of(), "/echo", b"a" * 1000, headers=JSON | {"Content-Length": "1000"})
    assert answer.status == 200


async def test_h14_a_body_in_pieces_is_joined_and_counted_while_it_comes():
    assert (await ask(app_of(), "/echo", b"a", b"", b"bc")).body == b"abc"
    body = CountedHandler(b"a" * 600, b"a" * 600, b"a" * 600)
    answer = await ask(app_of(), body=body)
    assert (answer.status, answer.field(), body.taken) == (413, "body", 2)


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip", 400), ("br, gzip", 400), ("Identity", 200), ("", 200)]
)
async def test_a_packed_body_is_refused_by_its_encoding(encoding, status):
    answer = await ask(app_of(), headers=JSON | {"Content-Encoding": encoding})
    assert answer.status == status
    assert status == 200 or answer.field() == "Content-Encoding"


# handlers


async def test_a_handler_gets_all_that_was_asked():
    requests = []

    def handler(request: Request) -> Response:
        requests.append(request)
        return Response(204)

    await ask(app_of(Route("GET", "/x", handler)), "/x?a=1&b=%20&a=2&c=", method="GET", headers={})
    assert requests == [Request("GET", "/x", {"a": "2", "b": " ", "c": ""}, b"{}", "", "10.0.0.1:4711")]


async def test_a_handler_may_wait():
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0)
        return Response(200, request.body)

    assert (await ask(app_of(Route("POST", "/x", handler)), "/x", b"abc")).body == b"abc"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("x", [Problem("pod", "null", "an object")]), 400),
        (Refused("x"), 403),
        (Conflict("x"), 409),
        (Unavailable("x", retry_after_s=2.6), 503),
        (NodewiseError("x"), 500),
    ],
)
async def test_the_kind_of_an_error_gives_the_status(error, status):
    def handler(_request: Request) -> Response:
        raise error

    answer = await ask(app_of(Route("POST", "/x", handler)), "/x")
    assert answer.status == status
    assert answer.json() == {"error": str(error), "problems": [p.to_dict() for p in error.problems]}
    assert answer.headers.get("retry-after") == ("3" if status == 503 else None)


async def test_a_defect_is_answered_without_its_words_and_logged_with_them():
    def handler(_request: Request) -> Response:
        raise ZeroDivisionError("the secret")

    app = app_of(Route("POST", "/x", handler), ECHO)
    with capture_logs() as lines:
        answer = await ask(app, "/x")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert [(line["event"], line["route"], line["exc_info"]) for line in lines] == [
        ("request_failed", "/x", True)
    ]
    assert (await ask(app)).status == 200


async def test_a_client_that_leaves_is_not_counted(metrics_registry):
    exchange = app_of(metrics_registry=metrics_registry).open(head_of("POST", "/echo", JSON), RemotePeer())
    exchange.start()
    exchange.receive(b"{")
    exchange.close(sent=False)
    assert metric_value(metrics_registry, "requests_total", route="/echo", status="200") == 0


async def test_body_before_the_start_is_checked_at_the_start():
    exchange = app_of().open(head_of("POST", "/echo", JSON), RemotePeer())
    exchange.receive(b"a" * 1001)
    assert exchange.response is None
    exchange.start()
    assert exchange.response.status == 413


# limits of a route


class Gatekept:
    """A handler that blocks its requests until they are released."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        await self.go.wait()
        return Response(200, request.body)


async def test_routes_of_one_lane_together_take_only_so_many_large_requests():
    held = Gatekept()
    concurrency_limit = ConcurrencyLimit(max_requests=2, large_bytes=10)
    app = app_of(Route("POST", "/x", held, concurrency_limit), Route("POST", "/y", held, concurrency_limit))
    large = JSON | {"Content-Length": "20"}
    under_way = [asyncio.create_task(ask(app, path, b"a" * 20, headers=large)) for path in ("/x", "/y")]
    small = asyncio.create_task(ask(app, "/x", b"a"))
    await asyncio.sleep(0)
    body = CountedHandler(b"a" * 20)
    declared = await ask(app, "/x", body=body, headers=large)
    assert (declared.status, declared.headers["retry-after"], body.taken) == (503, "1", 0)
    assert (await ask(app, "/x", b"a" * 6, b"a" * 6)).status == 503
    held.go.set()
    assert [answer.status for answer in await asyncio.gather(*under_way, small)] == [200, 200, 200]
    assert (await ask(app, "/x", b"a" * 20, headers=large)).status == 200


async def test_a_limit_without_a_size_counts_all_requests():
    held = Gatekept()
    app = app_of(Route("GET", "/x", held, ConcurrencyLimit(2)), Route("GET", "/y", held))
    under_way = [asyncio.create_task(ask(app, path, method="GET", headers={})) for path in ("/x", "/x", "/y")]
    await asyncio.sleep(0)
    third = await ask(app, "/x", method="GET", headers={})
    assert (third.status, third.headers["retry-after"]) == (503, "1")
    assert b"busy with 2 requests of /x" in third.body
    held.go.set()
    assert [answer.status for answer in await asyncio.gather(*under_way)] == [200] * 3
    assert (await ask(app, "/x", method="GET", headers={})).status == 200


async def test_a_failed_request_frees_its_place():
    def handler(_request: Request) -> Response:
        raise BadInput("x")

    app = app_of(Route("POST", "/x", handler, ConcurrencyLimit(max_requests=1, large_bytes=0)))
    assert [(await ask(app, "/x")).status for _ in range(3)] == [400] * 3
    exchange = app.open(head_of("POST", "/x", JSON), RemotePeer())
    exchange.start()
    exchange.close(sent=False)
    assert (await ask(app, "/x")).status == 400


def test_two_handlers_for_one_path_are_a_mistake():
    with pytest.raises(ValueError, match="two routes for POST /echo"):
        app_of(ECHO, ECHO)


# metrics


async def test_requests_are_counted_by_route_and_status(metrics_registry):
    app = app_of(metrics_registry=metrics_registry)
    await ask(app)
    await ask(app, method="PUT")
    await ask(app, "/foo")
    await ask(app, "/bar")
    assert metric_value(metrics_registry, "requests_total", route="/echo", status="200") == 1
    assert metric_value(metrics_registry, "requests_total", route="/echo", status="405") == 1
    assert metric_value(metrics_registry, "requests_total", route="other", status="404") == 2
    assert metric_value(metrics_registry, "request_seconds_count", route="/echo") == 1


def kinds() -> list[type[NodewiseError]]:
    """The kinds of errors; a kind within a kind has its status."""
    kinds = [NodewiseError, *NodewiseError.__subclasses__()]
    return [kind for kind in kinds if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_error_has_a_status_of_its_own(kind):
    assert kind in application.STATUS


def test_a_kind_within_a_kind_has_its_status():
    class Special(errors.Conflict):
        pass

    assert application.response_from_error(Special("x")).status == 409


def test_the_words_on_the_wire():
    response = application.refusal_response(431, Problem("header", "9000 bytes", "at most 8192"))
    assert b"".join(application.encode_response(response, close=True)) == (
        b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        b"content-type: application/json\r\ncontent-length: 163\r\nconnection: close\r\n\r\n"
        b'{"error":"Request Header Fields Too Large: header: 9000 bytes; expected at most 8192",'
        b'"problems":[{"field":"header","seen":"9000 bytes","wanted":"at most 8192"}]}\n'
    )


def test_pieces_on_the_wire_are_joined():
    assert b"".join(
        application.encode_response(Response(200, [b"a", b"b"], "text/plain"), close=True)
    ).endswith(b"\r\n\r\nab")


def test_many_parts_go_out_in_few_pieces() -> None:
    pieces = list(application.encode_response(Response(200, [b"ab" * 500] * 1000), close=False))
    assert b"".join(pieces).endswith(b"\r\n\r\n" + b"ab" * 500_000)
    assert len(pieces) <= 10


def test_a_small_response_goes_out_at_once() -> None:
    (whole,) = application.encode_response(Response(200, [b"a", b"b"]), close=False, date=b"today")
    assert whole == (
        b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\nab"
    )


def test_head_has_the_length_and_no_body() -> None:
    (head,) = application.encode_response(Response(200, b"abc"), close=False, with_body=False)
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("length", [2**18 - 1, 2**18, 2**18 + 1, 10**6])
@pytest.mark.parametrize("form", [lambda body: body, lambda body: [body], lambda body: [body[:7], body[7:]]])
def test_a_large_body_is_cut_without_loss(form, length):
    body = (bytes(range(251)) * (length // 251 + 1))[:length]
    assert b"".join(application.split_body(form(body))) == body
