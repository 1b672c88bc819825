"""A replica of a running nodewise behind an API server, for commands that read its settings and metric values."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest

from nodewise import agents
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import NodewiseError, Refused
from nodewise.engine import metric_values_endpoint
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.request_recorder import ReplaySettings
from nodewise.kube.resource_kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.policy_objects import RESOURCES
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests import forked_commands
from tests.cluster import asgi_server_thread
from tests.cluster.asgi_server_thread import answer
from tests.cluster.fake_port_forward import FakePortForward

AT = 1_700_000_000.0
"""The time of the replica, far from that of this machine."""
TELEMETRY = agents.load("telemetry")
POLICY: dict[str, Any] = {
    "apiVersion": "nodewise.io/v1alpha1",
    "kind": "PlacementPolicy",
    "metadata": {"name": "cool", "namespace": "web", "uid": "u1"},
    "spec": {"podSelector": {}, "avoid": [{"metric": "heat", "above": 80}]},
}


class Replica(NamedTuple):
    """A replica whose settings and values a test sets, and the API server."""

    api: "ForwardingApi"
    kubeconfig: Path
    pages: dict[str, bytes]
    """Responses by the query."""

    def serve(self, metrics: MetricsSnapshot, sync_period_s: float = 5.0, **options: Any) -> None:
        header = metric_values_endpoint.build_header(
            [TELEMETRY],
            {"telemetry": TELEMETRY.options(**options)},
            ReplaySettings(sync_period_s, ChainOptions()),
            ["prometheus"],
            AT,
        )
        page = metric_values_endpoint.encode_page(header, metrics, "", AT)
        self.pages[""] = cooperative_scheduling.run_without_pauses(page)

    def decide(self, *arguments: str, expected: int = 0, stdin: str = "") -> Any:
        done = self.run(*arguments, "-o", "json", stdin=stdin)
        assert done.returncode == expected, done.stderr
        return json.loads(done.stdout)

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["decide", "--cluster", f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        return forked_commands.run([forked_commands.NODEWISE, *command], env=environment, input=stdin)


class ForwardingApi:
    """An ASGI application that answers reads from an API server in memory, and serves port-forward."""

    def __init__(self, api: FakeApi) -> None:
        self.objects = api
        self.forward = FakePortForward()
        self.refused = ""
        """The plural of a kind that cannot be read."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.forward(scope, receive, send)
            return
        query = dict(parse_qsl(scope["query_string"].decode()))
        path = scope["raw_path"].decode()
        try:
            if self.refused and path.endswith(f"/{self.refused}"):
                raise Refused(path)
            code, body = 200, await self.objects.get(path, query)
        except NodewiseError as error:
            code, body = in_memory_api_http_server.encode_error(error)
        await answer(send, code, body)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    pages: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            after = parse_qs(address.query).get("after", [""])[0]
            body = pages.get(after, b"") if address.path == "/metric-values" else b""
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    api = FakeApi(*RESOURCES.values(), DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES)
    for node in ("a", "b"):
        api.put(NODES, {"metadata": {"name": node}})
    api.put(RESOURCES["PlacementPolicy"], POLICY)
    api.put(PODS, {"metadata": {"name": "waits", "namespace": "web", "uid": "p1"}, "spec": {}, "status": {}})
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": "extender"}
    api.put(
        PODS,
        {
            "metadata": {"name": "nw-1", "namespace": "nodewise", "labels": labels},
            "spec": {"nodeName": "a"},
            "status": {"phase": "Running"},
        },
    )
    forwarding = ForwardingApi(api)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server,
        asgi_server_thread.serving(forwarding) as url,
    ):
        threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
        forwarding.forward.ports = {("nodewise", "nw-1", 9002): http_server.server_address[1]}
        yield Replica(forwarding, asgi_server_thread.kubeconfig(tmp_path, url), pages)
        http_server.shutdown()


def heat(a: int, b: int, age_s: float = 2.0) -> Series:
    values = {"a": a, "b": b}
    samples = {node: Sample(value * 10**9, AT - age_s) for node, value in values.items()}
    return Series("heat", "prometheus", AT - age_s, samples)
