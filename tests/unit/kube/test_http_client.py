"""The HTTP client with an in-memory transport."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx2
import msgspec
import pytest

from nodewise.base.errors import BadInput, BadSettings, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube import api_server_interface, http_client, http_transport
from nodewise.kube.api_server_interface import ApiCall, Expired, NotAllowed, NotFound, Patch, TokenBucket
from nodewise.kube.http_client import ConnectionInfo, HttpApi, LineSplitter
from nodewise.kube.write_rate import WriteRate
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock
from tests.unit.kube import virtual_time

Answer = Callable[[httpx2.Request], httpx2.Response]
SERVER = "https://host:6443/k8s/clusters/c-1"
in_virtual_time = pytest.mark.parametrize("anyio_backend", [virtual_time.BACKEND], ids=["virtual"])
"""Of tests in which calls take time: on a slow machine, a write may begin because others take long."""


class ServedApi:
    """An `HttpApi` whose server is a function, with its clock and its requests."""

    def __init__(
        self, answer: Answer, qps: float = 1000.0, burst: int = 1000, bucket: TokenBucket | None = None
    ) -> None:
        self.requests: list[httpx2.Request] = []
        self.clock = ManualClock()
        self.metrics_registry = MetricsRegistry()
        self._answer = answer
        http = httpx2.AsyncClient(base_url=SERVER, transport=httpx2.MockTransport(self._noted), timeout=None)
        connection_info = ConnectionInfo(
            SERVER, extensions={"sni_hostname": "api"}, hint=lambda: "renew the certificate"
        )
        bucket = bucket or TokenBucket(qps, burst)
        self.api = HttpApi(http, connection_info, bucket, self.clock, self.metrics_registry)

    def _noted(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._answer(request)


def ok(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, content=b"{}")


def raise_on_request(error: Exception) -> Answer:
    def answer(_: httpx2.Request) -> httpx2.Response:
        raise error

    return answer


async def test_paths_go_below_the_servers_own_and_stay_escaped() -> None:
    served = ServedApi(ok)
    await served.api.get("/apis/custom.metrics.k8s.io/v1beta1/nodes/%2A/temp", {"limit": "5"})
    assert (
        str(served.requests[0].url) == f"{SERVER}/apis/custom.metrics.k8s.io/v1beta1/nodes/%2A/temp?limit=5"
    )
    assert served.requests[0].extensions["sni_hostname"] == "api"


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_patch_has_the_content_type_of_its_kind(kind: Patch, content_type: str) -> None:
    served = ServedApi(ok)
    await served.api.patch("/api/v1/nodes/a", {"a": 1}, kind, {"fieldManager": "us"})
    (request,) = served.requests
    assert request.method == "PATCH"
    assert request.headers["content-type"] == content_type
    assert request.content == b'{"a":1}'
    assert request.url.params["fieldManager"] == "us"


async def test_verbs_are_methods() -> None:
    served = ServedApi(ok)
    await served.api.create("/a", b"{}")
    await served.api.replace("/a", b"{}")
    await served.api.delete("/a")
    await served.api.delete("/a", {"preconditions": {"uid": "u"}})
    assert [(r.method, r.content) for r in served.requests] == [
        ("POST", b"{}"),
        ("PUT", b"{}"),
        ("DELETE", b""),
        ("DELETE", b'{"preconditions":{"uid":"u"}}'),
    ]


def library_exceptions() -> list[type[Exception]]:
    named = (getattr(httpx2, name) for name in dir(httpx2))
    return [kind for kind in named if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", [*library_exceptions(), ssl.SSLError, ConnectionResetError, TimeoutError])
def test_every_exception_of_the_library_is_known(kind: type[Exception]) -> None:
    assert http_client.error_kind_of_exception(kind) is not None, (
        f"{kind.__name__} needs a row in client.TRANSLATED"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx2.ConnectError("Connection refused"), Unavailable),
        (httpx2.ReadError(""), Unavailable),
        (httpx2.RemoteProtocolError("Server disconnected"), Unavailable),
        (httpx2.UnsupportedProtocol("no scheme"), BadSettings),
        (ssl.SSLError("tlsv1 alert unknown ca"), Unavailable),
    ],
)
async def test_the_librarys_exceptions_become_ours_and_name_the_server(
    error: Exception, kind: type[NodewiseError]
) -> None:
    served = ServedApi(raise_on_request(error))
    with pytest.raises(kind, match=SERVER) as raised:
        await served.api.get("/api/v1/nodes")
    assert str(error) in str(raised.value)
    assert raised.value.__cause__ is error


async def test_a_read_on_a_connection_that_the_server_closed_while_idle_is_sent_again() -> None:
    def disconnect_first(request: httpx2.Request) -> httpx2.Response:
        if len(served.requests) % 2:
            raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
        return ok(request)

    served = ServedApi(disconnect_first)
    assert await served.api.get("/a") == b"{}"
    with pytest.raises(Unavailable, match="Server disconnected"):
        await served.api.create("/a", {})  # it may have taken effect
    assert [request.method for request in served.requests] == ["GET", "GET", "POST"]


async def test_a_refusal_is_of_the_kind_that_its_status_says() -> None:
    served = ServedApi(lambda _: httpx2.Response(409, json={"kind": "Status", "message": "modified"}))
    with pytest.raises(Conflict, match="modified"):
        await served.api.create("/a", {})
    assert b'outcome="conflict",verb="create"} 1.0' in served.metrics_registry.exposition()


async def test_401_has_the_known_problem_of_the_credentials() -> None:
    served = ServedApi(lambda _: httpx2.Response(401, json={"kind": "Status", "message": "Unauthorized"}))
    with pytest.raises(Refused, match="renew the certificate"):
        await served.api.get("/a")


async def test_an_error_does_not_show_the_query() -> None:
    """The query contains tokens and random times, so each failure would look like a new one."""
    served = ServedApi(lambda _: httpx2.Response(500))
    with pytest.raises(Unavailable, match=r"get https://host:6443/k8s/clusters/c-1/a: HTTP status 500"):
        await served.api.get("/a", {"continue": "token"})


async def test_a_call_has_a_deadline() -> None:
    class Hanging(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await asyncio.sleep(60)
            return httpx2.Response(200)

    http = httpx2.AsyncClient(base_url=SERVER, transport=Hanging())
    api = HttpApi(http, ConnectionInfo(SERVER), TokenBucket(1.0, 1), ManualClock(), MetricsRegistry())
    with pytest.raises(Unavailable, match=r"no answer within 0\.01 s"):
        await api.get("/a", timeout_s=0.01)


@pytest.mark.parametrize("bucket", [TokenBucket(100.0, 1), WriteRate(50.0, 1)], ids=["binds", "labels"])
async def test_a_timeout_after_a_wait_for_our_limit_has_the_same_text_as_without(bucket: TokenBucket) -> None:
    """Controllers log a failure again when its text changes."""
    http = httpx2.AsyncClient(base_url=SERVER, transport=SlowServer(60.0), timeout=None)
    api = HttpApi(http, ConnectionInfo(SERVER), bucket, ManualClock(), MetricsRegistry())
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s") as raised:
            await api.patch("/a", {}, "merge", timeout_s=0.05)
        assert raised.value.timeout_s == 0.05


async def test_writes_wait_for_our_limit_and_reads_do_not() -> None:
    served = ServedApi(ok, qps=2.0, burst=1)
    for _ in range(3):
        await served.api.get("/a")
        await served.api.create("/a", {})
    assert served.clock.monotonic() == 1.0


async def test_a_write_that_would_wait_beyond_its_deadline_is_not_sent() -> None:
    served = ServedApi(ok, qps=0.1, burst=1)
    await served.api.create("/a", {})
    with pytest.raises(Unavailable, match="raise --kube-qps"):
        await served.api.create("/a", {}, timeout_s=5.0)
    assert len(served.requests) == 1


async def test_writes_slow_down_after_429_and_pause_as_long_as_the_server_requests() -> None:
    served = ServedApi(
        lambda _: httpx2.Response(429, headers={"retry-after": "7"}), bucket=WriteRate(200.0, 10)
    )
    with pytest.raises(Unavailable, match="asks for fewer calls"):
        await served.api.patch("/a", {}, "merge")
    assert b"nodewise_kube_write_rate 25.0" in served.metrics_registry.exposition()
    began_s = served.clock.monotonic()
    with pytest.raises(Unavailable, match=r"would delay it for more than 5 s.*asks for fewer calls"):
        await served.api.patch("/a", {}, "merge", timeout_s=5.0)
    with pytest.raises(Unavailable, match="HTTP status 429"):
        await served.api.patch("/a", {}, "merge")
    assert served.clock.monotonic() - began_s >= 7.0
    assert len(served.requests) == 2


async def test_writes_do_not_slow_down_after_429_that_requests_no_pause() -> None:
    """EventRateLimit refuses the events of a namespace in which users create many; other writes must not wait."""
    body = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "Too many requests: limit"}
    served = ServedApi(lambda _: httpx2.Response(429, json=body), bucket=WriteRate(200.0, 100))
    for _ in range(30):
        with pytest.raises(Unavailable, match="Too many requests: limit"):
            await served.api.create("/a", {}, timeout_s=0.1)
        served.clock.advance(0.1)
    assert b"nodewise_kube_write_rate 50.0" in served.metrics_registry.exposition()


class SlowServer(httpx2.AsyncBaseTransport):
    """Responds after `latency_s`, and never to paths that end in `hanging`. Records the most calls at once."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._in_flight = self.most = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        try:
            await (
                asyncio.Event().wait()
                if request.url.path.endswith("hanging")
                else asyncio.sleep(self._latency_s)
            )
        finally:
            self._in_flight -= 1
        return httpx2.Response(200, content=b"{}")


@in_virtual_time
@pytest.mark.parametrize(("latency_s", "most"), [(0.002, 1), (0.012, 3), (0.04, 8)])
async def test_as_many_writes_are_in_flight_as_the_rate_needs_at_the_response_time_of_the_server(
    latency_s: float, most: int
) -> None:
    server, rate = SlowServer(latency_s), WriteRate(250.0, 1000)
    http = httpx2.AsyncClient(base_url=SERVER, transport=server, timeout=None)
    clock = ManualClock()
    api = HttpApi(http, ConnectionInfo(SERVER), rate, clock, MetricsRegistry()).with_metadata_only()
    for number in range(40):  # teaches the response time
        rate.record_response(clock.monotonic(), clock.monotonic() + latency_s)
        clock.advance(1.0 if number % 10 == 0 else 0.0)
    await asyncio.gather(*(api.patch("/a", {}, "merge") for _ in range(8)))
    assert server.most == most


@in_virtual_time
async def test_writes_that_wait_begin_together_when_more_become_useful() -> None:
    server, rate = SlowServer(0.012), WriteRate(250.0, 1000)
    http = httpx2.AsyncClient(base_url=SERVER, transport=server, timeout=None)
    api = HttpApi(http, ConnectionInfo(SERVER), rate, ManualClock(), MetricsRegistry())
    rate.take(0.0)
    calls = asyncio.gather(*(api.patch("/a", {}, "merge") for _ in range(8)))
    await asyncio.sleep(0)  # one begins, and the others wait
    for number in range(20):
        rate.record_response(float(number), number + 0.012)
    assert rate.concurrency == 3
    await calls
    assert server.most == 3


@in_virtual_time
async def test_a_write_without_a_response_does_not_delay_the_others() -> None:
    server = SlowServer(0.0)
    http = httpx2.AsyncClient(base_url=SERVER, transport=server, timeout=None)
    api = HttpApi(http, ConnectionInfo(SERVER), WriteRate(250.0, 1000), ManualClock(), MetricsRegistry())
    hanging = asyncio.create_task(api.patch("/hanging", {}, "merge", timeout_s=60.0))
    await asyncio.gather(*(api.patch("/a", {}, "merge") for _ in range(3)))
    waiting = asyncio.create_task(api.patch("/a", {}, "merge"))
    await asyncio.sleep(0)
    waiting.cancel()  # a cancelled one leaves the queue
    await asyncio.gather(waiting, return_exceptions=True)
    await api.patch("/a", {}, "merge")
    assert not hanging.done()
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_responses_to_patches_contain_only_metadata_where_that_suffices() -> None:
    served = ServedApi(ok)
    await served.api.with_metadata_only().patch("/a", {}, "apply")
    await served.api.patch("/a", {}, "apply")
    assert ["PartialObjectMetadata;" in each.headers["Accept"] for each in served.requests] == [True, False]


async def test_a_lane_has_a_limit_of_its_own() -> None:
    served = ServedApi(ok, qps=0.1, burst=1)
    limited = served.api.with_rate_limit(qps=1.0, burst=5)
    for _ in range(5):
        await limited.create("/a", {})
    assert served.clock.monotonic() == 0.0


@pytest.mark.parametrize(
    ("status", "heard"), [(200, 1), (403, 1), (404, 1), (409, 1), (429, 0), (500, 0), (503, 0), (504, 0)]
)
async def test_an_answer_is_heard_unless_it_says_that_the_server_cannot(status: int, heard: int) -> None:
    responses: list[None] = []
    served = ServedApi(lambda _: httpx2.Response(status, content=b"{}"))
    limited = served.api.with_rate_limit(1.0, 1, lambda: responses.append(None))
    with contextlib.suppress(NodewiseError):
        await limited.get("/a")
    assert len(responses) == heard


async def test_after_the_end_calls_are_unavailable_and_no_defect() -> None:
    served = ServedApi(ok)
    await served.api.close()
    with pytest.raises(Unavailable, match="closed by us"):
        await served.api.get("/a")
    with pytest.raises(Unavailable, match="closed by us"):
        await anext(served.api.watch("/a"))


class ByteStream(httpx2.AsyncByteStream):
    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def aclose(self) -> None:
        self.closed = True


def stream_response(*pieces: bytes | Exception) -> tuple[ByteStream, ServedApi]:
    stream = ByteStream(*pieces)
    return stream, ServedApi(lambda _: httpx2.Response(200, stream=stream))


async def test_a_watch_gives_lines_whatever_its_pieces() -> None:
    stream, served = stream_response(b'{"a"', b': 1}\n{"b": 2}\n{', b'"c": 3}')
    lines = [line async for line in served.api.watch("/api/v1/nodes", {"resourceVersion": "5"})]
    assert lines == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']
    assert dict(served.requests[0].url.params) == {"resourceVersion": "5", "watch": "1"}
    assert stream.closed


async def test_broken_watch_is_unavailable_after_its_events() -> None:
    _, served = stream_response(b"{}\n", httpx2.ReadError("reset"))
    lines = served.api.watch("/a")
    assert await anext(lines) == b"{}"
    with pytest.raises(Unavailable, match="reset"):
        await anext(lines)


async def test_abandoned_watch_is_closed() -> None:
    stream, served = stream_response(b"{}\n{}\n")
    async with aclosing(served.api.watch("/a")) as lines:
        await anext(lines)
    assert stream.closed


class SilentStream(httpx2.AsyncByteStream):
    """A body that stops after some pieces without an end."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


async def test_a_watch_that_goes_silent_is_unavailable_after_its_timeout() -> None:
    stream = SilentStream(b'{"a": 1}\n')
    served = ServedApi(lambda _: httpx2.Response(200, stream=stream))
    dropped: list[int] = []
    lines = served.api.watch("/a", timeout_s=0.05)
    assert await anext(lines) == b'{"a": 1}'
    served.requests[0].extensions[http_transport.TIMED_OUT] = lambda: dropped.append(1)
    with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
        await anext(lines)
    assert stream.closed
    assert dropped == [1], "later calls use new connections"


async def test_events_do_not_prolong_a_watch() -> None:
    class BusyStream(SilentStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b"{}\n"
                await asyncio.sleep(0.01)

    served = ServedApi(lambda _: httpx2.Response(200, stream=BusyStream()))
    with pytest.raises(Unavailable, match="no answer"):
        async for _ in served.api.watch("/a", timeout_s=0.05):
            pass


async def test_a_watch_that_is_refused_says_why() -> None:
    served = ServedApi(
        lambda _: httpx2.Response(403, json={"kind": "Status", "message": "cannot watch nodes"})
    )
    with pytest.raises(Refused, match="cannot watch nodes"):
        await anext(served.api.watch("/a"))


def test_words_of_an_exception_without_any() -> None:
    error = http_client.translate_error(httpx2.ReadTimeout(""), ApiCall("get", "u"), "s")
    assert str(error) == "get u: ReadTimeout (is the API server at s up, and is this its address?)"


async def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_BYTES", 2**20)
    served = ServedApi(lambda _: httpx2.Response(200, content=b"a" * (2**20 + 1)))
    with pytest.raises(Unavailable, match="answer: more than 1 MiB"):
        await served.api.get("/a")


@pytest.mark.parametrize("status", [200, 500])
async def test_a_packed_answer_is_not_unpacked(status: int) -> None:
    packed = gzip.compress(b"{}")
    served = ServedApi(
        lambda _: httpx2.Response(status, stream=ByteStream(packed), headers={"Content-Encoding": "gzip"})
    )
    with pytest.raises(Unavailable, match="Content-Encoding: 'gzip'; expected no compression"):
        await served.api.get("/a")


async def test_a_path_that_no_url_can_hold_is_bad_input() -> None:
    with pytest.raises(BadInput, match="path: "):
        await ServedApi(ok).api.get("/" + "a" * 100_000)


async def test_a_refusal_of_any_shape_is_a_refusal() -> None:
    for body in (b"[" * 100_000, b'{"kind":"Status","message":"\xff"}', b'{"kind":7}', b"<html>", b""):
        with pytest.raises(Refused):
            await ServedApi(lambda _, body=body: httpx2.Response(403, content=body)).api.get("/a")


def test_a_line_is_given_when_its_end_comes() -> None:
    cutter = LineSplitter()
    assert list(cutter.feed(b'{"a"')) == []
    assert list(cutter.feed(b': 1}\n{"b"')) == [b'{"a": 1}']
    assert cutter.rest() == b'{"b"'


def test_windows_ends_and_empty_lines_do_not_matter() -> None:
    assert list(LineSplitter().feed(b"a\r\n\r\n\nb\n")) == [b"a", b"b"]


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    cutter = LineSplitter(longest_bytes=10)
    assert list(cutter.feed(b"12345\n1234")) == [b"12345"]
    with pytest.raises(Unavailable, match="a line of more than 10 bytes"):
        list(cutter.feed(b"5678901"))


CALL = ApiCall("list", "https://host/api/v1/nodes")


def status(message: str = "", **more: Any) -> bytes:
    return msgspec.json.encode({"kind": "Status", "message": message, **more})


def error_of(code: int, body: bytes = b"", retry_after: str = "", hint: str = "") -> NodewiseError:
    return api_server_interface.error_from_status(
        CALL, code, api_server_interface.parse_status_body(body), retry_after, hint
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, BadInput),
        (401, Refused),
        (403, Refused),
        (404, NotFound),
        (405, NotAllowed),
        (409, Conflict),
        (410, Expired),
        (418, Refused),
        (422, BadInput),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (599, Unavailable),
        (302, Refused),
    ],
)
def test_status_determines_the_kind_of_error(code: int, kind: type[NodewiseError]) -> None:
    assert type(error_of(code)) is kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            error_of(403, status('nodes is forbidden: User "x" cannot list resource "nodes"')),
            'list https://host/api/v1/nodes: nodes is forbidden: User "x" cannot list resource "nodes"'
            " (grant this right to the account by a Role or ClusterRole)",
            id="a right that is missing is named, with the remedy",
        ),
        pytest.param(
            error_of(401, status("Unauthorized"), hint="the certificate expired"),
            "list https://host/api/v1/nodes: Unauthorized (the certificate expired)",
            id="what we know of our credentials stands for the general remedy",
        ),
        pytest.param(
            error_of(
                422,
                status(
                    "too long to read",
                    details={
                        "causes": [{"field": "a", "message": "bad"}, {"field": "b", "message": "worse"}]
                    },
                ),
            ),
            "list https://host/api/v1/nodes: a: bad; b: worse",
            id="a validation error is told field by field",
        ),
        pytest.param(
            error_of(
                409,
                status(
                    "Apply failed with 1 conflict",
                    details={"causes": [{"field": ".metadata.labels.a", "message": 'conflict with "them"'}]},
                ),
            ),
            'list https://host/api/v1/nodes: .metadata.labels.a: conflict with "them"',
            id="a conflict of an apply is told field by field",
        ),
        pytest.param(
            error_of(502, b"<html>Bad Gateway</html>"),
            "list https://host/api/v1/nodes: <html>Bad Gateway</html>",
            id="a proxy's page gives its first words",
        ),
        pytest.param(
            error_of(503), "list https://host/api/v1/nodes: HTTP status 503", id="an answer without a body"
        ),
        pytest.param(
            error_of(503, b'{"kind": "Status", "message": 7}'),
            'list https://host/api/v1/nodes: {"kind": "Status", "message": 7}',
            id="a status of wrong types",
        ),
        pytest.param(
            error_of(503, b'{"some": "json"}'),
            "list https://host/api/v1/nodes: HTTP status 503",
            id="other JSON",
        ),
    ],
)
def test_words(error: NodewiseError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        pytest.param(error_of(429, retry_after="7"), 7.0, id="the header"),
        pytest.param(error_of(429, status(details={"retryAfterSeconds": 9})), 9.0, id="the status"),
        pytest.param(
            error_of(503, status(details={"retryAfterSeconds": 9}), "7"), 9.0, id="the longer of both"
        ),
        pytest.param(
            error_of(503, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 1.0, id="a date is not read"
        ),
        pytest.param(error_of(503), 1.0, id="neither"),
    ],
)
def test_how_long_to_wait(error: NodewiseError, wait_s: float) -> None:
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == wait_s
