"""The Helm chart with the real image, run by a real kubelet."""

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from nodewise_cpu.cpusets import container_cpusets
from tests.cluster import kubernetes_objects, read_only_commands
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import Object
from tests.cluster.extender_process import NODEWISE
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.test_certs import AppliedCertificates
from tests.cluster.test_chart import CHART, Helm, helm_program
from tests.node import (
    cpu_manager_on_real_node,
    host_with_kubelet,
    preferred_nodes,
    script_pods,
    static_pod_scheduler,
)
from tests.node.cpu_manager_on_real_node import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR
from tests.node.static_pod_scheduler import StaticScheduler

__all__ = ["helm_program"]

pytestmark = pytest.mark.cluster

SERVICE = "10.0.0.50"
NEW_NAME = "nodewise.example"
EXTENDER = {"app.kubernetes.io/component": "extender"}
TEST = {"app.kubernetes.io/component": "test"}
ANNOTATOR = {"app.kubernetes.io/component": "annotator"}
PAUSE_S = 0.25


class HelmRelease:
    """The chart, installed in the test's namespace."""

    def __init__(
        self,
        kube_host: KubernetesHost,
        host_sandbox: Sandbox,
        helm: Helm,
        values: dict[str, str],
        *files: Path,
    ) -> None:
        self.kube_host, self.host_sandbox, self._helm = kube_host, host_sandbox, helm
        options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        options += [f"--values={file}" for file in files]
        self._release = ["nodewise", str(CHART), "--namespace", host_sandbox.namespace, *options]

    def install(self) -> None:
        done = self._helm.run("install", *self._release)
        assert done.returncode == 0, (
            f"{done.stderr} {self.kube_host.describe_state(self.host_sandbox.namespace)}"
        )

    def upgrade(self, *more: str) -> None:
        self._helm.said("upgrade", *self._release, *more)

    def test(self) -> str:
        """The output of `helm test`. Pods have no DNS here, and find the Service in `/etc/hosts`."""
        namespace = self.host_sandbox.namespace
        for document in _names_in_hosts(namespace):
            self.host_sandbox.create(document)
        probe = kubernetes_objects.pod("probe", labels=TEST)
        path = f"/api/v1/namespaces/{namespace}/pods"

        def has_name() -> bool | None:
            response = self.host_sandbox.api.request("POST", path, json=probe, params=DRY_RUN)
            return "hostAliases" in response.json()["spec"] or None

        wait("pods have the name of the Service", has_name)
        return self._helm.said("test", "nodewise", "--namespace", namespace)

    def uninstall(self) -> None:
        self._helm.said("uninstall", "nodewise", "--namespace", self.host_sandbox.namespace)

    def pods(self, count: int) -> list[Object]:
        """This number of replicas, once they are ready."""
        return self.kube_host.wait_ready(self.host_sandbox.namespace, count, **EXTENDER)


def _names_in_hosts(namespace: str) -> list[Object]:
    """The admission policy by which the test's pods find the Service."""
    group, kind = "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"
    alias = f"{{'ip': dyn('{SERVICE}'), 'hostnames': dyn(['nodewise.{namespace}.svc'])}}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec = {
        "matchConstraints": {"resourceRules": [pods], "objectSelector": {"matchLabels": TEST}},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"[JSONPatch{{op: 'add', path: '/spec/hostAliases', value: [{alias}]}}]"
                },
            }
        ],
    }
    metadata = {"name": "names-in-hosts"}
    return [
        {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": spec},
        {
            "apiVersion": group,
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "spec": {"policyName": "names-in-hosts"},
        },
    ]


@contextlib.contextmanager
def installed(
    kube_host: KubernetesHost, host_sandbox: Sandbox, helm: Helm, values: dict[str, str], *files: Path
) -> Iterator[HelmRelease]:
    release = HelmRelease(kube_host, host_sandbox, helm, values, *files)
    release.install()
    try:
        yield release
    finally:
        release.uninstall()


@pytest.fixture
def helm(helm_program: Path, kube_host: KubernetesHost, tmp_path: Path) -> Helm:
    return Helm(helm_program, kube_host.plane.admin.kubeconfig, tmp_path)


@pytest.fixture
def scheduler(kube_host: KubernetesHost) -> Iterator[StaticScheduler]:
    with static_pod_scheduler.running(kube_host) as running:
        yield running


@pytest.fixture
def release(
    kube_host: KubernetesHost, host_sandbox: Sandbox, helm: Helm, image: str, scheduler: StaticScheduler
) -> Iterator[HelmRelease]:
    """Two replicas with all agents behind their Service, with certificates as `nodewise certs` makes them."""
    AppliedCertificates(host_sandbox, kube_host.plane.admin)("--apply", f"--name={SERVICE}")
    values = {
        "service.clusterIP": SERVICE,
        "settings.sync_period": "500ms",
        "tls.renewal.names": f"{{{NEW_NAME}}}",
        "agents.telemetry.settings.advertise_resource": "",  # the node outlives the release
        "cpu.enabled": "false",
    }
    with installed(kube_host, host_sandbox, helm, values, CHART / "values/values-all.yaml") as release:
        release.pods(2)
        kube_host.wait_ready(host_sandbox.namespace, **ANNOTATOR)
        kube_host.network.serve(kube_host.plane.api, host_sandbox.namespace, "nodewise")
        yield release


def renew(kube_host: KubernetesHost, host_sandbox: Sandbox) -> None:
    """Renew the certificates as the CronJob does. One lacks a name, so a new authority is announced."""
    space = f"--namespace={host_sandbox.namespace}"
    kube_host.plane.kubectl(space, "create", "job", "renewal", "--from=cronjob/nodewise-certs")
    path = f"/apis/batch/v1/namespaces/{host_sandbox.namespace}/jobs/renewal"

    def succeeded() -> bool | None:
        return host_sandbox.api.get(path).get("status", {}).get("succeeded") == 1 or None

    about = {"batch.kubernetes.io/job-name": "renewal"}
    wait("the job is done", succeeded, 120, lambda: kube_host.describe_state(host_sandbox.namespace, **about))


def configure(kube_host: KubernetesHost, host_sandbox: Sandbox, folder: Path) -> None:
    """Configure the host's scheduler for the Service, with the current content of its client Secret."""
    held = AppliedCertificates(host_sandbox, kube_host.plane.admin).held()[1]
    files = {"-cert": "tls.crt", "-key": "tls.key", "--ca": "ca.crt"}
    for name in files.values():
        (folder / name).write_bytes(held[name])
    options = [word for flag, name in files.items() for word in (flag, str(folder / name))]
    kube_host.output_of(NODEWISE, "configure", *options, f"--extender-url=https://{SERVICE}:9001")


def served_serial_number(kube_host: KubernetesHost) -> int:
    """The serial number of the certificate that the Service presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with kube_host.network.connect((SERVICE, 9001)) as plain, context.wrap_socket(plain) as secure:
        # a client without a certificate is rejected after the handshake
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number


class PodCreator:
    """Creates pods with a policy one after another, and records how many replicas remain meanwhile.

    All replicas have been ready before.
    """

    def __init__(self, kube_host: KubernetesHost, host_sandbox: Sandbox) -> None:
        self.made: list[str] = []
        self.remaining: list[int] = []
        """Replicas that were ready once and are not being deleted. On a busy machine, probes may fail for a time."""
        self._kube_host, self._host_sandbox = kube_host, host_sandbox
        self._ready_once = {pod["metadata"]["uid"] for pod in self._replicas()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            name = f"web-{len(self.made)}"
            self._host_sandbox.pods(preferred_nodes.with_policy(name, host_with_kubelet.NAME))
            self.made.append(name)
            pods = self._replicas()
            self._ready_once |= {pod["metadata"]["uid"] for pod in pods if host_with_kubelet.is_ready(pod)}
            self.remaining.append(sum(map(self._remains, pods)))

    def _replicas(self) -> list[Object]:
        return self._kube_host.pods(self._host_sandbox.namespace, **EXTENDER)

    def _remains(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        return metadata["uid"] in self._ready_once and "deletionTimestamp" not in metadata

    def wait_for_progress(self) -> None:
        """Wait until more pods are created and bound."""
        last = len(self.made) + 2
        wait("more pods are made", lambda: len(self.made) > last or None)
        assert self._host_sandbox.expect_bound(f"web-{last}", 120) == FAR

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


_TIMEOUTS = ("context deadline exceeded", "Client.Timeout exceeded")
"""Go's net/http reports a timeout of kube-scheduler's call with one of these texts."""


@contextlib.contextmanager
def stream(kube_host: KubernetesHost, host_sandbox: Sandbox) -> Iterator[PodCreator]:
    """Pods until the end of the context: all are bound where the policy allows, and no call ends with an error.

    On a busy machine, a call may take longer than kube-scheduler's timeout of 1 s; then the pod is tried again.
    """
    made = PodCreator(kube_host, host_sandbox)
    try:
        made.wait_for_progress()
        yield made
    finally:
        made.stop()
    assert {host_sandbox.expect_bound(name) for name in made.made} == {FAR}
    failed = host_sandbox.api.get(
        f"/api/v1/namespaces/{host_sandbox.namespace}/events", fieldSelector="reason=FailedScheduling"
    )
    messages = [item["message"] for item in failed["items"] if "web-" in item["involvedObject"]["name"]]
    assert [message for message in messages if not any(text in message for text in _TIMEOUTS)] == []


def test_replicas_serve_the_scheduler_through_a_renewal_and_an_upgrade(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    metrics_api: FakeCustomMetricsApi,
    scheduler: StaticScheduler,
    release: HelmRelease,
    tmp_path: Path,
) -> None:
    assert "Phase:          Succeeded" in release.test()
    preferred_nodes.policy(host_sandbox, metrics_api, hot=host_with_kubelet.NAME)
    before = scheduler.current_state()
    configure(kube_host, host_sandbox, tmp_path)
    configured = scheduler.wait_replaced_pod(before)
    host_sandbox.pods(
        preferred_nodes.plain("plain", host_with_kubelet.NAME),
        preferred_nodes.with_policy("first", host_with_kubelet.NAME),
    )
    assert host_sandbox.expect_bound("plain") == host_with_kubelet.NAME
    assert host_sandbox.expect_bound("first", 120) == FAR
    place = (f"--namespace={host_sandbox.namespace}", f"--nodewise-namespace={host_sandbox.namespace}")
    explained = read_only_commands.run(
        "explain", "pod/first", *place, f"--kubeconfig={kube_host.plane.admin.kubeconfig}"
    )
    assert f"first is on {FAR}: " in explained.stdout, explained.stderr
    old, serial = release.pods(2), served_serial_number(kube_host)
    with stream(kube_host, host_sandbox) as pods:
        renew(kube_host, host_sandbox)
        configure(kube_host, host_sandbox, tmp_path)
        scheduler.wait_replaced_pod(configured)
        pods.wait_for_progress()
        names = (f"--name={SERVICE}", f"--name={NEW_NAME}")
        AppliedCertificates(host_sandbox, kube_host.plane.admin)("--apply", *names, "--restarted")
        release.upgrade("--set", "settings.sync_period=600ms")
        wait("a new certificate is served", lambda: served_serial_number(kube_host) != serial or None)
        configure(kube_host, host_sandbox, tmp_path)
        pods.wait_for_progress()
        wait("all replicas are new", lambda: _are_others(release, old) or None, 120)
        pods.wait_for_progress()
    assert min(pods.remaining) >= 2
    ours = x509.load_pem_x509_certificate(
        AppliedCertificates(host_sandbox, kube_host.plane.admin).held()[0]["tls.crt"]
    )
    assert served_serial_number(kube_host) == ours.serial_number
    for pod in (*release.pods(2), *kube_host.wait_ready(host_sandbox.namespace, **ANNOTATOR)):
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert "forbidden" not in kube_host.log(pod, pod["spec"]["containers"][0]["name"]).lower()


def _are_others(release: HelmRelease, old: list[Object]) -> bool:
    pods = release.kube_host.pods(release.host_sandbox.namespace, **EXTENDER)
    uids = {pod["metadata"]["uid"] for pod in pods}
    return len(uids) == len(old) and uids.isdisjoint(pod["metadata"]["uid"] for pod in old)


class TestCpuManager:
    """As docs/install.md has it: one command makes the pools of a node, installs the program, and runs the agent."""

    @pytest.fixture
    def cluster_scheduler(self, kube_host: KubernetesHost) -> Iterator[None]:
        process = kube_host.plane.start_scheduler({})
        yield
        process.stop()

    @pytest.fixture
    def manager(
        self,
        kube_host: KubernetesHost,
        host_sandbox: Sandbox,
        helm: Helm,
        image: str,
        cluster_scheduler: None,
        tmp_path: Path,
    ) -> Iterator[CpuManagerOnNode]:
        manager = CpuManagerOnNode(host_sandbox, kube_host.node, kube_host.plane.admin, tmp_path)
        values = {
            "cpu.namespace": host_sandbox.namespace,
            "cpu.createNamespace": "false",
            "cpu.setup.hosts": f"{{{host_with_kubelet.NAME}}}",
            "cpu.setup.args": "{--insecure=True,--num-exclusive-cores=1,--num-shared-cores=0}",
            "cpu.agent.args": f"{{--interval={cpu_manager_on_real_node.PERIOD_S:g}s}}",
        }
        with installed(kube_host, host_sandbox, helm, values, CHART / "values/values-cmk.yaml"):
            yield manager
        wait(
            "the agent is gone",
            lambda: None if kube_host.pods(host_sandbox.namespace, app="cmk-agent") else True,
        )
        manager.run("uninstall", *manager.place, "--proc-fs=/proc")

    def test_pods_get_cores_by_the_agent_s_socket(
        self, kube_host: KubernetesHost, host_sandbox: Sandbox, manager: CpuManagerOnNode
    ) -> None:
        kube_host.wait_ready(host_sandbox.namespace, app="cmk-agent")
        kube_host.wait_ready(host_sandbox.namespace, 2, app="cmk-webhook-app")
        wait(
            "the kubelet offers cores",
            lambda: manager.exclusive_cores_offered() == "1" or None,
            show=manager.exclusive_cores_offered,
        )
        host_sandbox.pods(
            cpu_manager_on_real_node.pod(
                "pinned", f"exec {ISOLATE} -- busybox sleep 1000", kube_host.node.name
            )
        )
        pod = script_pods.running(host_sandbox, "pinned")
        manager.wait_held(pod)
        manager.wait_pinned(pod, EXCLUSIVE)
        host_sandbox.api.delete(f"/api/v1/namespaces/{host_sandbox.namespace}/pods/pinned")
        manager.wait_gone(pod)
        manager.wait_free()
        (agent,) = kube_host.wait_ready(host_sandbox.namespace, app="cmk-agent")
        assert agent["status"]["containerStatuses"][0]["restartCount"] == 0
        assert "forbidden" not in kube_host.log(agent, "agent").lower()
        assert seccomp_modes(kube_host, agent) == {"2"}, "the runtime's profile holds"


def seccomp_modes(kube_host: KubernetesHost, pod: Object) -> set[str]:
    """The kernel's seccomp modes of all processes of a pod's container: 2 is a filter, 0 none."""
    proc = kube_host.node.runtime.inside("/proc")
    (pids,) = container_cpusets.list_container_processes(proc, [script_pods.container_of(pod)]).values()
    lines = "\n".join((proc / f"{pid}/status").read_text() for pid in pids)
    return set(re.findall(r"^Seccomp:\s*(\d)", lines, re.MULTILINE))
