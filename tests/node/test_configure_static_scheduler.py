"""`nodewise configure` on a host whose real kubelet runs a real kube-scheduler as a static pod, as kubeadm has it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process
from tests.cluster.api_client import Object
from tests.cluster.extender_process import NODEWISE
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.test_certs import WrittenCertificates
from tests.node import host_with_kubelet, preferred_nodes, script_pods, static_pod_scheduler
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR
from tests.node.static_pod_scheduler import StaticScheduler

pytestmark = pytest.mark.cluster

EXTENDER = ("127.0.0.1", 9001)
URL = "https://127.0.0.1:9001"


@pytest.fixture
def scheduler(kube_host: KubernetesHost) -> Iterator[StaticScheduler]:
    with static_pod_scheduler.running(kube_host) as running:
        yield running


@pytest.fixture
def policy(host_sandbox: Sandbox, metrics_api: FakeCustomMetricsApi) -> None:
    """One that leaves only the real node."""
    preferred_nodes.policy(host_sandbox, metrics_api, hot=FAR)


@pytest.fixture
def certificates(tmp_path: Path) -> WrittenCertificates:
    written = WrittenCertificates(tmp_path / "pki")
    written.certs("--name=127.0.0.1")
    return written


def configure(certificates: WrittenCertificates, *more: str) -> list[str | Path]:
    pair = (
        "-cert",
        certificates.client.cert,
        "-key",
        certificates.client.key,
        "--ca",
        certificates.authority.ca_file,
    )
    return [NODEWISE, "configure", *pair, f"--extender-url={URL}", *more]


def plain(name: str) -> Object:
    """A pod that would rather be on the far node."""
    return preferred_nodes.plain(name, FAR)


def with_policy(name: str) -> Object:
    """The same, but its policy says otherwise."""
    return preferred_nodes.with_policy(name, FAR)


def test_a_static_scheduler_is_configured_and_restored(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    policy: None,
    scheduler: StaticScheduler,
    certificates: WrittenCertificates,
    tmp_path: Path,
) -> None:
    original = scheduler.manifest.read_bytes()
    host_sandbox.pods(plain("before"), with_policy("waiting"))
    assert host_sandbox.expect_bound("before") == FAR
    assert "Insufficient telemetry/scheduling" in host_sandbox.expect_rejected("waiting")
    with extender_process.extender(
        kube_host.plane, tmp_path, *certificates.flags, certificates=certificates
    ) as nodewise:
        nodewise.wait_fetched("heat")
        scheduler.forward(EXTENDER, nodewise.url)
        assert kube_host.try_run(*configure(certificates, "--check")).returncode == 3
        assert scheduler.manifest.read_bytes() == original

        before = scheduler.current_state()
        kube_host.output_of(*configure(certificates))
        scheduler.wait_replaced_pod(before)
        assert host_sandbox.expect_bound("waiting") == host_with_kubelet.NAME
        script_pods.running(host_sandbox, "waiting")
        host_sandbox.pods(plain("plain"), with_policy("web"))
        assert host_sandbox.expect_bound("plain") == FAR
        assert host_sandbox.expect_bound("web") == host_with_kubelet.NAME
        assert nodewise.decisions("web")

        configured = scheduler.wait_ready()
        text = scheduler.manifest.read_bytes()
        kube_host.output_of(*configure(certificates))
        assert kube_host.try_run(*configure(certificates, "--check")).returncode == 0
        assert scheduler.manifest.read_bytes() == text
        # on a busy machine, it may lose its Lease, end, and be started again in the same pod
        assert scheduler.current_state()._replace(container="") == configured._replace(container="")
    host_sandbox.pods(plain("alone"), with_policy("left"))
    assert host_sandbox.expect_bound("alone") == FAR
    host_sandbox.expect_rejected("left")

    kube_host.output_of(NODEWISE, "configure", "--restore")
    assert scheduler.manifest.read_bytes() == original
    scheduler.wait_replaced_pod(configured)
    host_sandbox.pods(plain("after"), with_policy("again"))
    assert host_sandbox.expect_bound("after") == FAR
    assert "Insufficient telemetry/scheduling" in host_sandbox.expect_rejected("again")
    assert scheduler.current_state().hash == before.hash
    assert scheduler.names() == [scheduler.manifest.name]


def test_uninstall_keeps_later_changes_of_the_manifest(
    kube_host: KubernetesHost,
    host_sandbox: Sandbox,
    policy: None,
    scheduler: StaticScheduler,
    certificates: WrittenCertificates,
) -> None:
    """As by `kubeadm upgrade`, which asks for more of the scheduler; what it asked for stays."""
    original = scheduler.manifest.read_text()
    before = scheduler.current_state()
    kube_host.output_of(*configure(certificates))
    scheduler.write(scheduler.manifest.read_text().replace("cpu: 100m", "cpu: 50m"))
    kube_host.output_of(NODEWISE, "configure", "--uninstall")
    assert scheduler.manifest.read_text() == original.replace("cpu: 100m", "cpu: 50m")
    assert not kube_host.path("/etc/certs/client.key").exists()
    scheduler.wait_replaced_pod(before)
    host_sandbox.pods(plain("after"))
    assert host_sandbox.expect_bound("after") == FAR


def test_the_kubelet_runs_every_file_of_its_folder_but_those_that_begin_with_a_dot(
    kube_host: KubernetesHost, host_sandbox: Sandbox, scheduler: StaticScheduler
) -> None:
    """Hence no backup lies there, and what is about to be renamed into its place begins with a dot."""
    for name, file in {"hidden": ".kube-scheduler.yaml.new", "kept": "kube-scheduler.yaml.backup"}.items():
        pod = script_pods.pod(name, "exec sleep 1000", automountServiceAccountToken=None)
        pod["metadata"]["namespace"] = host_sandbox.namespace
        scheduler.place(file, json.dumps(pod))
    wait("the copy runs", lambda: host_sandbox.pod(f"kept-{host_with_kubelet.NAME}"))
    assert host_sandbox.pod(f"hidden-{host_with_kubelet.NAME}") is None
