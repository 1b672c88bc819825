"""A cluster with the shipped installation of nodewise and no defects, in which `nodewise doctor` must report no
problem.

etcd, the API server, kube-scheduler and two replicas of nodewise are real processes. The test writes what other
components would write: the status of Deployments and of their pods, and kube-scheduler's mirror pod. Kubelets and the
custom metrics API are fake servers.
"""

import contextlib
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import (
    asgi_server_thread,
    child_processes,
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    gpu_cluster,
    health_example_manifests,
    kubernetes_objects,
    namespace_sandboxes,
    placement_policy_specs,
    read_only_commands,
    shipped_installation,
    single_purpose_certificates,
)
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.fake_metrics_server import FakeResourceMetricsApi
from tests.cluster.namespace_sandboxes import wait

NAMESPACE: Final = shipped_installation.NAMESPACE
TENANT: Final = "web"
DOCTOR: Final = "nodewise-doctor"
SYSTEM: Final = "kube-system"
INSTALLED: Final = extender_process.ROOT / "deploy" / "kustomize" / "tas-gas" / "nodewise.yaml"
POLICIES: Final = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{TENANT}/taspolicies"
PLAIN, CARDS, POOLS = ("a", "b"), "cards", "pools"
"""The node names: two plain nodes, one with GPUs, and one with CPU pools."""
NODES: Final = (*PLAIN, CARDS, POOLS)
POOL_LABEL: Final = {"cmk.intel.com/cmk-node": "true"}


class KubeletServer:
    """A fake kubelet API of one node, to which the API server forwards requests for `/configz`."""

    def __init__(self) -> None:
        self.configuration: Object = {"cpuManagerPolicy": "none", "topologyManagerPolicy": "none"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        await asgi_server_thread.body_of(receive)
        if scope["path"] != "/configz":
            return await asgi_server_thread.answer(send, 404, b"404 page not found")
        return await asgi_server_thread.answer(send, 200, {"kubeletconfig": self.configuration})


class HealthyCluster:
    """The cluster that `installed` creates. A test may change anything, and must revert its changes."""

    def __init__(self, plane: ControlPlane, folder: Path, log: AuditLog, stack: contextlib.ExitStack) -> None:
        self.plane = plane
        self.folder = folder
        self.log = log
        self.stack = stack
        """Ends with the cluster."""
        self.certificates = single_purpose_certificates.PurposeCertificates(folder)
        self.doctor: User
        """The account of deploy/doctor.yaml."""
        self.metrics: FakeCustomMetricsApi
        self.usage: FakeResourceMetricsApi
        """Exists only while a defect of it is planted."""
        self.replicas: list[ExtenderProcess] = []
        self.controller: Process
        """Of native mode."""
        self.scheduler: Process
        self.scheduler_url = ""
        self.kubelets: dict[str, KubeletServer] = {}
        self.config: Object = {}
        """The scheduler's configuration; empty in native mode."""

    @property
    def api(self) -> ClusterApi:
        return self.plane.api

    def written(self, config: Object) -> Path:
        """Writes a scheduler configuration to a file and returns the path."""
        file = self.folder / f"configuration-{child_processes.number()}.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    def ask(self, *more: str, user: User | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs doctor, by default with the service account that ships for it."""
        return read_only_commands.run("doctor", *self._given(user), *more)

    def diagnose(self, *more: str, user: User | None = None) -> "Diagnosis":
        """Runs doctor and returns its report."""
        return Diagnosis(self.ask("-o", "json", *more, user=user))

    def measured(self) -> tuple["Diagnosis", float]:
        """Runs doctor and returns its report and its peak memory in MiB."""
        command = [str(extender_process.NODEWISE), "doctor", *self._given(None), "-o", "json"]
        # the peak of a new process includes the memory of its parent at the fork, so the parent is a small process
        run = [sys.executable, "-c", _MEASURING, *command]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
        *lines, most_kib = done.stderr.splitlines()
        done.stderr = "\n".join(lines)
        return Diagnosis(done), int(most_kib) / 1024

    def _given(self, user: User | None) -> list[str]:
        kubeconfig = (user or self.doctor).kubeconfig
        configuration = [f"--scheduler-config={self.written(self.config)}"] if self.config else []
        return [f"--kubeconfig={kubeconfig}", *configuration]


_MEASURING: Final = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


class Diagnosis:
    """The JSON report of doctor."""

    def __init__(self, done: "subprocess.CompletedProcess[str]") -> None:
        self.done = done
        self.code = done.returncode
        assert done.returncode in {0, 3}, f"exit code {done.returncode}: {done.stderr}\n{done.stdout}"
        report = json.loads(done.stdout)
        self.sound: bool = report["sound"]
        self.findings: list[Object] = report["findings"]
        self.checked: list[str] = report["checked"]
        self.not_checked: list[Object] = report["not_checked"]

    def ids(self, *severities: str) -> set[str]:
        """The ids of the findings of these severities, or of all findings."""
        return {
            finding["id"] for finding in self.findings if not severities or finding["severity"] in severities
        }

    def of(self, name: str) -> list[Object]:
        return [finding for finding in self.findings if finding["id"] == name]

    def __repr__(self) -> str:
        return json.dumps(self.findings + self.not_checked, indent=1)


def status(api: ClusterApi, path: str, status: Mapping[str, Any]) -> None:
    """Writes the status of an object, as its controller or kubelet does."""
    api.patch(f"{path}/status", {"status": status})


def running_pod(name: str, namespace: str, node: str, pod: Object, owner: str = "") -> Object:
    """A pod that is bound to a node, and owned by a ReplicaSet if `owner` is given."""
    metadata = {**pod["metadata"], "name": name, "namespace": namespace}
    if owner:
        by = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        metadata["ownerReferences"] = [by]
    return (
        {"apiVersion": "v1", "kind": "Pod"}
        | kubernetes_objects.running_on(node, pod)
        | {"metadata": metadata}
    )


def put_running(api: ClusterApi, pod: Object, address: str = "") -> None:
    """Creates a pod with a status whose containers run, with a pod IP if `address` is given."""
    api.create(pod)
    report_running(api, pod, address)


def report_running(api: ClusterApi, pod: Object, address: str = "") -> None:
    """Writes the status of a pod whose containers run."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    about = {"image": "none", "imageID": "none", "restartCount": 0, "state": {"running": {}}}
    kinds = ("Ready", "ContainersReady", "PodScheduled")
    pod_status: Object = {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in kinds],
        "containerStatuses": [about | {"name": name, "ready": True, "started": True} for name in names],
    }
    if address:
        pod_status |= {"podIP": address, "podIPs": [{"ip": address}]}
    status(api, path_of(pod), pod_status)


def report_unscheduled(api: ClusterApi, path: str, message: str) -> None:
    """Writes what kube-scheduler says about a pod that waits."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status(api, path, {"conditions": [condition]})


def put_deployment(api: ClusterApi, deployment: Object) -> None:
    """Creates a Deployment whose status counts all replicas as available. The pods are not created."""
    report_available(api, api.create(deployment))


def report_available(api: ClusterApi, deployment: Object) -> None:
    """Writes the status of a Deployment that counts all replicas as available."""
    count = deployment["spec"]["replicas"]
    counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), count)
    counts |= {"observedGeneration": deployment["metadata"]["generation"], "unavailableReplicas": None}
    status(api, path_of(deployment), counts)


def policy(name: str, **strategies: Iterable[Object]) -> Object:
    """A TASPolicy of the tenant."""
    rules = {strategy: {"rules": list(rules)} for strategy, rules in strategies.items()}
    return extender_process.tas_policy(name, rules, TENANT)


def placement_policy(name: str, labels: Mapping[str, str], *, above: int) -> Object:
    """A PlacementPolicy of the tenant for the pods with these labels."""
    spec = {"podSelector": {"matchLabels": dict(labels)}, "avoid": [{"metric": "heat", "above": above}]}
    return placement_policy_specs.policy(spec, name=name, namespace=TENANT)


def node(name: str, kubelet: str = "") -> Object:
    """A node of the cluster. `kubelet` is the URL of its fake kubelet."""
    made = (
        gpu_cluster.node(name)
        if name == CARDS
        else kubernetes_objects.node(name, labels=POOL_LABEL if name == POOLS else None)
    )
    made["status"]["nodeInfo"] = {"kubeletVersion": "v1.36.3"}
    if kubelet:
        host, _, port = kubelet.removeprefix("https://").rpartition(":")
        made["status"]["addresses"] = [{"type": "InternalIP", "address": host}]
        made["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": int(port)}}
    return made


@contextlib.contextmanager
def installed(plane: ControlPlane, log: AuditLog, folder: Path) -> Iterator[HealthyCluster]:
    """The healthy cluster on a control plane without other objects. Its processes run while the context is open."""
    with contextlib.ExitStack() as stack:
        cluster = HealthyCluster(plane, folder, log, stack)
        for name in (NAMESPACE, TENANT, SYSTEM):
            plane.api.ensure(kubernetes_objects.namespace(name, trusted=name == TENANT))
        _install(cluster)
        put_nodes(cluster)
        serve_metrics(cluster)
        rules = {"dontschedule": [extender_process.HOT], "deschedule": [extender_process.HOT]}
        plane.api.create(policy("pol", **rules, scheduleonmetric=[extender_process.COOLEST]))
        _replicas(cluster, stack)
        _scheduler(cluster)
        put_descheduler(cluster)
        _workloads(cluster)
        yield cluster


def _install(cluster: HealthyCluster) -> None:
    """Creates the objects of `kubectl apply -k deploy/kustomize/tas-gas`, except kinds that need controllers."""
    deploy = extender_process.ROOT / "deploy"
    extender_process.define(cluster.api)
    cluster.plane.kubectl("apply", "--server-side", "-f", str(deploy / "crds"))
    cluster.api.create(_secret(cluster))
    create_doctor_account(cluster)
    for manifest in yaml.safe_load_all(INSTALLED.read_text()):
        if manifest and manifest["kind"] == "Deployment":
            put_deployment(cluster.api, manifest)
        elif manifest and manifest["kind"] not in {"NetworkPolicy", "PodDisruptionBudget"}:
            cluster.api.ensure(manifest)


def create_doctor_account(cluster: HealthyCluster) -> None:
    """Creates the account of `deploy/doctor.yaml` with its rights."""
    for manifest in extender_process.manifest("doctor.yaml"):
        if manifest["kind"] != "Job":
            cluster.api.ensure(manifest)
    cluster.doctor = cluster.plane.service_account(DOCTOR, NAMESPACE)


def _secret(cluster: HealthyCluster) -> Object:
    """The Secret that `nodewise certs --apply` writes."""
    certificates = cluster.certificates
    files = {
        "tls.crt": certificates.server.cert,
        "tls.key": certificates.server.key,
        "ca.crt": certificates.authority.ca_file,
    }
    data = {name: b64encode(file.read_bytes()).decode() for name, file in files.items()}
    metadata = {"name": "nodewise-tls", "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "kubernetes.io/tls",
        "data": data,
    }


def put_nodes(cluster: HealthyCluster) -> None:
    """Creates the nodes with fake kubelets."""
    authority = CertificateAuthority(cluster.folder, "kubelet-ca")
    pair = authority.issue("kubelet", child_processes.own_address())
    for name in NODES:
        cluster.kubelets[name] = kubelet = KubeletServer()
        address = cluster.stack.enter_context(
            asgi_server_thread.serving(kubelet, ServerTls(pair), host=child_processes.own_address())
        )
        cluster.api.create(node(name, address))


def serve_metrics(cluster: HealthyCluster) -> None:
    """Serves the custom metrics API, with the heat of each node."""
    own = cluster.stack.enter_context(namespace_sandboxes.created(cluster.plane))
    cluster.metrics = cluster.stack.enter_context(fake_custom_metrics_server.behind(own, cluster.folder))
    cluster.metrics.set("heat", dict.fromkeys(NODES, 20))


def _replicas(cluster: HealthyCluster, stack: contextlib.ExitStack) -> None:
    arguments, address = replica_arguments(cluster), child_processes.own_address()
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodewise"
    template = cluster.api.get(path)["spec"]["template"]
    for number, node in enumerate(PLAIN):
        replica = stack.enter_context(
            extender_process.started(cluster.folder, arguments, cluster.certificates)
        )
        cluster.replicas.append(replica)
        endpoint = extender_process.endpoint(f"nodewise-{number}", replica.url)
        endpoint["metadata"]["namespace"] = NAMESPACE
        cluster.api.create(endpoint)
        own = _with_ports_of(template, replica)
        pod = running_pod(f"nodewise-{number}", NAMESPACE, node, own, owner="nodewise")
        put_running(cluster.api, pod, address)
    for replica in cluster.replicas:
        replica.process.wait_ready(replica.is_ready)


def replica_arguments(cluster: HealthyCluster) -> list[str]:
    """The arguments of a replica."""
    account = cluster.plane.service_account("nodewise", NAMESPACE)
    address = child_processes.own_address()
    return [
        *extender_process.arguments(account, cluster.certificates),
        f"--namespace={NAMESPACE}",
        "--agents=telemetry,gpu",
        f"--client-name={single_purpose_certificates.CLIENT}",
        f"--address={address}",
        f"--health-address={address}",
    ]


def _with_ports_of(template: Object, replica: ExtenderProcess) -> Object:
    """A pod template with the ports of a replica, since both replicas have the same address."""
    response_body: Object = json.loads(
        json.dumps(template)
        .replace("9001", replica.url.rpartition(":")[2])
        .replace("9002", replica.health.rpartition(":")[2])
    )
    return response_body


def _scheduler(cluster: HealthyCluster) -> None:
    entry = gpu_cluster.entry(cluster.replicas[0], httpTimeout="5s")
    entry["managedResources"] = [*extender_process.MANAGED, *gpu_cluster.MANAGED]
    cluster.config = controlplane.SCHEDULER | {
        "leaderElection": {"leaderElect": True},
        "extenders": [entry],
        "profiles": [{"schedulerName": "default-scheduler"}],
    }
    port = child_processes.free_port()
    kubeconfig = str(cluster.plane.user("system:kube-scheduler").kubeconfig)
    flags = {
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "secure-port": str(port),
    }
    cluster.scheduler = cluster.plane.start_scheduler(cluster.config, more=flags)
    cluster.scheduler_url = f"https://127.0.0.1:{port}"
    command = ["kube-scheduler", "--config=/etc/kubernetes/scheduler-config.yaml", "--leader-elect=true"]
    container = {
        "name": "kube-scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.36.3",
        "command": command,
    }
    labels = {"component": "kube-scheduler", "tier": "control-plane"}
    mounts = [{"name": "config", "mountPath": "/etc/kubernetes", "readOnly": True}]
    spec = {
        "containers": [container | {"volumeMounts": mounts}],
        "volumes": [{"name": "config", "hostPath": {"path": "/etc/kubernetes"}}],
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
    }
    pod = {"metadata": {"labels": labels}, "spec": spec}
    put_running(cluster.api, running_pod(f"kube-scheduler-{PLAIN[0]}", SYSTEM, PLAIN[0], pod))
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/kube-scheduler"
    wait("kube-scheduler leads", lambda: cluster.api.find(lease))


DESCHEDULER_POLICY: Final = f"/api/v1/namespaces/{SYSTEM}/configmaps/descheduler-policy"


def policy_of_other_plugin() -> str:
    """The descheduler's policy with another plugin than the one for node labels."""
    text = health_example_manifests.DESCHEDULER_POLICY.read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    other = lines.replace("RemovePodsViolatingNodeAffinity", "RemoveDuplicates").partition("    args:")[0]
    return f"{other}  plugins:\n    balance: {{enabled: [RemoveDuplicates]}}\n"


def put_descheduler(cluster: HealthyCluster) -> None:
    """Creates what is missing of a descheduler that evicts pods from the nodes that a policy labels."""
    name = "descheduler"
    text = health_example_manifests.DESCHEDULER_POLICY.read_text()
    place = {"namespace": SYSTEM, "labels": {"app": name}}
    metadata = {"name": f"{name}-policy", "namespace": SYSTEM}
    cluster.api.ensure(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"policy.yaml": text}}
    )
    container = {
        "name": name,
        "image": "registry.k8s.io/descheduler/descheduler:v0.36.0",
        "args": ["--policy-config-file=/policy-dir/policy.yaml", "--descheduling-interval=5m"],
        "volumeMounts": [{"name": "policy", "mountPath": "/policy-dir"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "policy", "configMap": {"name": metadata["name"]}}],
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    put_running(cluster.api, running_pod(f"{name}-0", SYSTEM, PLAIN[0], template, owner=name))
    whole = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, **place}, "spec": whole}
    put_deployment(cluster.api, made)


def _workloads(cluster: HealthyCluster) -> None:
    shop = extender_process.pod("shop")
    put_running(cluster.api, running_pod("shop", TENANT, PLAIN[1], shop))
    train = gpu_cluster.pod("train")
    train["metadata"]["annotations"] = {gpu_cluster.CARDS: "card0"}
    put_running(cluster.api, running_pod("train", TENANT, CARDS, train))
