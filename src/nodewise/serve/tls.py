"""The TLS of our own ports: one context of the certificate and the client CA in use, and who may stay.

Each change of the files makes a new context; one in use is never changed. `load_cert_chain` on a live
context would take the new certificate and then stumble over the old key, in the middle of a rotation. The
listener asks for `context` at each connection, so a client that sends no server name gets the new one like
any other, and sessions of an old context cannot be resumed in a new one.

The pair and the client CA are kept apart: a CA that was taken away is not trusted any longer, whatever is
wrong with the pair.
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
from nodewise.serve import pem
from nodewise.serve.certificates import Kept
from nodewise.serve.options import ServeOptions
from nodewise.serve.pem import Bundle, Pair
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


def _context(pair: Pair, bundle: Bundle | None) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([PROTOCOL])
    # With a ticket a client would come back in after its CA was taken away: resumption verifies nothing. What
    # TLS 1.2 resumes by a session's id OpenSSL keeps in the context, so that it ends with it; see `client_authorizer`.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if bundle is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A certificate in the bundle is trusted as it is, so that a bundle of intermediates works as in Go.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        pem.trust(context, bundle.authorities)
    pem.load(context, pair.certificate, pair.key)
    context.bundle = bundle
    return context


def admits(authorities: Sequence[x509.Certificate], chain: Sequence[bytes], now_s: float) -> bool:
    """Does a client's certificate come from these authorities, and is it valid now?

    `chain` is what the client sent, DER, its own certificate first. OpenSSL found it genuine and fit for a
    client in the handshake; only whom we trust has changed since. So what is asked here is who signed, and when.
    """
    try:
        leaf, *others = map(x509.load_der_x509_certificate, chain)
    except ValueError:
        return False
    reached, between = leaf, others
    for _ in range(_LONGEST):
        if not _is_valid(reached, now_s):
            return False
        if reached in authorities or _issuer(reached, authorities, now_s):
            return True
        issuer = _issuer(reached, between, now_s)
        if issuer is None:
            return False
        reached, between = issuer, [one for one in between if one != issuer]
    return False


def _issuer(
    certificate: x509.Certificate, candidates: Iterable[x509.Certificate], now_s: float
) -> x509.Certificate | None:
    """Which of these authorities signed it."""
    return next((one for one in candidates if _signed(certificate, one) and _is_valid(one, now_s)), None)


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
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
    """When a certificate ends, in seconds since 1970; never, where that cannot be read."""
    try:
        return x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()
    except ValueError:
        return float("inf")


class Tls:
    """The certificates in use. `poll` is called every second or so; between two calls nothing changes."""

    def __init__(
        self,
        options: ServeOptions,
        meters: MetricsRegistry,
        clock: Clock = _SYSTEM,
        *,
        verify_clients: bool = True,
    ) -> None:
        """BadSettings that names every problem of the three files; no client certificate is requested without
        `verify_clients`.
        """
        self._clock = clock
        now_s = clock.now()
        problems: list[Problem] = []
        try:
            self._pair = Kept("serving", {"cert": options.cert, "key": options.key}, pem.pair, meters, now_s)
        except BadSettings as error:
            problems.extend(error.problems)
        self._bundle: Kept[Bundle] | None = None
        try:
            if verify_clients:
                self._bundle = Kept("client_ca", {"client_ca": options.client_ca}, pem.bundle, meters, now_s)
        except BadSettings as error:
            problems.extend(error.problems)
        if problems:
            raise BadSettings("TLS cannot be served", problems)
        self._context = self._made()

    def _made(self) -> ServerContext:
        return _context(self._pair.value, self._bundle.value if self._bundle is not None else None)

    @property
    def context(self) -> ServerContext:
        """The context for the next connection."""
        return self._context

    def admits(self, chain: Sequence[bytes], context: ssl.SSLContext | None = None) -> bool:
        """Does a client's certificate, DER, its chain after it, come from the client CA as it is now?

        `context` is that of a handshake which is just over: where it had the present CA, nothing is left to ask.
        """
        if self._bundle is None or (
            isinstance(context, ServerContext) and context.bundle is self._bundle.value
        ):
            return True
        return admits(self._bundle.value.authorities, chain, self._clock.now())

    def poll(self) -> bool:
        """Read the files again where they changed; True when the client CA is another one now."""
        now_s = self._clock.now()
        renewed = self._pair.look(now_s)
        swapped = self._bundle is not None and self._bundle.look(now_s)
        if renewed or swapped:
            self._context = self._made()
        return swapped
