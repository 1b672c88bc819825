"""The certificates of a server, and verification of open connections after a change of the client CA.

Each change of the files makes a new context, because `load_cert_chain` on a live one would mix a new certificate with
the old key; sessions of an old context cannot be resumed in a new one. The pair and the client CA are read separately:
a removed CA is no longer trusted even if the pair cannot be read.
"""

import ssl
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509

from nodewise.base.clock import Clock, SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.options import ServeOptions
from nodewise.server.server_tls_context import PROTOCOL, ServerContext
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateBundle, ReloadableFiles, X509KeyPair
from nodewise.tls.x509_certificates import UNREADABLE_CERTIFICATE, is_issued_by, is_marked_as_ca

_CIPHERS: Final = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"  # of TLS 1.2; 1.3 has its own
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
        certificate_files.add_trusted_certificates(context, bundle.authorities())
    certificate_files.load_pair_into_ssl_context(context, pair.certificate, pair.key)
    context.bundle = bundle
    return context


def admits(authorities: Sequence[x509.Certificate], chain: Sequence[bytes], now_s: float) -> bool:
    """Whether a client's certificate comes from these authorities and is valid now.

    `chain` is what the client sent, DER, its own certificate first. OpenSSL verified signatures and purpose in the
    handshake; only the trusted authorities have changed since, so issuers and dates are checked again.
    """
    if not (certificates := _load_certificates(chain)):
        return False
    leaf, *others = certificates
    # All issuers are followed: an authority that two roots have signed has two certificates with the same name and key.
    reached, between = [leaf], others
    for _ in range(_LONGEST):
        valid = [certificate for certificate in reached if _is_valid(certificate, now_s)]
        if any(known in authorities or _issuers(known, authorities, now_s) for known in valid):
            return True
        reached = [issuer for certificate in valid for issuer in _issuers(certificate, between, now_s)]
        between = [certificate for certificate in between if certificate not in reached]
    return False


def _load_certificates(chain: Sequence[bytes]) -> list[x509.Certificate]:
    """The decoded certificates; none if one of them cannot be read."""
    try:
        return [*map(x509.load_der_x509_certificate, chain)]
    except UNREADABLE_CERTIFICATE:
        return []


def _issuers(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate], now_s: float
) -> list[x509.Certificate]:
    """The authorities among these that signed the certificate."""
    return [
        issuer
        for issuer in candidates
        if is_issued_by(certificate, issuer) and is_marked_as_ca(issuer) and _is_valid(issuer, now_s)
    ]


def _is_valid(certificate: x509.Certificate, now_s: float) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin.timestamp() <= now_s <= end.timestamp()


@lru_cache(maxsize=64)
def _end_s(der: bytes) -> float:
    """The end of a certificate in seconds since 1970; infinite if it cannot be read."""
    try:
        return x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()
    except UNREADABLE_CERTIFICATE:
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
        now_s, authorities = self._clock.now(), self._bundle.value.authorities()
        if certificates := _load_certificates(verified):
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

    @staticmethod
    def earliest_end_s(certificates: Iterable[bytes]) -> float | None:
        """The earliest end of these certificates, DER, in seconds since 1970; None if there are none."""
        return min(map(_end_s, certificates), default=None)
