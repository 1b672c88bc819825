import asyncio
import contextlib
import gc
import socket
import ssl
import warnings

import pytest
from structlog.testing import capture_logs

from nodewise.base.errors import BadSettings
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import http_connection
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions, ServeOptions
from nodewise.server.server import HttpServer
from tests.unit.server.raw_http_client import (
    ECHO,
    PATIENCE_S,
    PLAIN,
    BlockingHandler,
    ParsedResponse,
    RawClient,
    RefusedError,
    count_ended,
    encode_request,
    metric_value,
    open_client,
    run_server,
    send_request,
    send_request_until_served,
    wait_until,
)


def idle(options: ServeOptions) -> HttpServer:
    return HttpServer(Application([], MetricsRegistry(), max_body_bytes=1), options, MetricsRegistry())


async def problems_of(options: ServeOptions) -> dict[str, str]:
    """The problems that a start reports, by field."""
    with pytest.raises(BadSettings) as caught:
        await idle(options).start()
    return {problem.field: problem.found for problem in caught.value.problems}


# what a server needs to start


async def test_a_free_port_is_picked_and_named(tls_files):
    with capture_logs() as lines:
        async with run_server(tls_files.options()) as server:
            assert server.port > 0
            assert server.url == f"https://127.0.0.1:{server.port}"
            assert (await send_request(server, tls_files.context())).body == b"{}"
    assert {"event": "listening", "url": server.url, "log_level": "info"} in lines


async def test_all_that_is_wrong_is_said_at_once(tls_files):
    tls_files.cert.unlink()
    tls_files.ca.write_text("nothing of the kind")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problems = await problems_of(tls_files.options(port=port))
    assert set(problems) == {"cert", "client_ca", "port"}
    assert "No such file" in problems["cert"]
    assert "holds no certificate" in problems["client_ca"]
    assert problems["port"] == f"{port} is in use on 127.0.0.1"


async def test_a_key_of_another_certificate_is_named_with_it(tls_files):
    tls_files.key.write_bytes(tls_files.client.private_key_pem.bytes())
    problems = await problems_of(tls_files.options())
    assert problems == {"key": f"{tls_files.key} does not match {tls_files.cert}"}


async def test_certificates_are_asked_for_when_none_is_given():
    assert set(await problems_of(ServeOptions(port=0))) == {"cert", "key", "client_ca"}


@pytest.mark.parametrize("port", [70000, -1])
async def test_a_port_that_is_none(port):
    assert set(await problems_of(ServeOptions(unsafe=True, port=port))) == {"port"}


async def test_an_address_of_another_machine():
    problems = await problems_of(
        ServeOptions(unsafe=True, unsafe_address="192.0.2.1", address="192.0.2.1", port=0)
    )
    assert problems == {"address": "192.0.2.1 is not an address of this machine"}


async def test_plain_http_leaves_the_machine_only_by_name():
    problems = await problems_of(ServeOptions(unsafe=True, address="0.0.0.0", port=0))
    assert "0.0.0.0" in problems["address"]
    async with run_server(
        ServeOptions(unsafe=True, address="0.0.0.0", unsafe_address="0.0.0.0", port=0)
    ) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"


def test_without_an_address_plain_http_is_on_loopback_and_tls_everywhere():
    assert ServeOptions(unsafe=True).host == "127.0.0.1"
    assert ServeOptions().host == "0.0.0.0"
    assert AdminOptions().health_address == "127.0.0.1"


# serving


async def test_a_hundred_connections_at_once(tls_files):
    async with run_server(tls_files.options()) as server:
        context = tls_files.context()
        answers = await asyncio.gather(*(send_request(server, context) for _ in range(100)))
    assert [answer.status for answer in answers] == [200] * 100


async def test_a_connection_is_kept_for_many_requests():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        for number in range(3):
            answer = await caller.ask("/echo", str(number).encode())
            assert answer.body == str(number).encode()
            assert answer.headers["content-type"] == "application/json"
            assert "date" in answer.headers
            assert "server" not in answer.headers


async def test_requests_sent_ahead_are_answered_in_order():
    async with run_server(PLAIN) as server, open_client(server) as caller:
        await caller.send(b"".join(encode_request("/echo", str(number).encode()) for number in range(10)))
        assert [(await caller.answer()).body for _ in range(10)] == [str(n).encode() for n in range(10)]


async def test_a_large_body_comes_back_whole(tls_files):
    body = bytes(range(256)) * 20_000
    async with run_server(tls_files.options()) as server, open_client(server, tls_files.context()) as caller:
        asking = asyncio.create_task(caller.ask("/echo", body))
        assert (await asking).body == body


async def test_connections_are_counted(metrics_registry):
    async with run_server(PLAIN, metrics_registry=metrics_registry) as server, open_client(server):
        await wait_until(lambda: metric_value(metrics_registry, "connections", port=str(server.port)) == 1)


# ending


async def test_stop_completes_requests_and_closes_idle_connections(tls_files):
    slow = BlockingHandler()
    async with run_server(tls_files.options(), [slow.route]) as server:
        context = tls_files.context()
        async with open_client(server, context) as busy, open_client(server, context) as unused:
            asking = asyncio.create_task(busy.ask("/slow"))
            await slow.begun.wait()
            stopping = asyncio.create_task(server.stop(grace_s=10 * PATIENCE_S))
            assert await unused.rest() == b""
            with pytest.raises(RefusedError):
                await send_request(server, context)
            assert not stopping.done()
            slow.go.set()
            answer = await asking
            assert (answer.body, answer.headers["connection"]) == (b"at last", "close")
            assert await busy.rest() == b""
            await busy.close()
            await unused.close()
            await asyncio.wait_for(stopping, PATIENCE_S)


async def test_while_it_drains_each_answer_ends_its_connection_and_new_ones_are_served(tls_files):
    slow = BlockingHandler()
    async with run_server(tls_files.options(), [ECHO, slow.route]) as server:
        context = tls_files.context()
        async with open_client(server, context) as kept, open_client(server, context) as busy:
            assert "connection" not in (await kept.ask("/echo")).headers
            asking = asyncio.create_task(busy.ask("/slow"))
            await slow.begun.wait()
            server.drain()
            assert (await kept.ask("/echo")).headers["connection"] == "close"
            assert await kept.rest() == b""
            slow.go.set()
            answer = await asking
            assert (answer.body, answer.headers["connection"]) == (b"at last", "close")
            late = await send_request(server, context)
            assert (late.status, late.headers["connection"]) == (200, "close")


async def test_a_stop_waits_no_longer_than_its_grace(tls_files):
    slow = BlockingHandler()
    async with (
        run_server(tls_files.options(), [slow.route]) as server,
        open_client(server, tls_files.context()) as caller,
    ):
        await caller.send(encode_request("/slow"))
        await slow.begun.wait()
        await asyncio.wait_for(server.stop(grace_s=0.05), PATIENCE_S)
        assert await caller.rest() == b""


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
async def test_a_stop_does_not_wait_for_clients_that_do_not_close_an_idle_connection(
    tls_files, monkeypatch, with_tls
):
    """A client with a pool of connections notices the end of an idle one only when it uses it again."""
    monkeypatch.setattr(http_connection, "_LINGER_S", 10 * PATIENCE_S)
    options = tls_files.options(answer_timeout_s=10 * PATIENCE_S) if with_tls else PLAIN
    async with run_server(options) as server:
        context = tls_files.context() if with_tls else None
        with await asyncio.to_thread(_connection_after_request, server.port, context) as connection:
            await asyncio.wait_for(server.stop(grace_s=10 * PATIENCE_S), PATIENCE_S)
            assert connection.recv(1) == b"", "the end of TLS is announced"


def _connection_after_request(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A connection after one request. Nothing reads from it."""
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname="127.0.0.1", suppress_ragged_eofs=False)
    connection.sendall(encode_request("/echo"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n{}"):
        answer += connection.recv(4096)
    return connection


async def test_a_stop_does_not_wait_for_handshakes(tls_files):
    options = tls_files.options(handshake_timeout_s=10 * PATIENCE_S)
    async with run_server(options) as server, open_client(server) as silent, open_client(server) as slow:
        await slow.send(b"\x16\x03\x01")
        await wait_until(lambda: server._listener is not None and len(server._listener._handshakes) == 2)
        await asyncio.wait_for(server.stop(grace_s=10 * PATIENCE_S), PATIENCE_S)
        assert await silent.rest() == await slow.rest() == b""


async def test_a_stopped_server_stops_again_and_an_unstarted_one_too():
    await idle(PLAIN).stop()
    async with run_server(PLAIN) as server:
        await server.stop()
        await server.stop()


async def test_nothing_is_left_open(tls_files):
    """No socket, transport or file is left open for the garbage collector, however a connection ends."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with run_server(tls_files.options(handshake_timeout_s=0.15)) as server:
            await send_request_until_served(server, tls_files.context())
            with pytest.raises(RefusedError):
                await send_request(server, tls_files.trusting())
            async with open_client(server) as silent:
                assert await silent.rest() == b""
            async with open_client(server) as plain:
                await plain.send(encode_request("/echo"))
                await plain.rest()
            _, halfway = await asyncio.open_connection("127.0.0.1", server.port)
            halfway.write(b"\x16\x03\x01")
            await asyncio.sleep(0.01)
            await server.stop()
            halfway.close()
            with contextlib.suppress(OSError):
                await halfway.wait_closed()
        del server
        await asyncio.sleep(0.02)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_more_connections_than_allowed_are_closed_at_once(metrics_registry):
    options = ServeOptions(unsafe=True, port=0, max_connections=2)
    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        open_client(server) as first,
        open_client(server) as second,
    ):
        assert (await first.ask("/echo")).status == (await second.ask("/echo")).status == 200
        async with open_client(server) as third:
            assert await third.rest() == b""
        assert count_ended(metrics_registry, "too_many") == 1
        assert (await first.ask("/echo")).status == 200
        await second.close()
        await wait_until(lambda: len(server._connections.open) == 1)
        async with open_client(server) as fourth:
            assert (await fourth.ask("/echo")).status == 200


async def test_handshakes_that_end_together_do_not_exceed_the_limit(tls_files):
    async with (
        run_server(tls_files.options(max_connections=2)) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        opening = [stack.enter_async_context(open_client(server, tls_files.context())) for _ in range(6)]
        callers = await asyncio.gather(*opening, return_exceptions=True)
        requests = [caller.ask("/echo") for caller in callers if isinstance(caller, RawClient)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert sum(isinstance(answer, ParsedResponse) for answer in answers) == 2


async def test_those_without_a_certificate_do_not_take_the_place_of_those_with_one(
    tls_files, metrics_registry
):
    options = tls_files.options(max_handshakes=2)
    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        contextlib.AsyncExitStack() as stack,
    ):
        silent = [await stack.enter_async_context(open_client(server)) for _ in range(5)]
        assert (await send_request(server, tls_files.context())).status == 200
        await wait_until(lambda: count_ended(metrics_registry, "too_many") == 4)
        assert [await client.rest() for client in silent[:4]] == [b""] * 4
        async with open_client(server, tls_files.context()) as known:
            for _ in range(5):
                await stack.enter_async_context(open_client(server))
            assert (await known.ask("/echo")).status == 200
