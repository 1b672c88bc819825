"""A fake metrics.k8s.io server with settable values, which replaces metrics-server behind the API server."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster import aggregated_api_registration, asgi_server_thread, child_processes
from tests.cluster.aggregated_api_registration import AggregatedApiBackend
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls
from tests.cluster.certificates import CertificateAuthority

GROUP = "metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"
ROOT = f"/apis/{VERSION}"


class FakeResourceMetricsApi:
    """The metrics of the server. A test changes `cpu`, the CPU usage by node, and its `window` at any time."""

    def __init__(self, cpu: Mapping[str, str] = {}) -> None:
        self.cpu = cpu
        self.window = "10s"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        await asgi_server_thread.body_of(receive)
        answers = {ROOT: _discovery, f"{ROOT}/nodes": self._nodes}
        answer = answers.get(scope["path"].rstrip("/"))
        status: tuple[int, Any] = (200, answer()) if answer else (404, {"kind": "Status", "code": 404})
        await asgi_server_thread.answer(send, *status)

    def _nodes(self) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items = [
            {
                "metadata": {"name": node},
                "timestamp": now,
                "window": self.window,
                "usage": {"cpu": cpu, "memory": "1Gi"},
            }
            for node, cpu in self.cpu.items()
        ]
        return {"kind": "NodeMetricsList", "apiVersion": VERSION, "metadata": {}, "items": items}


def _discovery() -> Object:
    nodes = {
        "name": "nodes",
        "singularName": "",
        "namespaced": False,
        "kind": "NodeMetrics",
        "verbs": ["get", "list"],
    }
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [nodes]}


@contextlib.contextmanager
def behind(api: ClusterApi, folder: Path) -> Iterator[FakeResourceMetricsApi]:
    """A fake server to which the API server forwards requests while the context is open."""
    authority = CertificateAuthority(folder, "resource-metrics-ca")
    backend = AggregatedApiBackend(
        "resource-metrics", "metrics-server", child_processes.free_port(), authority
    )
    metrics = FakeResourceMetricsApi()
    with (
        asgi_server_thread.serving(metrics, ServerTls(backend.certificate()), backend.port),
        aggregated_api_registration.registered(api, backend, {GROUP: ["v1beta1"]}),
    ):
        yield metrics
