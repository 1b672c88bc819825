"""The real `nodewise extender` behind mutual TLS, its resource usage, and clients that send arbitrary bytes."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.cluster.namespace_sandboxes import wait
from tests.forked_commands import NODEWISE, ForkedProcess
from tests.unit.server.certificate_files import ServerCertificateFiles

PATIENCE_S = 60.0
"""Deadline in seconds for a response. It suits a loaded machine and is no performance limit."""
JSON = {"Content-Type": "application/json"}


class RawResponse(NamedTuple):
    """A response. `closes` is True if the server closes the connection after it."""

    status: int
    headers: dict[str, str]
    body: bytes
    closes: bool

    def field(self) -> str:
        """The first field that a refusal names; empty if it names none."""
        problems = json.loads(self.body).get("problems") or [{"field": ""}]
        return str(problems[0]["field"])


class RawConnection:
    """A connection that sends and receives arbitrary bytes."""

    def __init__(self, opened: socket.socket) -> None:
        self.opened = opened

    def send(self, data: bytes) -> None:
        """Sends the data, or less if the other side closes the connection early."""
        try:
            self.opened.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            return

    def answer(self, method: str = "POST") -> RawResponse | None:
        """The next response; None if the connection was closed instead."""
        response = http.client.HTTPResponse(self.opened, method=method)
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, ConnectionError, ssl.SSLError):
            return None
        headers = {name.lower(): value for name, value in response.getheaders()}
        return RawResponse(response.status, headers, body, response.will_close)

    def ask(
        self, path: str, body: bytes, method: str = "POST", headers: dict[str, str] | None = None
    ) -> RawResponse:
        self.send(request(path, body, method, headers))
        answer = self.answer(method)
        assert answer is not None, f"no answer to {method} {path[:80]} with {body[:200]!r}"
        return answer

    def is_open(self) -> bool:
        """Whether the server has not closed the connection. Received data is discarded."""
        self.opened.setblocking(False)
        try:
            while True:
                if not self.opened.recv(65536):
                    return False
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            self.opened.settimeout(PATIENCE_S)

    def close(self) -> None:
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(path: str, body: bytes, method: str = "POST", headers: dict[str, str] | None = None) -> bytes:
    """A complete request with the correct Content-Length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: extender", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (JSON if headers is None else headers).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class AttackedExtender:
    """The extender process. `options` are additional flags; those for certificates, address and ports are set."""

    def __init__(self, folder: Path, options: Sequence[object]) -> None:
        self.certificates = ServerCertificateFiles(folder)
        self._context = self.certificates.context()
        certificates = self.certificates
        fixed = {
            "--cert": certificates.cert,
            "--key": certificates.key,
            "--client-ca": certificates.ca,
            "--address": "127.0.0.1",
            "--connection-age": "1h",  # a connection must last as long as its tests
        }
        ports = {"--port": 0, "--health-port": 0, "--log-format": "json", "--shutdown-delay": "0s"}
        words = [str(part) for pair in {**fixed, **ports}.items() for part in pair]
        self.process = ForkedProcess(
            [NODEWISE, "extender", *words, *map(str, options)], folder / "extender.log"
        )

    def __enter__(self) -> Self:
        try:
            self.process.wait_ready(self._is_ready, PATIENCE_S)
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def _is_ready(self) -> bool:
        for started in self.events("started"):
            self.port = int(started["address"].rpartition(":")[2])
            self.health_port = int(started["health"].rpartition(":")[2])
            with self.admin() as line:
                return line.ask("/readyz", b"", "GET", {}).status == 200
        return False

    # Log, metrics and resource usage

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = (
            line for line in self.process.log.read_text(errors="replace").splitlines() if line.startswith("{")
        )
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def metric(self, name: str) -> float:
        """The value of a metric, summed over its labels."""
        with self.admin() as line:
            text = line.ask("/metrics", b"", "GET", {}).body.decode()
        return sum(
            float(value) for value in re.findall(rf"^nodewise_{name}(?:{{.*}})? (.+)$", text, re.MULTILINE)
        )

    def rss_mib(self) -> float:
        """The resident memory in MiB."""
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert match
        return int(match[1]) / 1024

    def descriptors(self) -> int:
        """The number of open file descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def cpu_ms(self) -> float:
        """The CPU time of the event loop's thread in milliseconds, independent of other programs on the machine."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e6

    # Connections and calls

    def plain(self) -> socket.socket:
        """A TCP connection before its TLS handshake."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def line(self) -> RawConnection:
        """A TLS connection with a client certificate, like that of kube-scheduler."""
        return RawConnection(self._context.wrap_socket(self.plain(), server_hostname="localhost"))

    def admin(self) -> RawConnection:
        """A connection to the admin port."""
        return RawConnection(socket.create_connection(("127.0.0.1", self.health_port), PATIENCE_S))

    def until(self, what: str, see: Callable[[], Any]) -> Any:
        """The first result of `see` that is true; fails with the end of the log after a deadline."""
        return wait(what, lambda: see() or None, PATIENCE_S, self.process.tail)

    def filter(self, names: Iterable[str], policy: str = "demo") -> RawResponse:
        """Sends a valid filter call on a new connection."""
        with self.line() as line:
            return line.ask("/scheduler/filter", candidates(names, policy))


def pod(policy: str | None = "demo", name: str = "p") -> dict[str, Any]:
    """A pod in the namespace `d`."""
    labels = {} if policy is None else {"telemetry-policy": policy}
    return {"metadata": {"name": name, "namespace": "d", "uid": "u", "labels": labels}}


def candidates(names: Iterable[str], policy: str | None = "demo") -> bytes:
    """The body of a filter or prioritize call with node names."""
    return json.dumps(
        {"Pod": pod(policy), "Nodes": None, "NodeNames": list(names)}, separators=(",", ":")
    ).encode()
