"""The TLS context of a server, and verification of open connections after a change of the client CA.

Each change of the files makes a new context; one in use is never changed: `load_cert_chain` on a live context would
take the new certificate and then fail with the old key in the middle of a rotation. The listener takes `context` for
each connection, so a client that sends no server name gets the new one as well, and sessions of an old context cannot
be resumed in a new one.

The pair and the client CA are read separately: a removed CA is no longer trusted even if the pair cannot be read.
"""

import ssl
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from nodewise.clock import Clock, SystemClock
from nodewise.errors import BadSettings, Problem
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve import pem_files
from nodewise.serve.certificate_reloader import ReloadableFiles
from nodewise.serve.options import ServeOptions
from nodewise.serve.pem_files import CertificateBundle, X509KeyPair
from nodewise.serve.tls_handshake import PROTOCOL, ServerContext

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
    context.num_tickets = 0
    if bundle is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A certificate in the bundle is trusted as it is, so that a bundle of intermediates works as in Go.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        pem_files.add_trusted_certificates(context, bundle.authorities)
    pem_files.load_pair_into_ssl_context(context, pair.certificate, pair.key)
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
    reached, between = leaf, others
    for _ in range(_LONGEST):
        if not _is_valid(reached, now_s):
            return False
        if reached in authorities or _find_issuer(reached, authorities, now_s):
            return True
        issuer = _find_issuer(reached, between, now_s)
        if issuer is None:
            return False
        reached, between = issuer, [certificate for certificate in between if certificate != issuer]
    return False


def _find_issuer(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate], now_s: float
) -> x509.Certificate | None:
    """The authority that signed the certificate, if any of these did."""
    return next(
        (issuer for issuer in candidates if _is_signed_by(certificate, issuer) and _is_valid(issuer, now_s)),
        None,
    )


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
        now_s = clock.now()
        problems: list[Problem] = []
        try:
            self._pair = ReloadableFiles(
                "serving",
                {"cert": options.cert, "key": options.key},
                pem_files.read_certificate_and_key,
                metrics_registry,
                now_s,
            )
        except BadSettings as error:
            problems.extend(error.problems)
        self._bundle: ReloadableFiles[CertificateBundle] | None = None
        try:
            if verify_clients:
                self._bundle = ReloadableFiles(
                    "client_ca",
                    {"client_ca": options.client_ca},
                    pem_files.read_trusted_certificates,
                    metrics_registry,
                    now_s,
                )
        except BadSettings as error:
            problems.extend(error.problems)
        if problems:
            raise BadSettings("TLS cannot be served", problems)
        self._context = self._new_context()

    def _new_context(self) -> ServerContext:
        return _context(self._pair.value, self._bundle.value if self._bundle is not None else None)

    @property
    def context(self) -> ServerContext:
        """The context for the next connection."""
        return self._context

    def admits(self, chain: Sequence[bytes], context: ssl.SSLContext | None = None) -> bool:
        """Whether a client's certificate, DER, followed by its chain, comes from the present client CA.

        `context` is that of a handshake that has just ended: if it has the present CA, OpenSSL has verified it.
        """
        if self._bundle is None or (
            isinstance(context, ServerContext) and context.bundle is self._bundle.value
        ):
            return True
        return admits(self._bundle.value.authorities, chain, self._clock.now())

    def poll(self) -> bool:
        """Read changed files again; True if the client CA has changed."""
        now_s = self._clock.now()
        renewed = self._pair.poll(now_s)
        swapped = self._bundle is not None and self._bundle.poll(now_s)
        if renewed or swapped:
            self._context = self._new_context()
        return swapped
