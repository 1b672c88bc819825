import errno
import socket
import ssl

import httpx2
import pytest

from nodewise.scheduling_model import go_http_error_texts

URL = httpx2.URL("http://127.0.0.1:9/filter")


def chained(error: httpx2.RequestError, cause: Exception) -> httpx2.RequestError:
    error.__cause__ = cause
    return error


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "said")
    error.reason = reason
    return error


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "said")
    error.verify_code, error.verify_message = code, message
    return error


REFUSED = OSError(errno.ECONNREFUSED, "refused")
UNKNOWN = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
FAILURES: dict[str, tuple[httpx2.RequestError, str]] = {
    "nobody listens": (
        chained(httpx2.ConnectError(""), REFUSED),
        "dial tcp 127.0.0.1:9: connect: connection refused",
    ),
    "no such name": (
        chained(httpx2.ConnectError(""), socket.gaierror(-2, "unknown")),
        "dial tcp: lookup 127.0.0.1: no such host",
    ),
    "a broken pipe": (
        chained(httpx2.WriteError(""), OSError(errno.EPIPE, "pipe")),
        "write tcp 127.0.0.1:9: write: broken pipe",
    ),
    "no answer in time": (
        httpx2.ReadTimeout(""),
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
    ),
    "an end instead of an answer": (httpx2.RemoteProtocolError("Server disconnected"), "EOF"),
    "something else than HTTP": (
        httpx2.RemoteProtocolError("illegal status line"),
        "net/http: HTTP/1.x transport connection broken: malformed HTTP response",
    ),
    "a CA that we do not know": (chained(httpx2.ConnectError(""), unverified(20, "unable")), UNKNOWN),
    "a certificate of its own": (chained(httpx2.ConnectError(""), unverified(18, "self-signed")), UNKNOWN),
    "a certificate that is over": (
        chained(httpx2.ConnectError(""), unverified(10, "certificate has expired")),
        "tls: failed to verify certificate: x509: certificate has expired",
    ),
    "a server that wants a certificate": (
        chained(httpx2.ReadError(""), tls("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
        "remote error: tls: certificate required",
    ),
    "a server without TLS": (
        chained(httpx2.ConnectError(""), tls("WRONG_VERSION_NUMBER")),
        "http: server gave HTTP response to HTTPS client",
    ),
    "another trouble of TLS": (
        chained(httpx2.ConnectError(""), tls("NO_SHARED_CIPHER")),
        "tls: no shared cipher",
    ),
}


@pytest.mark.parametrize(("error", "message"), FAILURES.values(), ids=FAILURES)
def test_go_s_words(error: httpx2.RequestError, message: str) -> None:
    assert go_http_error_texts.go_error_text(error, URL) == message


def every(kind: type[httpx2.RequestError]) -> list[type[httpx2.RequestError]]:
    return [kind, *(subclass for below in kind.__subclasses__() for subclass in every(below))]


@pytest.mark.parametrize("kind", every(httpx2.RequestError))
def test_no_failure_of_the_library_is_without_words(kind: type[httpx2.RequestError]) -> None:
    assert go_http_error_texts.go_error_text(kind("some trouble"), URL)
