import ssl

import pytest

from nodewise.server import server_tls_context


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
