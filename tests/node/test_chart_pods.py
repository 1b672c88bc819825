"""The Helm chart with the real image, run by a real kubelet."""

import contextlib
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from nodewise.cpu.cpusets import cpuset
from tests.cluster.api import Object
from tests.cluster.custom_metrics import FakeCustomMetricsApi
from tests.cluster.extender_process import NODEWISE
from tests.cluster.test_certs import AppliedCertificates
from tests.cluster.test_chart import CHART, Helm, helm_program
from tests.cluster.test_namespaces import Sandbox, wait
from tests.node import cpu_manager, cpu_workloads, host_kubelet, preferred_nodes, static_scheduler
from tests.node.cpu_manager import EXCLUSIVE, ISOLATE, CpuManagerOnNode
from tests.node.host_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR
from tests.node.static_scheduler import StaticScheduler

__all__ = ["helm_program"]

pytestmark = pytest.mark.cluster

SERVICE = "10.0.0.50"
NEW_NAME = "nodewise.example"
EXTENDER = {"app.kubernetes.io/component": "extender"}
ANNOTATOR = {"app.kubernetes.io/component": "annotator"}
PAUSE_S = 0.25


class HelmRelease:
    """The chart, installed in the test's namespace."""

    def __init__(
        self, whole: KubernetesHost, room: Sandbox, helm: Helm, values: dict[str, str], *files: Path
    ) -> None:
        self.whole, self.room, self._helm = whole, room, helm
        options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        options += [f"--values={file}" for file in files]
        self._release = ["nodewise", str(CHART), "--namespace", room.namespace, *options]

    def install(self) -> None:
        done = self._helm.run("install", *self._release)
        assert done.returncode == 0, f"{done.stderr} {self.whole.told(self.room.namespace)}"

    def upgrade(self, *more: str) -> None:
        self._helm.said("upgrade", *self._release, *more)

    def uninstall(self) -> None:
        self._helm.said("uninstall", "nodewise", "--namespace", self.room.namespace)

    def pods(self, count: int) -> list[Object]:
        """This number of replicas, once they are ready."""
        return self.whole.wait_ready(self.room.namespace, count, **EXTENDER)


@contextlib.contextmanager
def installed(
    whole: KubernetesHost, room: Sandbox, helm: Helm, values: dict[str, str], *files: Path
) -> Iterator[HelmRelease]:
    release = HelmRelease(whole, room, helm, values, *files)
    release.install()
    try:
        yield release
    finally:
        release.uninstall()


@pytest.fixture
def helm(helm_program: Path, whole: KubernetesHost, tmp_path: Path) -> Helm:
    return Helm(helm_program, whole.plane.admin.kubeconfig, tmp_path)


@pytest.fixture
def scheduler(whole: KubernetesHost) -> Iterator[StaticScheduler]:
    with static_scheduler.running(whole) as running:
        yield running


@pytest.fixture
def release(
    whole: KubernetesHost, room: Sandbox, helm: Helm, image: str, scheduler: StaticScheduler
) -> Iterator[HelmRelease]:
    """Two replicas with all agents behind their Service, with certificates as `nodewise certs` makes them."""
    AppliedCertificates(room, whole.plane.admin)("--apply", f"--name={SERVICE}")
    values = {
        "service.clusterIP": SERVICE,
        "settings.sync_period": "500ms",
        "tls.renewal.names": f"{{{NEW_NAME}}}",
        "agents.telemetry.settings.advertise_resource": "",  # the node outlives the release
        "cpu.enabled": "false",
    }
    with installed(whole, room, helm, values, CHART / "values/values-all.yaml") as release:
        release.pods(2)
        whole.wait_ready(room.namespace, **ANNOTATOR)
        whole.network.serve(whole.plane.api, room.namespace, "nodewise")
        yield release


def renew(whole: KubernetesHost, room: Sandbox) -> None:
    """Renew the certificates as the CronJob does. One lacks a name, so a new authority is announced."""
    space = f"--namespace={room.namespace}"
    whole.plane.kubectl(space, "create", "job", "renewal", "--from=cronjob/nodewise-certs")
    path = f"/apis/batch/v1/namespaces/{room.namespace}/jobs/renewal"

    def succeeded() -> bool | None:
        return room.api.get(path).get("status", {}).get("succeeded") == 1 or None

    about = {"batch.kubernetes.io/job-name": "renewal"}
    wait("the job is done", succeeded, 120, lambda: whole.told(room.namespace, **about))


def configure(whole: KubernetesHost, room: Sandbox, folder: Path) -> None:
    """Configure the host's scheduler for the Service, with the current content of its client Secret."""
    held = AppliedCertificates(room, whole.plane.admin).held()[1]
    files = {"-cert": "tls.crt", "-key": "tls.key", "--ca": "ca.crt"}
    for name in files.values():
        (folder / name).write_bytes(held[name])
    options = [word for flag, name in files.items() for word in (flag, str(folder / name))]
    whole.said(NODEWISE, "configure", *options, f"--extender-url=https://{SERVICE}:9001")


def shown(whole: KubernetesHost) -> int:
    """The serial number of the certificate that the Service presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with whole.network.connect((SERVICE, 9001)) as plain, context.wrap_socket(plain) as secure:
        # a client without a certificate is rejected after the handshake
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number


class PodCreator:
    """Creates pods with a policy one after another, and records how many replicas are ready meanwhile."""

    def __init__(self, whole: KubernetesHost, room: Sandbox) -> None:
        self.made: list[str] = []
        self.ready: list[int] = []
        self._whole, self._room = whole, room
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            name = f"web-{len(self.made)}"
            self._room.pods(preferred_nodes.with_policy(name, host_kubelet.NAME))
            self.made.append(name)
            pods = self._whole.pods(self._room.namespace, **EXTENDER)
            self.ready.append(sum(map(host_kubelet.is_ready, pods)))

    def goes_on(self) -> None:
        """Wait until more pods are created and bound."""
        last = len(self.made) + 2
        wait("more pods are made", lambda: len(self.made) > last or None)
        assert self._room.expect_bound(f"web-{last}", 120) == FAR

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)


@contextlib.contextmanager
def stream(whole: KubernetesHost, room: Sandbox) -> Iterator[PodCreator]:
    """Pods until the end of the context: all are bound where the policy allows, at the first attempt."""
    made = PodCreator(whole, room)
    try:
        made.goes_on()
        yield made
    finally:
        made.stop()
    assert {room.expect_bound(name) for name in made.made} == {FAR}
    failed = room.api.get(
        f"/api/v1/namespaces/{room.namespace}/events", fieldSelector="reason=FailedScheduling"
    )
    assert [event["message"] for event in failed["items"] if "web-" in event["involvedObject"]["name"]] == []


def test_replicas_serve_the_scheduler_through_a_renewal_and_an_upgrade(
    whole: KubernetesHost,
    room: Sandbox,
    heat: FakeCustomMetricsApi,
    scheduler: StaticScheduler,
    release: HelmRelease,
    tmp_path: Path,
) -> None:
    preferred_nodes.policy(room, heat, hot=host_kubelet.NAME)
    before = scheduler.shown()
    configure(whole, room, tmp_path)
    configured = scheduler.wait_another_than(before)
    room.pods(
        preferred_nodes.plain("plain", host_kubelet.NAME),
        preferred_nodes.with_policy("first", host_kubelet.NAME),
    )
    assert room.expect_bound("plain") == host_kubelet.NAME
    assert room.expect_bound("first", 120) == FAR
    old, serial = release.pods(2), shown(whole)
    with stream(whole, room) as pods:
        renew(whole, room)
        configure(whole, room, tmp_path)
        scheduler.wait_another_than(configured)
        pods.goes_on()
        names = (f"--name={SERVICE}", f"--name={NEW_NAME}")
        AppliedCertificates(room, whole.plane.admin)("--apply", *names, "--restarted")
        release.upgrade("--set", "settings.sync_period=600ms")
        wait("a new certificate is served", lambda: shown(whole) != serial or None)
        configure(whole, room, tmp_path)
        pods.goes_on()
        wait("all replicas are new", lambda: _are_others(release, old) or None, 120)
        pods.goes_on()
    assert min(pods.ready) >= 2
    ours = x509.load_pem_x509_certificate(AppliedCertificates(room, whole.plane.admin).held()[0]["tls.crt"])
    assert shown(whole) == ours.serial_number
    for pod in (*release.pods(2), *whole.wait_ready(room.namespace, **ANNOTATOR)):
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        assert "forbidden" not in whole.log(pod, pod["spec"]["containers"][0]["name"]).lower()


def _are_others(release: HelmRelease, old: list[Object]) -> bool:
    pods = release.whole.pods(release.room.namespace, **EXTENDER)
    uids = {pod["metadata"]["uid"] for pod in pods}
    return len(uids) == len(old) and uids.isdisjoint(pod["metadata"]["uid"] for pod in old)


class TestCpuManager:
    """As docs/install.md has it: one command makes the pools of a node, installs the program, and runs the agent."""

    @pytest.fixture
    def clusters_own(self, whole: KubernetesHost) -> Iterator[None]:
        process = whole.plane.start_scheduler({})
        yield
        process.stop()

    @pytest.fixture
    def manager(
        self, whole: KubernetesHost, room: Sandbox, helm: Helm, image: str, clusters_own: None, tmp_path: Path
    ) -> Iterator[CpuManagerOnNode]:
        manager = CpuManagerOnNode(room, whole.node, whole.plane.admin, tmp_path)
        values = {
            "cpu.namespace": room.namespace,
            "cpu.createNamespace": "false",
            "cpu.setup.hosts": f"{{{host_kubelet.NAME}}}",
            "cpu.setup.args": "{--insecure=True,--num-exclusive-cores=1,--num-shared-cores=0}",
            "cpu.agent.args": f"{{--interval={cpu_manager.PERIOD_S:g}s}}",
        }
        with installed(whole, room, helm, values, CHART / "values/values-cmk.yaml"):
            yield manager
        wait("the agent is gone", lambda: None if whole.pods(room.namespace, app="cmk-agent") else True)
        manager.run("uninstall", *manager.place, "--proc-fs=/proc")

    def test_pods_get_cores_by_the_agent_s_socket(
        self, whole: KubernetesHost, room: Sandbox, manager: CpuManagerOnNode
    ) -> None:
        whole.wait_ready(room.namespace, app="cmk-agent")
        whole.wait_ready(room.namespace, 2, app="cmk-webhook-app")
        wait("the kubelet offers cores", lambda: manager.offered() == "1" or None, show=manager.offered)
        room.pods(cpu_manager.pod("pinned", f"exec {ISOLATE} -- busybox sleep 1000", whole.node.name))
        pod = cpu_workloads.running(room, "pinned")
        manager.wait_held(pod)
        assert set(manager.masks(pod).values()) == {EXCLUSIVE}
        room.api.delete(f"/api/v1/namespaces/{room.namespace}/pods/pinned")
        manager.wait_gone(pod)
        manager.wait_free()
        (agent,) = whole.wait_ready(room.namespace, app="cmk-agent")
        assert agent["status"]["containerStatuses"][0]["restartCount"] == 0
        assert "forbidden" not in whole.log(agent, "agent").lower()
        assert seccomp_modes(whole, agent) == {"2"}, "the runtime's profile holds"


def seccomp_modes(whole: KubernetesHost, pod: Object) -> set[str]:
    """The kernel's seccomp modes of all processes of a pod's container: 2 is a filter, 0 none."""
    proc = whole.node.runtime.inside("/proc")
    (pids,) = cpuset.list_processes(proc, [cpu_workloads.container_of(pod)]).values()
    lines = "\n".join((proc / f"{pid}/status").read_text() for pid in pids)
    return set(re.findall(r"^Seccomp:\s*(\d)", lines, re.MULTILINE))
