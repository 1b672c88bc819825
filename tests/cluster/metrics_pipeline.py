"""The pipeline of a metric: node exporter, Prometheus, prometheus-adapter, and the custom metrics API.

The programs run for all tests of a file (`measuring`). The API is registered for one test (`registered`), since a
control plane has one custom metrics API and other tests serve it themselves.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster import (
    aggregated_api_registration,
    child_processes,
    health_example_manifests,
    namespace_sandboxes,
)
from tests.cluster.aggregated_api_registration import AggregatedApiBackend
from tests.cluster.api_client import ApiError, ClusterApi
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.prometheus_and_exporters import Monitoring

GROUP = "custom.metrics.k8s.io"
APIS: Mapping[str, Sequence[str]] = {GROUP: ("v1beta1", "v1beta2")}
NAMESPACE = "custom-metrics"
RIGHTS = [
    rule("get list watch", "nodes namespaces pods services configmaps"),
    rule("create", "tokenreviews", "authentication.k8s.io"),
    rule("create", "subjectaccessreviews", "authorization.k8s.io"),
]


class PrometheusAdapter(NamedTuple):
    """A running prometheus-adapter and its backend for the API server. It lists the series every second."""

    process: Process
    backend: AggregatedApiBackend


class MetricsServices(NamedTuple):
    """The programs of the pipeline: exporters of the example's nodes with Prometheus, and an adapter that queries
    Prometheus.
    """

    monitoring: Monitoring
    adapter: PrometheusAdapter


@contextlib.contextmanager
def running_adapter(
    plane: ControlPlane,
    program: Path,
    prometheus_url: str,
    rules: Path = health_example_manifests.ADAPTER_RULES,
) -> Iterator[PrometheusAdapter]:
    """Runs prometheus-adapter as a user of the control plane that has only the rights it needs."""
    port = child_processes.free_port()
    folder = plane.folder / f"prometheus-adapter-{port}"
    folder.mkdir()
    authority = CertificateAuthority(folder, "adapter-ca")
    backend = AggregatedApiBackend(NAMESPACE, "prometheus-adapter", port, authority)
    user = plane.user(folder.name, RIGHTS)
    flags = _flags(backend, user.kubeconfig) | {"prometheus-url": prometheus_url, "config": str(rules)}
    arguments = [program, *(f"--{flag}={value}" for flag, value in flags.items())]
    with (
        ClusterApi(f"https://localhost:{backend.port}", authority.client_context()) as probe,
        Process(arguments, folder / "log") as process,
    ):
        process.wait_ready(lambda: probe.answers("/healthz"))
        yield PrometheusAdapter(process, backend)


def _flags(backend: AggregatedApiBackend, kubeconfig: Path) -> dict[str, str]:
    pair = backend.certificate()
    return {
        "lister-kubeconfig": str(kubeconfig),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        "bind-address": "127.0.0.1",
        "secure-port": str(backend.port),
        "tls-cert-file": str(pair.cert),
        "tls-private-key-file": str(pair.key),
        "metrics-relist-interval": "1s",
        "metrics-max-age": "10s",
        "enable-priority-and-fairness": "false",
    }


class MetricsPipeline:
    """Both ends of the pipeline: the values of the nodes, and the responses of the API server."""

    def __init__(self, monitoring: Monitoring, api: ClusterApi) -> None:
        self.monitoring = monitoring
        self.api = api

    def set_health(self, node: str, value: float) -> None:
        """Sets the health of a node, in a text file of its exporter."""
        self.monitoring.set_health(node, value)

    def read(self, metric: str, node: str = "*", version: str = "v1beta2") -> list[dict[str, Any]]:
        """The items of the API server's response. Raises ApiError."""
        items: list[dict[str, Any]] = self.api.get(f"/apis/{GROUP}/{version}/nodes/{node}/{metric}")["items"]
        return items

    def values(self, metric: str) -> dict[str, str] | None:
        """The quantity of each node in the wire format; None if the API responds with an error."""
        try:
            return {item["describedObject"]["name"]: item["value"] for item in self.read(metric)}
        except ApiError:
            return None

    def wait_visible(
        self, metric: str, values: Mapping[str, str], deadline_s: float = namespace_sandboxes.PATIENCE_S
    ) -> None:
        """Waits until the API server returns exactly these values, and none of other nodes."""
        namespace_sandboxes.wait(
            f"{metric} is {dict(values)}",
            lambda: self.values(metric) == dict(values) or None,
            deadline_s,
            lambda: (self.values(metric), self.monitoring.values(f"node_{metric}")),
        )


@contextlib.contextmanager
def registered(
    api: ClusterApi,
    monitoring: Monitoring,
    adapter: PrometheusAdapter,
    apis: Mapping[str, Sequence[str]] = APIS,
) -> Iterator[MetricsPipeline]:
    """Registers the adapter as the custom metrics API while the context is open, and removes all values afterwards."""
    try:
        with aggregated_api_registration.registered(api, adapter.backend, apis):
            yield MetricsPipeline(monitoring, api)
    finally:
        monitoring.clear()
        monitoring.start()
