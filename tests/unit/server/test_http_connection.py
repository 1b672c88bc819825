import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Request, Response, Route
from nodewise.server.options import ServeOptions
from tests.unit.server import virtual_time_loop
from tests.unit.server.raw_http_client import (
    ECHO,
    PLAIN,
    BlockingHandler,
    ParsedResponse,
    count_ended,
    counted_close_reasons,
    encode_request,
    open_client,
    run_server,
    wait_until,
)

SHORT = msgspec.structs.replace(
    PLAIN,
    header_timeout_s=0.08,
    body_idle_timeout_s=0.08,
    body_timeout_s=0.2,
    answer_timeout_s=0.1,
    keep_alive_s=0.1,
)
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def anyio_backend():
    """One event loop is enough: they differ in TLS and in closing connections, which other modules test."""
    return virtual_time_loop.BACKEND


async def close_reason_after(data: bytes, options: ServeOptions = SHORT) -> tuple[str, bytes]:
    """The counted close reason and the last bytes of the server, if the client sends only these bytes."""
    metrics_registry = MetricsRegistry()
    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        open_client(server) as caller,
    ):
        await caller.send(data)
        words = await caller.rest()
        assert (await request_on_new_connection(server)).status == 200
    (reason,) = counted_close_reasons(metrics_registry)
    return reason, words


async def request_on_new_connection(server) -> ParsedResponse:
    """Send a request on a new connection, which shows that the server still works."""
    async with open_client(server) as caller:
        return await caller.ask("/echo")


def refusal(words: bytes) -> tuple[int, str]:
    """The status and the first field of an error response."""
    header, _, body = words.partition(b"\r\n\r\n")
    assert b"connection: close" in header
    return int(header.split()[1]), msgspec.json.decode(body)["problems"][0]["field"]


# header


async def test_a_client_that_says_nothing_is_closed_without_a_word():
    assert await close_reason_after(b"") == ("header_deadline", b"")


async def test_a_header_that_drips_gets_no_more_time():
    async with run_server(SHORT) as server, open_client(server) as caller:
        began = asyncio.get_running_loop().time()
        rest = asyncio.create_task(caller.rest())
        for byte in HEAD * 3:
            caller.writer.write(bytes((byte,)))
            await asyncio.sleep(0.01)
            if rest.done():
                break
        assert refusal(await rest) == (408, "header")
        assert asyncio.get_running_loop().time() - began < 0.5


async def test_empty_lines_do_not_keep_a_connection_open():
    async with run_server(SHORT) as server, open_client(server) as caller:
        assert (await caller.ask("/echo")).status == 200
        rest = asyncio.create_task(caller.rest())
        for _ in range(100):
            caller.writer.write(b"\r\n")
            await asyncio.sleep(0.01)
            if rest.done():
                break
        assert rest.done()


LONG_LINE, MANY_LINES = b"A: " + b"a" * 9000, b"A: b\r\n" * 1500


@pytest.mark.parametrize(
    ("data", "reason", "status", "field"),
    [
        pytest.param(HEAD, "header_deadline", 408, "header", id="header stops"),
        pytest.param(HEAD + LONG_LINE, "header_size", 431, "header", id="long line, incomplete"),
        pytest.param(HEAD + LONG_LINE + b"\r\n\r\n", "header_size", 431, "header", id="long line"),
        pytest.param(HEAD + MANY_LINES, "header_size", 431, "header", id="many lines, incomplete"),
        pytest.param(HEAD + MANY_LINES + b"\r\n\r\n", "header_size", 431, "header", id="many lines"),
        pytest.param(b"GET /" + b"a" * 9000, "header_size", 431, "header", id="long path"),
        pytest.param(HEAD + b"Content-Length: 10\r\n\r\nabc", "body_deadline", 408, "body", id="body stops"),
    ],
)
async def test_an_incomplete_or_too_large_request_is_refused(data, reason, status, field):
    counted, words = await close_reason_after(data)
    assert counted == reason
    assert refusal(words) == (status, field)


async def test_a_header_just_below_the_limit_is_served():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        filler = {"Content-Type": "application/json", "A": "a" * 8000}
        assert (await caller.ask("/echo", headers=filler)).status == 200


# body


@pytest.mark.parametrize(
    "head", [b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n400\r\n"]
)
async def test_a_body_that_drips_gets_no_more_time_than_a_body_has(head):
    async with run_server(SHORT) as server, open_client(server) as caller:
        await caller.send(HEAD + head)
        began = asyncio.get_running_loop().time()
        rest = asyncio.create_task(caller.rest())
        for _ in range(100):
            caller.writer.write(b"a")
            await asyncio.sleep(0.02)
            if rest.done():
                break
        assert refusal(await rest) == (408, "body")
        assert 0.15 < asyncio.get_running_loop().time() - began < 1


async def test_a_slow_body_that_goes_on_is_served():
    options = msgspec.structs.replace(PLAIN, body_idle_timeout_s=0.2)
    async with run_server(options) as server, open_client(server) as caller:
        await caller.send(HEAD + b"Content-Length: 5\r\n\r\n")
        for _ in range(5):
            await asyncio.sleep(0.05)
            await caller.send(b"a")
        assert (await caller.answer()).body == b"aaaaa"


async def test_a_body_that_we_do_not_take_is_not_late():
    """The client sends it before the previous response, so the server stops reading."""
    slow = BlockingHandler()
    async with run_server(SHORT, [slow.route, ECHO]) as server, open_client(server) as caller:
        sending = asyncio.create_task(
            caller.send(encode_request("/slow") + encode_request("/echo", b"a" * 1_000_000))
        )
        await asyncio.sleep(0.3)
        slow.go.set()
        assert (await caller.answer()).body == b"at last"
        assert (await caller.answer()).body == b"a" * 1_000_000
        await sending


async def test_an_answer_for_a_connection_that_is_gone_is_dropped():
    """The second request ends the connection while the handler of the first one still runs."""
    slow = BlockingHandler()
    options = msgspec.structs.replace(PLAIN, max_pipelined=1)
    async with run_server(options, [slow.route]) as server, open_client(server) as caller:
        with capture_logs() as lines:
            await caller.send(encode_request("/slow") * 3)
            assert await caller.rest() == b""
            slow.go.set()
            await wait_until(lambda: not server._connections.tasks)
    assert [line["event"] for line in lines] == ["connection_ended"]


@pytest.mark.parametrize("filler", [b"0\r\nA: " + b"a" * 70_000, b"1;" + b"a" * 70_000])
async def test_trailers_or_chunk_extensions_without_end(filler, metrics_registry):
    async with run_server(PLAIN, metrics_registry=metrics_registry) as server, open_client(server) as caller:
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await asyncio.sleep(0.01)
        await caller.send(filler)
        assert refusal(await caller.rest()) == (400, "body")
    assert count_ended(metrics_registry, "bad_request") == 1


async def test_a_body_refused_by_its_length_is_passed_over_and_the_connection_lives():
    options = msgspec.structs.replace(PLAIN, max_body_bytes=100)
    async with run_server(options) as server, open_client(server) as caller:
        answer = await caller.ask("/echo", b"a" * 300_000)
        assert (answer.status, answer.field()) == (413, "Content-Length")
        assert (await caller.ask("/echo", b"{}")).status == 200


async def test_a_body_refused_by_its_length_and_never_sent_is_not_waited_for():
    reason, words = await close_reason_after(HEAD + b"Content-Length: 1000000001\r\n\r\n")
    assert words.startswith(b"HTTP/1.1 413 ")
    assert reason == "body_deadline"


async def test_a_chunked_body_is_counted_while_it_comes_in():
    options = msgspec.structs.replace(PLAIN, max_body_bytes=100)
    async with run_server(options) as server, open_client(server) as caller:
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"64\r\n" + b"a" * 100 + b"\r\n")
        await asyncio.sleep(0.01)
        await caller.send(b"1\r\na\r\n")
        answer = await caller.answer()
        assert (answer.status, answer.field()) == (413, "body")
        await caller.send(b"0\r\n\r\n")
        assert (await caller.ask("/echo", b"{}")).status == 200


async def test_a_chunked_body_is_served():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        await caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        assert (await caller.answer()).body == b"{}"


async def test_expect_continue_gets_100_continue():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        await caller.send(HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await caller.answer()).status == 100
        await caller.send(b"{}")
        assert (await caller.answer()).status == 200


async def test_after_a_body_that_was_passed_over_the_connection_is_idle_like_any_other():
    options = msgspec.structs.replace(SHORT, max_body_bytes=100, keep_alive_s=5)
    async with run_server(options) as server, open_client(server) as caller:
        assert (await caller.ask("/echo", b"a" * 300_000)).status == 413
        await asyncio.sleep(0.15)
        assert (await caller.ask("/echo", b"{}")).status == 200


# invalid HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        HEAD + b"A\x00B: c\r\n\r\n",
        bytes(range(256)) * 4,
    ],
)
async def test_invalid_http_gets_400_and_is_closed(data):
    reason, words = await close_reason_after(data, PLAIN)
    assert reason == "bad_request"
    assert refusal(words)[0] == 400


async def test_rubbish_after_a_good_request_does_not_take_its_answer():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        await caller.send(encode_request("/echo") + b"rubbish\r\n\r\n")
        answer = await caller.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await caller.rest() == b""


async def test_too_many_requests_sent_ahead():
    reason, _ = await close_reason_after(encode_request("/echo") * 50, PLAIN)
    assert reason == "pipelined"


# between requests, and after them


async def test_an_idle_connection_outlives_header_deadlines_and_ends_with_keep_alive():
    options = msgspec.structs.replace(SHORT, keep_alive_s=0.2)
    async with run_server(options) as server, open_client(server) as caller:
        assert (await caller.ask("/echo")).status == 200
        await asyncio.sleep(0.12)
        assert (await caller.ask("/echo")).status == 200
        assert await caller.rest() == b""


def test_the_keep_alive_outlives_that_of_gos_client():
    assert ServeOptions().keep_alive_s > 90


async def test_a_client_that_does_not_read_its_answer(metrics_registry):
    large = Route("POST", "/large", lambda _request: Response(200, b"a" * 50_000_000))
    async with run_server(SHORT, [large, ECHO], metrics_registry) as server, open_client(server) as caller:
        caller.writer.transport.pause_reading()
        caller.writer.write(encode_request("/large"))
        await wait_until(lambda: count_ended(metrics_registry, "answer_deadline") == 1)
        await wait_until(lambda: not server._connections.open)
        assert (await request_on_new_connection(server)).status == 200


async def test_completion_waits_until_the_client_reads_its_response():
    completed = []
    large = Route(
        "POST",
        "/large",
        lambda _request: Response(200, b"a" * 50_000_000, completion=lambda: completed.append(1)),
    )
    async with run_server(PLAIN, [large]) as server, open_client(server) as caller:
        caller.writer.transport.pause_reading()
        caller.writer.write(encode_request("/large"))
        await wait_until(lambda: any(item._is_writing_paused for item in server._connections.open))
        assert completed == []
        caller.writer.transport.resume_reading()
        assert (await caller.answer()).status == 200
        assert completed == [1]


async def test_client_that_leaves_during_its_response_affects_no_other(metrics_registry):
    completed = []

    async def slow(_request: Request) -> Response:
        await asyncio.sleep(0.03)
        return Response(200, b"late", completion=lambda: completed.append(1))

    async with run_server(PLAIN, [Route("POST", "/slow", slow), ECHO], metrics_registry) as server:
        async with open_client(server) as caller:
            await caller.send(encode_request("/slow"))
            await asyncio.sleep(0.01)
        async with open_client(server) as caller:
            await caller.send(HEAD + b"Content-Length: 10\r\n\r\nabc")
        await asyncio.sleep(0.05)
        assert (await request_on_new_connection(server)).status == 200
        assert not server._connections.tasks
        assert completed == [1]


async def test_http_1_0_is_answered_and_closed():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        await caller.send(
            b"POST /echo HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert (await caller.answer()).status == 200
        assert await caller.rest() == b""


async def test_a_response_that_cannot_be_written_is_logged_and_ends_the_connection():
    broken = Route("POST", "/broken", lambda _request: Response(200, [1]))  # type: ignore[list-item]
    async with run_server(PLAIN, [broken, ECHO]) as server, open_client(server) as caller:
        with capture_logs() as lines:
            await caller.send(encode_request("/broken"))
            assert await caller.rest() == b""
        assert [line["event"] for line in lines] == ["request_failed"]
        assert (await request_on_new_connection(server)).status == 200
