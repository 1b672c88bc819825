"""TLS handshakes of a server: its kind of context, and the certificates that a peer sent.

`ServerContext` adds what Python leaves out of a handshake: it fails without a common application protocol, as RFC 7301
demands, and the alert of a failed handshake is kept for the listener, because asyncio and uvloop drop it.
"""

import ssl
from collections.abc import Iterator
from typing import Any, Final

from nodewise.server.connection_close_reasons import ProtocolNotOffered

PROTOCOL: Final = "http/1.1"

_RECORD: Final = 5  # bytes of a record's header
_MESSAGE: Final = 4  # bytes of a handshake message's header
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_ALPN: Final = 16
_LONGEST_HELLO: Final = 2**16  # of a ClientHello that is parsed here; OpenSSL handles a longer one
_NO_APPLICATION_PROTOCOL: Final = bytes((21, 3, 3, 0, 2, 2, 120))  # a fatal alert, RFC 7301 section 3.2


class HandshakeFailed(ssl.SSLError):
    """A failed handshake with its cause and the alert for the client, empty if there is none."""

    def __init__(self, cause: ssl.SSLError, alert: bytes) -> None:
        super().__init__(*cause.args)
        self.cause = cause
        self.alert = alert


def _join_handshake_message(data: bytes) -> bytes | None:
    """The first handshake message, joined from its records; None if it is incomplete or another message."""
    message = b""
    while len(data) >= _RECORD and data[0] == _HANDSHAKE:
        end = _RECORD + int.from_bytes(data[3:5], "big")
        message += data[_RECORD:end]
        data = data[end:]
        length = _MESSAGE + int.from_bytes(message[1:_MESSAGE], "big")
        if len(message) >= max(_MESSAGE, length):
            return message[:length]
    return None


def _split_length_prefixed(data: bytes, width: int) -> tuple[bytes, bytes]:
    """The bytes counted by a length of `width` bytes, and the rest."""
    end = width + int.from_bytes(data[:width], "big")
    return data[width:end], data[end:]


def _client_hello_extensions(message: bytes) -> Iterator[tuple[int, bytes]]:
    rest = message[_MESSAGE + 2 + 32 :]  # after the message's header, the version and the random
    for width in (1, 2, 1):  # session id, cipher suites, compression methods
        _, rest = _split_length_prefixed(rest, width)
    extensions, _ = _split_length_prefixed(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2], "big")
        body, extensions = _split_length_prefixed(extensions[2:], 2)
        yield kind, body


def offered_alpn_protocols(data: bytes) -> tuple[bytes, ...] | None:
    """The application protocols that a ClientHello offers: () for none, None while it is incomplete.

    Never raises: OpenSSL refuses what cannot be parsed.
    """
    message = _join_handshake_message(data)
    if message is None:
        return () if len(data) > _LONGEST_HELLO or data[:1] not in (b"", bytes((_HANDSHAKE,))) else None
    if message[0] != _CLIENT_HELLO:
        return ()
    names = []
    for kind, body in _client_hello_extensions(message):
        if kind == _ALPN:
            rest, _ = _split_length_prefixed(body, 2)
            while rest:
                name, rest = _split_length_prefixed(rest, 1)
                names.append(name)
    return tuple(names)


class _ServerSslObject(ssl.SSLObject):
    """A server's end of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    received: bytes | None = b""
    """The part of the ClientHello that has come in; None after it has been parsed."""

    def do_handshake(self) -> None:
        try:
            if self.received is not None:
                self._check_alpn()
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            raise HandshakeFailed(error, self.outgoing.read()) from error

    def _check_alpn(self) -> None:
        data = self.incoming.read()
        self.incoming.write(data)
        self.received = (self.received or b"") + data
        names = offered_alpn_protocols(self.received)
        if names is None:
            return
        self.received = None
        if names and PROTOCOL.encode() not in names:
            self.outgoing.write(_NO_APPLICATION_PROTOCOL)
            raise ProtocolNotOffered(
                1, f"the client offers only {', '.join(name.decode('latin-1') for name in names)}"
            )


def peer_certificates(secured: ssl.SSLObject) -> tuple[bytes, ...]:
    """The certificates that the peer sent, DER, its own first; empty if it sent none."""
    own = secured.getpeercert(binary_form=True)
    if own is None:
        return ()
    # public since Python 3.13, and before it only one level below
    chain = getattr(secured, "get_unverified_chain", None) or secured._sslobj.get_unverified_chain  # type: ignore[attr-defined]  # noqa: SLF001
    return (own, *(der for der in map(_certificate_der, chain() or ()) if der != own))


def verified_certificates(secured: ssl.SSLObject) -> tuple[bytes, ...]:
    """The verified chain, DER, from the peer's certificate to a trusted one; empty in a resumed session."""
    chain = getattr(secured, "get_verified_chain", None) or secured._sslobj.get_verified_chain  # type: ignore[attr-defined]  # noqa: SLF001
    return tuple(map(_certificate_der, chain() or ()))


def _certificate_der(certificate: Any) -> bytes:
    """The certificate as DER: bytes since Python 3.13, an object with PEM before."""
    if isinstance(certificate, bytes):
        return certificate
    return ssl.PEM_cert_to_DER_cert(certificate.public_bytes())


class ServerContext(ssl.SSLContext):
    """A context whose connections keep the alert of a failed handshake and demand `PROTOCOL`."""

    sslobject_class = _ServerSslObject
    bundle: object = None
    """The client CA of the context, to compare it with the present one."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        connection = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(connection, _ServerSslObject):
            connection.incoming, connection.outgoing = incoming, outgoing
        return connection
