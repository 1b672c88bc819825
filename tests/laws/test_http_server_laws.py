"""The server answers any bytes and keeps running."""

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import application, server_tls_context
from nodewise.server.application import Application, Response, Route
from nodewise.server.server import HttpServer
from tests.unit.server.raw_http_client import PATIENCE_S, PLAIN
from tests.unit.server.test_listener import client_hello

HELLO = client_hello("h2", "http/1.1")


@given(st.binary(max_size=300))
def test_offered_protocols_never_raises_for_any_bytes(data):
    server_tls_context.offered_alpn_protocols(data)
    server_tls_context.offered_alpn_protocols(b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data)
    server_tls_context.offered_alpn_protocols(b"\x16\x03\x01\x01\x00\x01\x00\x00" + data)


@given(st.integers(0, len(HELLO) - 1), st.integers(0, 255))
def test_offered_protocols_never_raises_for_a_changed_byte(place, value):
    server_tls_context.offered_alpn_protocols(HELLO[:place] + bytes((value,)) + HELLO[place + 1 :])


@given(st.lists(st.binary(max_size=3 * application.PIECE_BYTES // 2).map(lambda part: part * 2), max_size=6))
@settings(max_examples=30)
def test_pieces_of_a_body_are_the_body(parts):
    pieces = list(application.split_body(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert all(len(piece) < 2 * application.PIECE_BYTES for piece in pieces)


HEAD = b"POST /echo HTTP/1.1\r\nContent-Type: application/json\r\n"
FIRST = HEAD + b"Content-Length: 5\r\n\r\nfirst"
LAST = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nla\r\n2\r\nst\r\n0\r\n\r\n"


def _exchange(*clients: list[bytes], last: list[bytes]) -> bytes:
    """The bytes that the last client receives up to the echo of LAST. Each client sends its bytes in parts."""

    async def run() -> bytes:
        metrics_registry = MetricsRegistry()
        route = Route("POST", "/echo", lambda request: Response(200, request.body))
        app = Application([route], metrics_registry, max_body_bytes=1000)
        server = HttpServer(app, PLAIN, metrics_registry)
        await server.start()
        for parts in clients:
            await _talk(server.port, parts, until=b"")
        got = await _talk(server.port, last, until=b"last")
        await server.stop(0.1)
        return got

    return asyncio.run(run())


async def _talk(port: int, parts: list[bytes], until: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        if not until:
            writer.write_eof()
        while not (until and got.endswith(until)):
            more = await asyncio.wait_for(reader.read(65536), PATIENCE_S)
            if not more:
                break
            got += more
    except ConnectionError:
        pass
    finally:
        writer.close()
    return got


@given(st.lists(st.integers(0, len(FIRST + LAST)), max_size=6))
@settings(max_examples=15, deadline=None)
def test_how_the_bytes_of_requests_are_cut_changes_no_answer(cuts):
    places = [0, *sorted(cuts), len(FIRST + LAST)]
    got = _exchange(last=[(FIRST + LAST)[begin:end] for begin, end in itertools.pairwise(places)])
    expected = [2, 2, 1, 1]
    assert [got.count(words) for words in (b"HTTP/1.1 ", b"HTTP/1.1 200 OK", b"first", b"last")] == expected


@given(st.lists(st.one_of(st.binary(max_size=200), st.binary(max_size=50).map(HEAD.__add__)), max_size=3))
@settings(max_examples=15, deadline=None)
def test_after_any_bytes_the_next_client_is_served(rubbish):
    assert _exchange(*([data] for data in rubbish), last=[LAST]).startswith(b"HTTP/1.1 200 OK")
