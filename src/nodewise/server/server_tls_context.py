"""The TLS context of a server, and verification of open connections after a change of the client CA.

Each change of the files makes a new context, because `load_cert_chain` on a live one would mix a new certificate with
the old key; sessions of an old context cannot be resumed in a new one. The pair and the client CA are read separately:
a removed CA is no longer trusted even if the pair cannot be read.

`ServerContext` adds what Python leaves out of a handshake: it fails without a common application protocol, as RFC 7301
demands, and the alert of a failed handshake is kept for the listener, because asyncio and uvloop drop it.
"""

import ssl
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from nodewise.base.clock import Clock, SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.connection_close_reasons import ProtocolNotOffered
from nodewise.server.options import ServeOptions
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateBundle, ReloadableFiles, X509KeyPair

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


_CIPHERS: Final = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"  # of TLS 1.2; 1.3 has its own
_NOT_SIGNED: Final = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
)
_LONGEST: Final = 8  # authorities between a client and one that is trusted
_SYSTEM: Final = SystemClock()


def _context(pair: X509KeyPair, bundle: CertificateBundle | None) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([PROTOCOL])
    # With a ticket a client could resume its session after its CA was removed: resumption verifies nothing. OpenSSL
    # keeps sessions that TLS 1.2 resumes by id in the context, so they end with it; see `client_authorizer`.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    # All suites are strong. Go prefers AES-128-GCM, which takes 0.8 of the time of AES-256-GCM.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    if bundle is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A certificate in the bundle is trusted as it is, so that a bundle of intermediates works as in Go.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        certificate_files.add_trusted_certificates(context, bundle.authorities)
    certificate_files.load_pair_into_ssl_context(context, pair.certificate, pair.key)
    context.bundle = bundle
    return context


def admits(authorities: Sequence[x509.Certificate], chain: Sequence[bytes], now_s: float) -> bool:
    """Whether a client's certificate comes from these authorities and is valid now.

    `chain` is what the client sent, DER, its own certificate first. OpenSSL verified signatures and purpose in the
    handshake; only the trusted authorities have changed since, so issuers and dates are checked again.
    """
    try:
        leaf, *others = map(x509.load_der_x509_certificate, chain)
    except ValueError:
        return False
    # All issuers are followed: an authority that two roots have signed has two certificates with the same name and key.
    reached, between = [leaf], others
    for _ in range(_LONGEST):
        valid = [certificate for certificate in reached if _is_valid(certificate, now_s)]
        if any(known in authorities or _issuers(known, authorities, now_s) for known in valid):
            return True
        reached = [issuer for certificate in valid for issuer in _issuers(certificate, between, now_s)]
        between = [certificate for certificate in between if certificate not in reached]
    return False


def _issuers(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate], now_s: float
) -> list[x509.Certificate]:
    """The authorities among these that signed the certificate."""
    return [
        issuer for issuer in candidates if _is_signed_by(certificate, issuer) and _is_valid(issuer, now_s)
    ]


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
        return issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _NOT_SIGNED:
        return False


def _is_valid(certificate: x509.Certificate, now_s: float) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin.timestamp() <= now_s <= end.timestamp()


@lru_cache(maxsize=64)
def end_s(der: bytes) -> float:
    """The end of a certificate in seconds since 1970; infinite if it cannot be read."""
    try:
        return x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()
    except ValueError:
        return float("inf")


class CertificateChange(NamedTuple):
    """Which files have new content in use."""

    serving: bool
    client_ca: bool


class ServerCertificates:
    """The certificates in use. They change only in `poll`, which is called every second."""

    def __init__(
        self,
        options: ServeOptions,
        metrics_registry: MetricsRegistry,
        clock: Clock = _SYSTEM,
        *,
        verify_clients: bool = True,
    ) -> None:
        """BadSettings names every problem of the three files. Without `verify_clients`, no client certificate is
        requested.
        """
        self._clock = clock
        problems: list[Problem] = []
        pair_files, bundle_files = (
            {"cert": options.cert, "key": options.key},
            {"client_ca": options.client_ca},
        )
        read_pair = certificate_files.read_certificate_and_key
        read_bundle = certificate_files.read_trusted_certificates
        try:
            self._pair = ReloadableFiles("serving", pair_files, read_pair, metrics_registry, clock.now())
        except BadSettings as error:
            problems.extend(error.problems)
        self._bundle: ReloadableFiles[CertificateBundle] | None = None
        try:
            if verify_clients:
                self._bundle = ReloadableFiles(
                    "client_ca", bundle_files, read_bundle, metrics_registry, clock.now()
                )
        except BadSettings as error:
            problems.extend(error.problems)
        if problems:
            raise BadSettings("TLS cannot be served", problems)
        self._use_current_files()

    def _use_current_files(self) -> None:
        bundle = self._bundle.value if self._bundle is not None else None
        self._in_use = self._pair.value, bundle
        self.context = _context(self._pair.value, bundle)
        """The context for the next connection."""

    def admits(
        self, chain: Sequence[bytes], context: ssl.SSLContext | None = None, verified: Sequence[bytes] = ()
    ) -> bool:
        """Whether a client's certificate, DER, followed by its chain, comes from the present client CA.

        `context` is that of a handshake that has just ended: if it has the present CA, OpenSSL has verified it.
        `verified` is the chain that OpenSSL found in the handshake, up to a trusted certificate. It holds as long as
        that certificate is trusted, also where OpenSSL accepts what `admits` does not, such as names in another
        encoding.
        """
        if self._bundle is None or (
            isinstance(context, ServerContext) and context.bundle is self._bundle.value
        ):
            return True
        now_s, authorities = self._clock.now(), self._bundle.value.authorities
        if verified:
            certificates = [x509.load_der_x509_certificate(certificate) for certificate in verified]
            is_valid = all(_is_valid(certificate, now_s) for certificate in certificates)
            if is_valid and certificates[-1] in authorities:
                return True
        return admits(authorities, chain, now_s)

    def poll(self) -> CertificateChange:
        """Read changed files again. If this fails, the next call reports what has changed."""
        now_s = self._clock.now()
        self._pair.poll(now_s)
        if self._bundle is not None:
            self._bundle.poll(now_s)
        pair, bundle = self._in_use
        is_new_ca = self._bundle is not None and self._bundle.value != bundle
        change = CertificateChange(self._pair.value != pair, is_new_ca)
        if any(change):
            self._use_current_files()
        return change
