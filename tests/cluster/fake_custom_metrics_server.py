"""A fake custom.metrics.k8s.io server with settable values and faults, and its registration with the API server.

It serves node metrics in v1beta1 and v1beta2. Values are returned unchanged, also invalid quantities, NaN and values of
nodes that do not exist.
"""

import asyncio
import contextlib
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster import aggregated_api_registration, api_client, asgi_server_thread
from tests.cluster.api_client import Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.namespace_sandboxes import Sandbox

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta1", "v1beta2")
SERVICE = "custom-metrics"

PATH = re.compile(
    rf"/apis/{re.escape(GROUP)}/(?P<version>v1beta[12])(?:/nodes/(?P<node>[^/]+)/(?P<metric>[^/]+))?/?"
)


class NodeSample(NamedTuple):
    """The value of one node in the wire format; `time` is in RFC 3339 format, or None for now."""

    value: str
    time: str | None = None
    window_s: int | None = None


class FakeCustomMetricsApi:
    """The metrics and faults of the server; a test changes them at any time."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self._samples: dict[str, dict[str, NodeSample]] = {}
        self._status: dict[str, int] = {}
        self._hung: set[str] = set()
        self._raw: dict[str, bytes] = {}

    def set(
        self,
        metric: str,
        values: Mapping[str, str | int | NodeSample],
        time: str | None = None,
        window_s: int | None = None,
    ) -> None:
        """Sets the values of a metric by node. This also ends a fault that `fail`, `hang` or `say` has set."""
        self.heal(metric)
        self._samples[metric] = {
            node: value if isinstance(value, NodeSample) else NodeSample(str(value), time, window_s)
            for node, value in values.items()
        }

    def fail(self, metric: str, status: int = 503) -> None:
        """Returns this HTTP status for a metric."""
        self._status[metric] = status

    def hang(self, metric: str) -> None:
        """Delays responses for a metric until `heal`."""
        self._hung.add(metric)

    def say(self, metric: str, body: bytes) -> None:
        """Returns exactly these bytes for a metric."""
        self._raw[metric] = body

    def heal(self, metric: str) -> None:
        """Ends all faults of a metric."""
        self._status.pop(metric, None)
        self._raw.pop(metric, None)
        self._hung.discard(metric)

    def forget(self, metric: str) -> None:
        """Removes a metric; requests for it get status 404."""
        self.heal(metric)
        self._samples.pop(metric, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        await asgi_server_thread.body_of(receive)
        match = PATH.fullmatch(scope["path"])
        if not match:
            return await asgi_server_thread.answer(
                send, 404, _status(404, "the server could not find the requested resource")
            )
        if not match["metric"]:
            return await asgi_server_thread.answer(send, 200, self._discovery(match["version"]))
        self.asked.append(match["metric"])
        while match["metric"] in self._hung:
            await asyncio.sleep(0.02)
        return await asgi_server_thread.answer(
            send, *self._answer(match["version"], match["node"], match["metric"])
        )

    def _answer(self, version: str, node: str, metric: str) -> tuple[int, Any]:
        if metric in self._status:
            status = self._status[metric]
            return status, _status(status, f"told to fail with {status}")
        if metric in self._raw:
            return 200, self._raw[metric]
        if metric not in self._samples:
            return 404, _status(404, f"the server could not find the metric {metric} for nodes")
        samples = self._samples[metric]
        chosen = samples if node == "*" else {node: samples[node]} if node in samples else {}
        items = [_item(version, name, metric, sample) for name, sample in chosen.items()]
        kind = {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{version}"}
        return 200, kind | {"metadata": {}, "items": items}

    def _discovery(self, version: str) -> Object:
        resources = [
            {
                "name": f"nodes/{m}",
                "singularName": "",
                "namespaced": False,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for m in sorted(self._samples)
        ]
        group = f"{GROUP}/{version}"
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}


def _item(version: str, node: str, metric: str, sample: NodeSample) -> Object:
    named = {"metricName": metric} if version == "v1beta1" else {"metric": {"name": metric, "selector": None}}
    window = {} if sample.window_s is None else {"windowSeconds": sample.window_s}
    return {
        "describedObject": {"kind": "Node", "name": node, "apiVersion": "/v1"},
        **named,
        "timestamp": sample.time or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **window,
        "value": sample.value,
    }


def _status(code: int, message: str) -> Object:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return status | {"message": message, "code": code}


@contextlib.contextmanager
def serving(
    folder: Path, namespace: str = "default"
) -> Iterator[tuple[FakeCustomMetricsApi, CertificateAuthority]]:
    """Serves the fake API at its `url` while the context is open; yields it with the CA of its certificate.

    The certificate is valid for `localhost` and for the name by which the API server calls a Service in `namespace`.
    """
    authority = CertificateAuthority(folder, "metrics-ca")
    pair = authority.issue("metrics", "localhost", "127.0.0.1", f"{SERVICE}.{namespace}.svc")
    metrics = FakeCustomMetricsApi()
    with asgi_server_thread.serving(metrics, ServerTls(pair)) as metrics.url:
        try:
            yield metrics, authority
        finally:
            metrics._hung.clear()  # otherwise the server would wait for hanging requests


@contextlib.contextmanager
def behind(
    sandbox: Sandbox, folder: Path, versions: tuple[str, ...] = VERSIONS
) -> Iterator[FakeCustomMetricsApi]:
    """A fake server to which the sandbox's API server forwards requests under /apis/custom.metrics.k8s.io."""
    with serving(folder, sandbox.namespace) as (metrics, authority):
        service = _service(int(metrics.url.rpartition(":")[2]))
        sandbox.put(service)
        registered = [_api_service(version, sandbox.namespace, service, authority) for version in versions]
        try:
            for manifest in registered:
                sandbox.api.create(manifest)
            for manifest in registered:
                aggregated_api_registration.wait_available(sandbox.api, manifest)
            yield metrics
        finally:
            for manifest in registered:
                sandbox.api.delete(api_client.path_of(manifest))


def _service(port: int) -> Object:
    """The ExternalName Service. Without endpoint routing the API server connects to `localhost` itself."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }


def _api_service(version: str, namespace: str, service: Object, authority: CertificateAuthority) -> Object:
    port = service["spec"]["ports"][0]["port"]
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": version,
            "service": {"name": SERVICE, "namespace": namespace, "port": port},
            "caBundle": b64encode(authority.ca_pem).decode(),
            "groupPriorityMinimum": 100,
            "versionPriority": 100 + int(version[-1]),
        },
    }
