"""Reasons for which the server refuses or closes a connection: the table, the counter, the log line.

A client whose handshake fails sees little more than a closed connection, so the server logs the reason.
"""

import ssl
from collections.abc import Mapping
from typing import Final

from nodewise.base.clock import Clock
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

REASONS: Final[dict[str, str]] = {
    # between accept and the end of the handshake
    "no_certificate": "The client sent no certificate: give kube-scheduler tlsConfig.certFile and keyFile.",
    "unknown_ca": "The client's certificate does not come from the client CA.",
    "expired": "The client's certificate, or its CA's, is expired or not valid yet.",
    "purpose": "The client's certificate is not for client authentication (extended key usage clientAuth).",
    "certificate": "The client's certificate is not accepted for the reason in detail.",
    "protocol_version": "The client offers no TLS 1.2 or later.",
    "cipher": "The client offers no cipher suite that we serve (AES-256-GCM with ECDHE).",
    "alpn": "The client offers protocols, but not http/1.1.",
    "distrusted": "The client refused our certificate: the CA or the name in it is not what it expects.",
    "plain_http": "The client speaks HTTP to a port that serves HTTPS: write https:// in its configuration.",
    "handshake_deadline": "The client did not finish the TLS handshake in time.",
    "handshake": "The TLS handshake failed.",
    "abandoned": "The client left in the middle of the handshake; some do so where they distrust a certificate.",
    "closed_early": "The client closed the connection without sending anything; a TCP probe does that.",
    "too_many": "More connections than max_connections or max_handshakes.",
    # the certificate is valid, but
    "client_name": "The client's certificate lacks a name of --client-name or the usage clientAuth; see `detail`.",
    "ca_certificate": "The client presents a CA certificate and refuse_ca_client is set.",
    "client_ca_changed": "The client's certificate does not come from the new client CA.",
    # after the handshake
    "bad_request": "What the client sent is not HTTP/1.1.",
    "header_size": "The request header is longer than header_bytes.",
    "header_deadline": "The request header was not complete within header_timeout_s.",
    "body_deadline": "The request body stopped for body_idle_timeout_s, or took longer than body_timeout_s.",
    "answer_deadline": "The client did not read its answer within answer_timeout_s.",
    "pipelined": "The client sent more requests ahead than max_pipelined.",
}

# Port scans and health probes are counted, not logged.
_SILENT: Final = frozenset({"closed_early"})

_SSL_REASONS: Final[dict[str, str]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "UNSUPPORTED_PROTOCOL": "protocol_version",
    "VERSION_TOO_LOW": "protocol_version",
    "NO_SHARED_CIPHER": "cipher",
    "NO_APPLICATION_PROTOCOL": "alpn",
}

# X509_V_ERR_… of OpenSSL
_VERIFY_CODES: Final[dict[int, str]] = {
    **dict.fromkeys((2, 7, 18, 19, 20, 21), "unknown_ca"),
    **dict.fromkeys((9, 10), "expired"),
    26: "purpose",
}

LOG_EVERY_S: Final = 10.0


class ProtocolNotOffered(ssl.SSLError):
    """The client offers application protocols, and http/1.1 is not among them."""


def close_reason_of_error(error: OSError) -> str:
    """The key of REASONS for the error of a handshake."""
    if isinstance(error, ProtocolNotOffered):
        return "alpn"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY_CODES.get(error.verify_code, "certificate")
    if isinstance(error, ssl.SSLError):
        text = getattr(error, "reason", None) or ""  # None if Python code raised it
        return _SSL_REASONS.get(text, "distrusted" if "_ALERT_" in text else "handshake")
    return "handshake_deadline" if isinstance(error, (ConnectionAbortedError, TimeoutError)) else "abandoned"


class CloseReasons:
    """Counts closed connections by reason; logs the first of a reason at once, then one in `LOG_EVERY_S`."""

    def __init__(
        self, metrics_registry: MetricsRegistry, clock: Clock, reasons: Mapping[str, str] = REASONS
    ) -> None:
        self._metrics_registry = metrics_registry
        self._clock = clock
        self._reasons = reasons
        self._next_s: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def record(self, reason: str, peer: str, detail: str = "") -> None:
        """Count the closed connection of `peer`, host:port or a name. KeyError for an unknown reason."""
        remedy = self._reasons[reason]
        self._metrics_registry.count("connections_ended_total", reason=reason)
        if reason in _SILENT:
            return
        now_s = self._clock.monotonic()
        if now_s < self._next_s.get(reason, now_s):
            self._unlogged[reason] += 1
            return
        self._next_s[reason] = now_s + LOG_EVERY_S
        unlogged = self._unlogged.get(reason, 0)
        self._unlogged[reason] = 0
        logs.emit(
            "connection_ended", reason=reason, peer=peer, detail=detail, remedy=remedy, unlogged=unlogged
        )
