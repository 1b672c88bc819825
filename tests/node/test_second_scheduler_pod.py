"""What `nodewise configure --mode second-scheduler` prints, run by a real kubelet."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process
from tests.cluster.api_client import Object
from tests.cluster.extender_process import NODEWISE
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import host_with_kubelet, preferred_nodes
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR

pytestmark = pytest.mark.cluster

NAME, NAMESPACE = "nodewise-scheduler", "nodewise"
DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def cluster_scheduler(kube_host: KubernetesHost) -> Iterator[None]:
    """Places what does not choose another scheduler, the other one among it."""
    process = kube_host.plane.start_scheduler({})
    yield
    process.stop()


@pytest.fixture(scope="module")
def scheduler(
    kube_host: KubernetesHost, cluster_scheduler: None, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Object]:
    """Its pod, ready, as `nodewise configure --mode second-scheduler | kubectl apply -f -` makes it."""
    extender_process.define(kube_host.plane.api)
    command = [NODEWISE, "configure", "--mode", "second-scheduler", "--image", image]
    environment = {"KUBECONFIG": str(kube_host.plane.admin.kubeconfig), "PATH": "/usr/bin:/bin"}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    file = tmp_path_factory.mktemp("second") / "second.yaml"
    file.write_text(text)
    kube_host.plane.kubectl("apply", "--validate=strict", "-f", str(file))
    try:
        yield kube_host.wait_ready(NAMESPACE, app=NAME)[0]
    finally:
        kube_host.plane.kubectl("delete", "--wait=false", "-f", str(file))
        wait("its pod is gone", lambda: None if kube_host.pods(NAMESPACE, app=NAME) else True)


def test_a_pod_that_chooses_it_is_placed_by_a_policy_and_others_as_ever(
    kube_host: KubernetesHost, host_sandbox: Sandbox, metrics_api: FakeCustomMetricsApi, scheduler: Object
) -> None:
    preferred_nodes.policy(host_sandbox, metrics_api, hot=FAR)
    host_sandbox.pods(
        preferred_nodes.plain("plain", FAR), preferred_nodes.with_policy("web", FAR, schedulerName=NAME)
    )
    assert host_sandbox.expect_bound("plain") == FAR
    assert host_sandbox.expect_bound("web") == host_with_kubelet.NAME
    (pod,) = kube_host.pods(NAMESPACE, app=NAME)
    assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0, 0]
    assert pod["metadata"]["uid"] == scheduler["metadata"]["uid"]
    assert "forbidden" not in "".join(kube_host.log(pod, name) for name in ("scheduler", "nodewise")).lower()


@pytest.fixture
def doctor(kube_host: KubernetesHost, scheduler: Object) -> Iterator[None]:
    file = str(DEPLOY / "doctor.yaml")
    kube_host.plane.kubectl("apply", "--validate=strict", "-f", file)
    yield
    kube_host.plane.kubectl("delete", "-f", file)


def test_doctor_as_a_job_finds_nothing_wrong_with_it(kube_host: KubernetesHost, doctor: None) -> None:
    about = {"batch.kubernetes.io/job-name": "nodewise-doctor"}

    def ended() -> Object | None:
        job = kube_host.plane.api.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/nodewise-doctor")["status"]
        return job if job.get("succeeded") or job.get("failed") else None

    job = wait("it has looked", ended, 120, lambda: kube_host.describe_state(NAMESPACE, **about))
    (pod,) = kube_host.pods(NAMESPACE, **about)
    assert job.get("succeeded") == 1, kube_host.log(pod, "doctor")
    assert "Nothing is wrong" in kube_host.log(pod, "doctor")
