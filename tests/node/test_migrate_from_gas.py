"""The migration from GPU Aware Scheduling, followed literally on a host where it ran, and back.

GAS is a container that does nothing and ignores SIGTERM, as GAS does; its pods are as it leaves them. kube-scheduler as
a static pod, the kubelet, the API server, nodewise's image, helm and kubectl are real.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import docs_page_code_blocks
from tests.cluster import gpu_cluster
from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.test_chart import helm_program
from tests.conformance.configure import scheduler_manifests as kubeadm
from tests.docs_page_code_blocks import ShellStep
from tests.docs_page_runner import PageReader
from tests.node import (
    busybox_image,
    host_with_kubelet,
    migration_page_reader,
    script_pods,
    static_pod_scheduler,
)
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.static_pod_scheduler import StaticScheduler

__all__ = ["helm_program"]

pytestmark = pytest.mark.cluster

PAGE = docs_page_code_blocks.HOW_TO / "migrate-from-gas.md"
KUBEADM = docs_page_code_blocks.HOW_TO / "install-on-kubeadm.md"
CONFIG = "/etc/kubernetes/scheduler-config.yaml"
SERVICE = "10.0.0.9"
"""No other Service gets it: the API server itself gives away those from 10.0.0.17 on."""
EXTENDER = {"app.kubernetes.io/component": "extender"}
GAS = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
extenders:
  - urlPrefix: "https://gas-service.default.svc.cluster.local:9001"
    filterVerb: "scheduler/filter"
    bindVerb: "scheduler/bind"
    weight: 1
    enableHTTPS: true
    managedResources:
      - name: "gpu.intel.com/i915"
        ignoredByScheduler: false
    ignorable: true
    tlsConfig:
      insecure: false
      certFile: "/host/certs/client.crt"
      keyFile: "/host/certs/client.key"
    nodeCacheCapable: true
"""
"""The configuration that the configurator wrote for GAS."""
INSTALLED = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: gpu-aware-scheduling, namespace: default, labels: {{app: gas}}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: gas}}}}
  template:
    metadata: {{labels: {{app: gas}}}}
    spec:
      serviceAccountName: gpu-aware-scheduling-service-account
      terminationGracePeriodSeconds: 3
      containers:
      - name: gasext
        image: {busybox_image.NAME}
        command: [sh, -c, "trap '' TERM; while :; do sleep 1; done"]
        volumeMounts: [{{name: certs, mountPath: /gas/cert}}]
      volumes: [{{name: certs, secret: {{secretName: extender-secret}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: gas-service, namespace: default}}
spec: {{selector: {{app: gas}}, ports: [{{protocol: TCP, port: 9001, targetPort: 9001}}]}}
---
apiVersion: v1
kind: Secret
metadata: {{name: extender-secret, namespace: default}}
type: kubernetes.io/tls
stringData: {{tls.crt: the cluster's CA, tls.key: and its key}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: gpu-aware-scheduling-service-account, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: gas-handler}}
rules:
- {{apiGroups: [""], resources: [pods], verbs: [get, list, watch, update, patch]}}
- {{apiGroups: [""], resources: [nodes], verbs: [get, list, watch, patch]}}
- {{apiGroups: [""], resources: [bindings, pods/binding], verbs: [create]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: handle-gas}}
subjects: [{{kind: ServiceAccount, name: gpu-aware-scheduling-service-account, namespace: default}}]
roleRef: {{kind: ClusterRole, name: gas-handler, apiGroup: rbac.authorization.k8s.io}}
"""


@pytest.fixture
def cards(kube_host: KubernetesHost) -> Iterator[None]:
    """The host has three devices, as Intel's plugin advertises them."""
    shape = gpu_cluster.node(host_with_kubelet.NAME, cards=3, millicores=1000)
    kube_host.node.label({key: text for key, text in shape["metadata"]["labels"].items() if "intel" in key})
    extended = {key: amount for key, amount in shape["status"]["capacity"].items() if "/" in key}
    kube_host.node.advertise(extended)
    yield
    api, path = kube_host.plane.api, kube_host.node.path
    api.patch(path, {"metadata": {"labels": {f"{gpu_cluster.PREFIX}gpu-numbers": None}}})
    api.patch(f"{path}/status", {"status": {"capacity": dict.fromkeys(extended)}})


@pytest.fixture
def scheduler(kube_host: KubernetesHost) -> Iterator[StaticScheduler]:
    """kube-scheduler, which uses GAS."""
    kube_host.path(CONFIG).write_text(GAS)
    certs = kube_host.path("/etc/certs")
    certs.mkdir(exist_ok=True)
    pair = kube_host.plane.authority.issue("kubernetes-ca")
    (certs / "client.crt").write_bytes(pair.cert.read_bytes())
    (certs / "client.key").write_bytes(pair.key.read_bytes())
    with static_pod_scheduler.running(kube_host) as running:
        before = running.current_state()
        running.write(_asking(running.manifest.read_text()))
        running.wait_replaced_pod(before)
        yield running
    kube_host.path(CONFIG).unlink()
    for file in certs.iterdir():
        file.unlink()


def _asking(manifest: str) -> str:
    """The manifest as the configurator of GAS changed it."""
    pod = yaml.safe_load(manifest)
    (container,) = pod["spec"]["containers"]
    container["command"].append(f"--config={CONFIG}")
    container["volumeMounts"] += [
        {"name": "schedulerconfig", "mountPath": CONFIG, "readOnly": True},
        {"name": "certdir", "mountPath": "/host/certs", "readOnly": True},
    ]
    pod["spec"]["volumes"] += [
        {"name": "schedulerconfig", "hostPath": {"path": CONFIG}},
        {"name": "certdir", "hostPath": {"path": "/etc/certs/"}},
    ]
    pod["spec"]["dnsPolicy"] = "ClusterFirstWithHostNet"
    return kubeadm.to_yaml(pod)


@pytest.fixture
def gas(
    kube_host: KubernetesHost, scheduler: StaticScheduler, host_sandbox: Sandbox, tmp_path: Path
) -> Iterator[None]:
    """GAS, running."""
    file = tmp_path / "gas.yaml"
    file.write_text(INSTALLED)
    kube_host.plane.kubectl("apply", "-f", str(file))
    kube_host.wait_ready("default", app="gas")
    yield
    kube_host.plane.kubectl("delete", "--ignore-not-found", "-f", str(file))


@pytest.fixture
def operator(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    image: str,
    gas: None,
    control_plane_programs: Path,
    helm_program: Path,
    tmp_path: Path,
) -> Iterator[PageReader]:
    instead = {
        "my-namespace": host_sandbox.namespace,
        "control1": host_with_kubelet.NAME,
        "values-gas.yaml": f"values-gas.yaml --set service.clusterIP={SERVICE}",
    }

    def replica() -> Object:
        return kube_host.wait_ready("nodewise", 2, **EXTENDER)[0]

    with migration_page_reader.operator(
        kube_host, control_plane_programs, tmp_path, replica, helm_program, instead
    ) as typing:
        yield typing
        typing.types("helm uninstall nodewise --namespace nodewise; kubectl delete namespace nodewise")


def pod(name: str, card: str = "") -> Object:
    """A pod that wants most of a card; with a card one that GAS has bound."""
    limits = {f"{gpu_cluster.PREFIX}i915": "1", f"{gpu_cluster.PREFIX}millicores": "600"}
    container = {"resources": {"limits": limits}}
    made = script_pods.pod(
        name, "exec sleep 1000", on=host_with_kubelet.NAME if card else "", container=container
    )
    if card:
        made["metadata"]["annotations"] = {gpu_cluster.CARDS: card, "gas-ts": "1700000000500000000"}
    return made


def test_pods_keep_their_cards_from_gas_to_nodewise_and_back(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    cards: None,
    scheduler: StaticScheduler,
    operator: PageReader,
) -> None:
    first, switch, seen, away, back = (
        docs_page_code_blocks.section(PAGE, f"## {title}") for title in ("1.", "2.", "3.", "4.", "Roll back")
    )
    hold, stop, configure, restarted, let = switch
    restore, start = back
    fetch, _ = docs_page_code_blocks.section(KUBEADM, "## 2. kube-scheduler")
    before = _written(kube_host, scheduler)
    host_sandbox.pods(pod("of-before", "card0"))

    operator.follows(first)
    host_sandbox.pods(pod("of-meanwhile", "card2"))
    (_, curl) = docs_page_code_blocks.steps(first[-1])
    wait("nodewise knows both", lambda: _held(operator, curl) == {"card0", "card2"} or None)
    migration_page_reader.name_service(kube_host, "nodewise", "nodewise")

    operator.follows([hold])
    migration_page_reader.expect_rejected(host_sandbox, pod("too-early"), "exceeded quota: no-cards")
    host_sandbox.pods(script_pods.pod("without-cards", "exec sleep 1000"))
    assert host_sandbox.expect_bound("without-cards") == host_with_kubelet.NAME
    operator.follows([stop])
    assert kube_host.pods("default", app="gas") == []
    asked_gas = scheduler.current_state()
    operator.follows([fetch, configure])
    scheduler.wait_replaced_pod(asked_gas)
    asked_us = scheduler.wait_ready()
    operator.follows([restarted, let])
    host_sandbox.pods(pod("first"))
    assert host_sandbox.expect_bound("first") == host_with_kubelet.NAME
    host_sandbox.pods(pod("second"))
    host_sandbox.expect_rejected("second")
    operator.follows(seen)

    operator.follows([hold, restore])
    assert _written(kube_host, scheduler) == before
    scheduler.wait_replaced_pod(asked_us)
    operator.follows([start, let])
    running = {
        name: script_pods.running(host_sandbox, name) for name in ("of-before", "of-meanwhile", "first")
    }
    assert [gpu_cluster.cards_of(pod) for pod in running.values()] == [["card0"], ["card2"], ["card1"]]
    operator.follows(away)
    wait("GAS is gone", lambda: None if kube_host.pods("default", app="gas") else True)


def _held(operator: PageReader, curl: ShellStep) -> set[str]:
    """The devices that are allocated according to nodewise."""
    output = operator.types(curl.typed)
    (node,) = json.loads(output)["nodes"].values()
    assert node["problems"] == []
    return {card for card, device in node["cards"].items() if device["held"]}


def _written(kube_host: KubernetesHost, scheduler: StaticScheduler) -> tuple[str, str]:
    """kube-scheduler's manifest and configuration."""
    return scheduler.manifest.read_text(), kube_host.path(CONFIG).read_text()
