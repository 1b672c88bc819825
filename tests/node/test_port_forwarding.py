"""Port-forward by a real API server, kubelet and containerd: the suite that the fake passes."""

from collections.abc import AsyncIterator

import pytest

from nodewise.kube.api_client_creation import connect
from nodewise.kube.http_client import HttpApi
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.replicas import PodPort
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.cluster.namespace_sandboxes import Sandbox
from tests.node import host_with_kubelet, script_pods
from tests.node.host_with_kubelet import KubernetesHost
from tests.unit.kube.port_forward_suite import LARGE_BYTES, PortForwardSuite

pytestmark = pytest.mark.cluster

PORT = 8000
FILE = f"mkdir /www; yes x | tr -d '\\n' | head -c {LARGE_BYTES} > /www/large"
SCRIPT = f"{FILE}; exec busybox httpd -f -p {PORT} -h /www"


class TestKubelet(PortForwardSuite):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def api(self, kube_host: KubernetesHost) -> AsyncIterator[HttpApi]:
        opened = connect(KubeOptions(kubeconfig=str(kube_host.plane.admin.kubeconfig)), MetricsRegistry())
        yield opened
        await opened.close()

    @pytest.fixture
    def pod_port(self, kube_host: KubernetesHost, host_sandbox: Sandbox) -> PodPort:
        probe = {"httpGet": {"path": "/large", "port": PORT}, "periodSeconds": 1}
        host_sandbox.pods(
            script_pods.pod("web", SCRIPT, on=host_with_kubelet.NAME, container={"readinessProbe": probe})
        )
        kube_host.wait_ready(host_sandbox.namespace)
        return PodPort(host_sandbox.namespace, "web", PORT)

    @pytest.fixture
    def closed_port(self) -> int:
        return PORT + 1
