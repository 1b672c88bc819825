"""What port-forward does: the fake of it and a real kubelet with containerd pass this suite."""

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import Refused, Unavailable
from nodewise.kube import replicas
from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.replicas import PodPort
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.cluster import asgi_server_thread
from tests.cluster.fake_port_forward import FakePortForward

LARGE_BYTES = 300_000
"""More than fits into one message."""
TIMEOUT_S = 30.0


class PortForwardSuite:
    """`pod_port` is a port of a pod with an HTTP server: `/large` has `LARGE_BYTES` of `x`, and there is no `/absent`.
    Nothing listens on `closed_port` of the same pod.
    """

    async def test_a_response_larger_than_a_message_arrives_whole(
        self, api: HttpApi, pod_port: PodPort
    ) -> None:
        body = await replicas.get(api, pod_port, "/large", {}, TIMEOUT_S)
        assert body == b"x" * LARGE_BYTES

    async def test_an_http_error_names_its_status(self, api: HttpApi, pod_port: PodPort) -> None:
        with pytest.raises(Refused, match="HTTP status 404"):
            await replicas.get(api, pod_port, "/absent", {}, TIMEOUT_S)

    async def test_a_port_without_a_listener_is_unavailable(
        self, api: HttpApi, pod_port: PodPort, closed_port: int
    ) -> None:
        with pytest.raises(Unavailable, match=r"connection refused|expected a listener on port"):
            await replicas.get(api, pod_port._replace(port=closed_port), "/large", {}, TIMEOUT_S)


class LargeFileHandler(BaseHTTPRequestHandler):
    """Serves `/large`; `/echo` returns its query; anything else is not found."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        body = {"/large": b"x" * LARGE_BYTES, "/echo": query.encode()}.get(path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *args: Any) -> None: ...


@contextlib.asynccontextmanager
async def connected(fake: FakePortForward, folder: Path) -> AsyncIterator[HttpApi]:
    """A client of the fake API server, whose kubeconfig is written to a folder."""
    with asgi_server_thread.serving(fake) as address:
        kubeconfig = asgi_server_thread.kubeconfig(folder, address)
        api = connect(KubeOptions(kubeconfig=str(kubeconfig)), MetricsRegistry())
        try:
            yield api
        finally:
            await api.close()


def serving_large_file() -> Iterator[int]:
    """The port of an HTTP server on loopback with `LargeFileHandler`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), LargeFileHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
