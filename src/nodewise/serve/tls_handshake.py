"""The two parts of a server's handshake that Python leaves out.

Python goes on without a protocol where client and server have none in common; RFC 7301 wants the handshake
refused. And asyncio and uvloop drop the TLS alert of a failed handshake, so that the client would see a
closed connection and no reason: here the alert is kept for the listener to send.
"""

import ssl
from collections.abc import Iterator
from typing import Any, Final

from nodewise.serve.close_reasons import NotOffered

PROTOCOL: Final = "http/1.1"

_RECORD: Final = 5  # bytes of a record's header
_MESSAGE: Final = 4  # bytes of a handshake message's header
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_ALPN: Final = 16
_LONGEST: Final = 2**16  # no client needs more; what is longer is left to OpenSSL
_NO_APPLICATION_PROTOCOL: Final = bytes((21, 3, 3, 0, 2, 2, 120))  # a fatal alert, RFC 7301 section 3.2


class Failed(ssl.SSLError):
    """A handshake failed: why, and the alert that the client should get (empty where there is none)."""

    def __init__(self, cause: ssl.SSLError, alert: bytes) -> None:
        super().__init__(*cause.args)
        self.cause = cause
        self.alert = alert


def _message(data: bytes) -> bytes | None:
    """The first handshake message, put together from its records; None while it is incomplete, or is none."""
    message = b""
    while len(data) >= _RECORD and data[0] == _HANDSHAKE:
        end = _RECORD + int.from_bytes(data[3:5], "big")
        message += data[_RECORD:end]
        data = data[end:]
        length = _MESSAGE + int.from_bytes(message[1:_MESSAGE], "big")
        if len(message) >= max(_MESSAGE, length):
            return message[:length]
    return None


def _cut(data: bytes, width: int) -> tuple[bytes, bytes]:
    """What a length of `width` bytes counts, and the rest."""
    end = width + int.from_bytes(data[:width], "big")
    return data[width:end], data[end:]


def _extensions(message: bytes) -> Iterator[tuple[int, bytes]]:
    rest = message[_MESSAGE + 2 + 32 :]  # after the message's header, the version and the random
    for width in (1, 2, 1):  # session id, cipher suites, compression methods
        _, rest = _cut(rest, width)
    extensions, _ = _cut(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2], "big")
        body, extensions = _cut(extensions[2:], 2)
        yield kind, body


def offered(data: bytes) -> tuple[bytes, ...] | None:
    """The application protocols that a ClientHello offers: () for none, None while it is incomplete.

    Never fails: what cannot be read is OpenSSL's to refuse.
    """
    message = _message(data)
    if message is None:
        return () if len(data) > _LONGEST or data[:1] not in (b"", bytes((_HANDSHAKE,))) else None
    if message[0] != _CLIENT_HELLO:
        return ()
    names = []
    for kind, body in _extensions(message):
        if kind == _ALPN:
            rest, _ = _cut(body, 2)
            while rest:
                name, rest = _cut(rest, 1)
                names.append(name)
    return tuple(names)


class _ServerSide(ssl.SSLObject):
    """A server's end of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    seen: bytes | None = b""  # what of the ClientHello came in so far; None when it was read

    def do_handshake(self) -> None:
        try:
            if self.seen is not None:
                self._check_protocol()
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            raise Failed(error, self.outgoing.read()) from error

    def _check_protocol(self) -> None:
        data = self.incoming.read()
        self.incoming.write(data)
        self.seen = (self.seen or b"") + data
        names = offered(self.seen)
        if names is None:
            return
        self.seen = None
        if names and PROTOCOL.encode() not in names:
            self.outgoing.write(_NO_APPLICATION_PROTOCOL)
            raise NotOffered(
                1, f"the client offers only {', '.join(name.decode('latin-1') for name in names)}"
            )


def chain_of(secured: ssl.SSLObject) -> tuple[bytes, ...]:
    """What the other side sent, DER, its own certificate first; empty without one."""
    own = secured.getpeercert(binary_form=True)
    if own is None:
        return ()
    # public since Python 3.13, and before it only one level below
    ask = getattr(secured, "get_unverified_chain", None) or secured._sslobj.get_unverified_chain  # type: ignore[attr-defined]  # noqa: SLF001
    return (own, *(one for one in map(_der, ask() or ()) if one != own))


def _der(certificate: Any) -> bytes:
    """Bytes since Python 3.13, an object that gives PEM before it."""
    if isinstance(certificate, bytes):
        return certificate
    return ssl.PEM_cert_to_DER_cert(certificate.public_bytes())


class ServerContext(ssl.SSLContext):
    """A context whose connections keep the alert of a failed handshake and insist on `PROTOCOL`."""

    sslobject_class = _ServerSide
    bundle: object = None
    """What it trusts, as whoever made it keeps it."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _ServerSide):
            made.incoming, made.outgoing = incoming, outgoing
        return made
