"""Error texts of Go's HTTP client for failed calls; kube-scheduler writes them into a pod's condition.

Observed with kube-scheduler 1.36.3. Local ports, addresses of name servers, and names and dates of certificates, which
Go adds, are unknown to the simulation and omitted; a connection reset looks like an end of file (EOF).
"""

import os
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import httpx2

_TIMEOUT: Final = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
LATE_BODY: Final = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
"""The body did not arrive completely within the timeout."""

SHORT_BODY: Final = "unexpected EOF"
"""The server closed the connection before the end of its response."""

_MALFORMED: Final = "net/http: HTTP/1.x transport connection broken: malformed HTTP response"

_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for a certificate that no trusted CA signed."""

_TLS_TEXTS: Final = {
    "CERTIFICATE_REQUIRED": "remote error: tls: certificate required",
    "UNKNOWN_CA": "remote error: tls: unknown certificate authority",
    "BAD_CERTIFICATE": "remote error: tls: bad certificate",
    "CERTIFICATE_UNKNOWN": "remote error: tls: unknown certificate",
    "CERTIFICATE_EXPIRED": "remote error: tls: expired certificate",
    "HANDSHAKE_FAILURE": "remote error: tls: handshake failure",
    "PROTOCOL_VERSION": "remote error: tls: protocol version not supported",
    "WRONG_VERSION_NUMBER": "http: server gave HTTP response to HTTPS client",
    "RECORD_LAYER_FAILURE": "http: server gave HTTP response to HTTPS client",
}


def go_error_text(error: httpx2.RequestError, url: httpx2.URL) -> str:
    """The text after `Post "<url>": ` for a call without a response."""
    if isinstance(error, httpx2.TimeoutException):
        return _TIMEOUT
    for cause in _exception_chain(error):
        if isinstance(cause, ssl.SSLError):
            return _tls_error_text(cause)
        if isinstance(cause, socket.gaierror):
            return f"dial tcp: lookup {url.host}: no such host"
        if isinstance(cause, OSError) and cause.errno:
            return _os_error_text(error, cause.errno, url)
    return "EOF" if "disconnected" in str(error) else _MALFORMED


def _exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _os_error_text(error: httpx2.RequestError, errno: int, url: httpx2.URL) -> str:
    message = os.strerror(errno).lower()
    if isinstance(error, httpx2.ConnectError):
        return f"dial tcp {_resolved_host_and_port(url)}: connect: {message}"
    operation = "write" if isinstance(error, httpx2.WriteError) else "read"
    return f"{operation} tcp {_resolved_host_and_port(url)}: {operation}: {message}"


def _resolved_host_and_port(url: httpx2.URL) -> str:
    """The resolved address, because Go's message contains the address that it dialled."""
    port = url.port or (443 if url.scheme == "https" else 80)
    address = socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)[0]
    host = f"[{address[4][0]}]" if address[0] == socket.AF_INET6 else address[4][0]
    return f"{host}:{port}"


def _tls_error_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        unknown = error.verify_code in _UNKNOWN_AUTHORITY
        why = "certificate signed by unknown authority" if unknown else error.verify_message
        return f"tls: failed to verify certificate: x509: {why}"
    reason = error.reason or ""
    matches = (text for name, text in _TLS_TEXTS.items() if reason.endswith(name))
    return next(matches, f"tls: {reason.lower().replace('_', ' ')}")
