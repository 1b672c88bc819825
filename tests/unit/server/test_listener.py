import asyncio
import errno
import socket
import ssl

import pytest
from structlog.testing import capture_logs

from nodewise.server import http_connection, server_tls_context
from nodewise.server.options import ServeOptions
from tests.unit.server import virtual_time_loop
from tests.unit.server.raw_http_client import (
    PLAIN,
    counted_close_reasons,
    encode_request,
    open_client,
    run_server,
    send_request,
    send_request_until_served,
    wait_until,
)


async def test_h24_plain_http_gets_an_explanation(tls_files, metrics_registry):
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        async with open_client(server) as plain:
            await plain.send(encode_request("/echo", b"a" * 10_000))
            words = await plain.rest()
        assert (await send_request(server, tls_files.context())).status == 200
    assert words.startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert words.endswith(b"\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
    assert counted_close_reasons(metrics_registry) == ["plain_http"]


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a ClientHello"])
async def test_h25_unfinished_handshake_is_closed(tls_files, sent, metrics_registry):
    async with (
        run_server(tls_files.options(handshake_timeout_s=0.2), metrics_registry=metrics_registry) as server,
        open_client(server) as silent,
    ):
        await silent.send(sent)
        assert await silent.rest() == b""
        assert (await send_request_until_served(server, tls_files.context())).status == 200
    assert counted_close_reasons(metrics_registry) == ["handshake_deadline"]


async def test_a_handshake_that_drips_gets_no_more_time(tls_files):
    async with run_server(tls_files.options(handshake_timeout_s=0.08)) as server, open_client(server) as slow:
        rest = asyncio.create_task(slow.rest())
        slow.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        for _ in range(500):  # fewer bytes than the declared length of the handshake
            slow.writer.write(b"a")
            await asyncio.sleep(0.01)
            if rest.done():
                break
        assert rest.done()


@pytest.mark.parametrize("anyio_backend", [virtual_time_loop.BACKEND])
@pytest.mark.parametrize(
    "sent", [b"POST /echo HTTP/1.1\r\n", encode_request("/echo", b"a" * 1000)[:-1]], ids=["header", "body"]
)
async def test_h25_a_request_over_tls_that_stops(tls_files, sent):
    options = tls_files.options(header_timeout_s=0.05, body_idle_timeout_s=0.05)
    async with run_server(options) as server, open_client(server, tls_files.context()) as slow:
        await slow.send(sent)
        assert (await slow.answer()).status == 408
        assert await slow.rest() == b""


async def test_rubbish_in_place_of_a_handshake(tls_files, metrics_registry):
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        async with open_client(server) as rubbish:
            await rubbish.send(b"\x16" + bytes(range(200)))
            await rubbish.rest()
        assert (await send_request(server, tls_files.context())).status == 200
    assert counted_close_reasons(metrics_registry) == ["handshake"]


async def test_a_probe_that_connects_and_leaves_is_counted_and_not_logged(tls_files, metrics_registry):
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        with capture_logs() as lines:
            async with open_client(server):
                pass
            await wait_until(lambda: counted_close_reasons(metrics_registry) == ["closed_early"])
    assert lines == []


async def test_without_file_descriptors_accepting_rests_and_goes_on():
    async with run_server(PLAIN) as server:
        assert server._listener is not None
        real = server._listener._socket
        server._listener._socket = Exhausted(real, times=1)  # type: ignore[assignment]
        with capture_logs() as lines:
            async with open_client(server) as caller:
                assert (await caller.ask("/echo")).status == 200
        server._listener._socket = real
    assert [line["event"] for line in lines] == ["accept_failed"]


class Exhausted:
    """A listening socket on a machine that has no file descriptor left, for a while."""

    def __init__(self, real: socket.socket, times: int) -> None:
        self.real = real
        self.times = times

    def fileno(self) -> int:
        return self.real.fileno()

    def accept(self):
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
async def test_both_families_on_the_address_of_all(address):
    """A pod of an IPv6 cluster has no IPv4 address, at which a kubelet could probe it."""
    options = ServeOptions(unsafe=True, address=address, unsafe_address=address, port=0)
    async with run_server(options) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, server.port)
            writer.write(encode_request("/echo"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_address_of_all_on_a_machine_without_ipv6(monkeypatch):
    class OnlyIPv4(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *arguments: int, **more: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments, **more)

    monkeypatch.setattr(socket, "socket", OnlyIPv4)
    options = ServeOptions(unsafe=True, address="::", unsafe_address="::", port=0)
    async with run_server(options) as server, open_client(server) as client:
        assert (await client.ask("/echo")).status == 200


@pytest.mark.parametrize(
    ("socket_address", "text"),
    [
        (("10.0.0.7", 4711), "10.0.0.7:4711"),
        (("::ffff:10.0.0.7", 4711, 0, 0), "10.0.0.7:4711"),
        (("fd00::7", 4711, 0, 0), "[fd00::7]:4711"),
        (("::ffff:1", 4711, 0, 0), "[::ffff:1]:4711"),
    ],
)
def test_address_of_a_client_in_messages(socket_address, text):
    assert http_connection.format_socket_address(socket_address) == text


def client_hello(*protocols: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def in_records(data: bytes, size: int) -> bytes:
    """The TLS message `data`, split into records of `size` bytes."""
    message = data[5:]
    cuts = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(cut).to_bytes(2, "big") + cut for cut in cuts)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocols", [(), ("h2",), ("h2", "http/1.1"), ("a", "b", "c")])
def test_the_protocols_of_a_client_are_read(protocols, version):
    data = client_hello(*protocols, version=version)
    assert server_tls_context.offered_alpn_protocols(data) == tuple(name.encode() for name in protocols)


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_a_message_in_many_records_is_put_together(size):
    assert server_tls_context.offered_alpn_protocols(in_records(client_hello("h2"), size)) == (b"h2",)


def test_protocols_of_an_incomplete_hello_are_unknown():
    data = client_hello("h2")
    assert all(server_tls_context.offered_alpn_protocols(data[:end]) is None for end in range(len(data)))


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1", b"\x15\x03\x01\x00\x02\x02\x28", b"\x16\x03\x01\x00\x04\x02\0\0\0"]
)
def test_other_data_than_a_client_hello_offers_no_protocols(data):
    assert server_tls_context.offered_alpn_protocols(data) == ()
