"""Clients that resume the TLS session of an earlier connection."""

import shutil
import socket
import ssl
import subprocess
from urllib.parse import urlsplit

from tests.cluster import skip_conditions, steady_filter_calls
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.steady_filter_calls import ClientIdentity

RESUMED, SERVED, REFUSED = "resumed", "a whole new handshake", "refused"


class ResumingClient:
    """A client that reuses the TLS session of its first connection, with Python's `ssl` and with `openssl s_client`."""

    def __init__(self, nodewise: ExtenderProcess, identity: ClientIdentity, version: ssl.TLSVersion) -> None:
        self._nodewise = nodewise
        self._identity = identity
        self._version = version
        self._context = identity.context(version)
        self._port = urlsplit(nodewise.url).port or 0
        self._file = identity.pair.cert.with_name(f"{version.name}.session")
        answer, _, self._session = resumed(self._context, self._port)
        assert answer.startswith(b"HTTP/1.1 200")
        assert "HTTP/1.1 200" in self._s_client("-sess_out", str(self._file))

    def tries(self) -> str:
        """Tries to resume the session. Returns RESUMED, SERVED or REFUSED."""
        try:
            answer, reused, _ = resumed(self._context, self._port, self._session)
        except OSError:
            answer, reused = b"", False
        output = self._s_client("-sess_in", str(self._file)) if self._file.exists() else ""
        both = {answer.startswith(b"HTTP/1.1 200"), *(["HTTP/1.1 200" in output] if output else [])}
        assert len(both) == 1, f"Python's client and OpenSSL's differ: {answer!r}, {output}"
        if both == {False}:
            return REFUSED
        return RESUMED if reused or "Reused, " in output else SERVED

    def _s_client(self, *more: str) -> str:
        program = shutil.which("openssl") or skip_conditions.not_run(
            "openssl is not installed: `apt install openssl`"
        )
        flag = {"TLSv1_2": "-tls1_2", "TLSv1_3": "-tls1_3"}[self._version.name]
        pair = self._identity.pair
        files = ["-cert", pair.cert, "-key", pair.key, "-CAfile", self._identity.trusted]
        command = [
            program,
            "s_client",
            "-connect",
            f"127.0.0.1:{self._port}",
            flag,
            *files,
            *more,
            "-ign_eof",
        ]
        completed = subprocess.run(
            list(map(str, command)), input=REQUEST, capture_output=True, timeout=60, check=False
        )
        return (completed.stdout + completed.stderr).decode(errors="replace")


REQUEST = b"\r\n".join(
    [
        b"POST /scheduler/filter HTTP/1.1",
        b"Host: nodewise",
        b"Connection: close",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(steady_filter_calls.CALL),
        b"",
        steady_filter_calls.CALL,
    ]
)


def resumed(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None = None
) -> tuple[bytes, bool, ssl.SSLSession | None]:
    """Sends a call on a new connection. Returns the first bytes of the response, whether the session was resumed, and
    the session.
    """
    with (
        socket.create_connection(("127.0.0.1", port), 30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as secured,
    ):
        secured.sendall(REQUEST)
        return secured.recv(12), bool(secured.session_reused), secured.session
