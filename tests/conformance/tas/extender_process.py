"""One real `nodewise extender` with mutual TLS, and its clients."""

import http.client
import json
import socket
import ssl
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.conformance.tas.case_table_rows import ClientConnection, HttpCall
from tests.forked_commands import NODEWISE, ForkedProcess
from tests.unit.server.certificate_files import NAMES, ServerCertificateFiles

PATIENCE_S = 120.0
_VERSIONS = {"1.1": ssl.TLSVersion.TLSv1_1, "1.2": ssl.TLSVersion.TLSv1_2}


class CaseResponse(NamedTuple):
    """The response to one request."""

    status: int
    content_type: str
    body: bytes
    protocol: str | None = None
    """The application protocol that the TLS handshake negotiated."""


class ClosedConnection(NamedTuple):
    """The data that a client received before the server closed the connection, and when it was closed."""

    after_s: float
    data: bytes


class CaseExtender:
    """The extender process of all cases. It runs while the context is open."""

    first: CaseResponse
    """The response to the first request after the process became ready."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.objects.mkdir()
        self._folder = folder
        self._certificates = ServerCertificateFiles(folder)
        # the cipher suites of the table are those of an RSA key
        self._certificates.write(
            self._certificates.server_ca.issue_cert(*NAMES, key_type=trustme.KeyType.RSA)
        )
        self._threads = ThreadPoolExecutor(16)
        self._scheduler: http.client.HTTPSConnection | None = None

    def __enter__(self) -> Self:
        certificates = self._certificates
        files = {"--objects-from": self.objects, "--cert": certificates.cert, "--key": certificates.key}
        words = {"-cacert": certificates.ca, "--address": "127.0.0.1", "--port": 0, "--health-port": 0}
        how = {"--sync-period": "300ms", "--log-format": "json", "--shutdown-delay": "0s"}
        options = [str(part) for pair in {**files, **words, **how}.items() for part in pair]
        self._process = ForkedProcess([NODEWISE, "extender", *options], self._folder / "extender.log")
        try:
            self._process.wait_ready(self._is_ready, PATIENCE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        self._process.stop()
        self._threads.shutdown()

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of one event in the log."""
        lines = (line for line in self._process.log.read_text().splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def _is_ready(self) -> bool:
        started = self.events("started")
        if not started:
            return False
        self._port = int(started[0]["address"].rpartition(":")[2])
        self._health_port = int(started[0]["health"].rpartition(":")[2])
        return self._admin_response("/readyz").status == 200

    def _admin_response(self, path: str) -> CaseResponse:
        """A response of the admin port."""
        connection = http.client.HTTPConnection("127.0.0.1", self._health_port, timeout=PATIENCE_S)
        try:
            return _answered(connection, HttpCall(method="GET", path=path), b"")
        finally:
            connection.close()

    def ask(self, path: str, body: bytes) -> CaseResponse:
        """Send a request on the connection that all these requests share, like those of kube-scheduler."""
        if self._scheduler is None:
            self._scheduler = self._connected(ClientConnection())
        return _answered(self._scheduler, HttpCall(path=path), body)

    def call(self, connect: ClientConnection, call: HttpCall, body: bytes) -> CaseResponse:
        """Send a request on a new connection."""
        connection = self._connected(connect)
        try:
            return _answered(connection, call, body)
        finally:
            connection.close()

    def listen(self, connect: ClientConnection) -> Future[ClosedConnection]:
        """Send the client's bytes and receive until the server closes the connection, in a background thread."""
        return self._threads.submit(self._listen, connect)

    def _listen(self, connect: ClientConnection) -> ClosedConnection:
        began = time.monotonic()
        with self._opened(connect) as opened:
            opened.sendall((connect.send or "").encode())
            data = b"".join(iter(lambda: opened.recv(65536), b""))
        return ClosedConnection(time.monotonic() - began, data)

    def refusal(self, connect: ClientConnection) -> str:
        """The TLS alert that ends the handshake, in words; empty if the handshake succeeds.

        The client reads before it writes: with TLS 1.3 its side of the handshake ends before the server's, and a
        request sent into a closed connection would hide the alert.
        """
        try:
            with self._opened(connect) as opened:
                opened.recv(1)
        except ssl.SSLError as error:
            return str(error).replace("_", " ").lower()
        return ""

    def _opened(self, connect: ClientConnection) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
        if connect.plain:
            return plain
        try:
            return self._context(connect).wrap_socket(plain, server_hostname="localhost")
        except ssl.SSLError:
            plain.close()
            raise

    def _connected(self, connect: ClientConnection) -> http.client.HTTPSConnection:
        context = self._context(connect)
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=PATIENCE_S, context=context)

    def _context(self, connect: ClientConnection) -> ssl.SSLContext:
        context = self._shown(connect.client)
        if connect.version:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                context.minimum_version = context.maximum_version = _VERSIONS[connect.version]
            context.set_ciphers(connect.ciphers or "ALL:@SECLEVEL=0")
        if connect.protocols:
            context.set_alpn_protocols(list(connect.protocols))
        return context

    def _shown(self, client: str) -> ssl.SSLContext:
        if client == "ca":
            return self._certificates.ca_as_client()
        if client == "server-auth-only":
            return self._certificates.odd_client(usage=ExtendedKeyUsageOID.SERVER_AUTH)
        return self._certificates.context()


def _answered(connection: http.client.HTTPConnection, call: HttpCall, body: bytes) -> CaseResponse:
    connection.putrequest(call.method, call.path, skip_accept_encoding=True)
    if call.content_type is not None:
        connection.putheader("Content-Type", call.content_type)
    if call.chunked:
        connection.putheader("Transfer-Encoding", "chunked")
    elif body or call.method == "POST":
        declared = len(body) if call.declared_bytes is None else call.declared_bytes
        connection.putheader("Content-Length", str(declared))
    pieces = None if call.declared_bytes is not None else [body[:9], body[9:]] if call.chunked else body
    connection.endheaders(pieces, encode_chunked=call.chunked)
    secured = isinstance(connection.sock, ssl.SSLSocket)
    protocol = connection.sock.selected_alpn_protocol() if secured else None
    with connection.getresponse() as response:
        return CaseResponse(
            response.status, response.getheader("Content-Type", ""), response.read(), protocol
        )
