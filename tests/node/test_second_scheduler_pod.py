"""What `nodewise configure --mode second-scheduler` prints, run by a real kubelet."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import extender_process
from tests.cluster.api import Object
from tests.cluster.custom_metrics import FakeCustomMetricsApi
from tests.cluster.extender_process import NODEWISE
from tests.cluster.test_namespaces import Sandbox, wait
from tests.node import host_kubelet, preferred_nodes
from tests.node.host_kubelet import KubernetesHost
from tests.node.preferred_nodes import FAR

pytestmark = pytest.mark.cluster

NAME, NAMESPACE = "nodewise-scheduler", "nodewise"
DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def clusters_own(whole: KubernetesHost) -> Iterator[None]:
    """Places what does not choose another scheduler, the other one among it."""
    process = whole.plane.start_scheduler({})
    yield
    process.stop()


@pytest.fixture(scope="module")
def scheduler(
    whole: KubernetesHost, clusters_own: None, image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Object]:
    """Its pod, ready, as `nodewise configure --mode second-scheduler | kubectl apply -f -` makes it."""
    extender_process.define(whole.plane.api)
    command = [NODEWISE, "configure", "--mode", "second-scheduler", "--image", image]
    environment = {"KUBECONFIG": str(whole.plane.admin.kubeconfig), "PATH": "/usr/bin:/bin"}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    file = tmp_path_factory.mktemp("second") / "second.yaml"
    file.write_text(text)
    whole.plane.kubectl("apply", "--validate=strict", "-f", str(file))
    try:
        yield whole.wait_ready(NAMESPACE, app=NAME)[0]
    finally:
        whole.plane.kubectl("delete", "--wait=false", "-f", str(file))
        wait("its pod is gone", lambda: None if whole.pods(NAMESPACE, app=NAME) else True)


def test_a_pod_that_chooses_it_is_placed_by_a_policy_and_others_as_ever(
    whole: KubernetesHost, room: Sandbox, heat: FakeCustomMetricsApi, scheduler: Object
) -> None:
    preferred_nodes.policy(room, heat, hot=FAR)
    room.pods(
        preferred_nodes.plain("plain", FAR), preferred_nodes.with_policy("web", FAR, schedulerName=NAME)
    )
    assert room.expect_bound("plain") == FAR
    assert room.expect_bound("web") == host_kubelet.NAME
    (pod,) = whole.pods(NAMESPACE, app=NAME)
    assert [status["restartCount"] for status in pod["status"]["containerStatuses"]] == [0, 0]
    assert pod["metadata"]["uid"] == scheduler["metadata"]["uid"]
    assert "forbidden" not in "".join(whole.log(pod, name) for name in ("scheduler", "nodewise")).lower()


@pytest.fixture
def doctor(whole: KubernetesHost, scheduler: Object) -> Iterator[None]:
    file = str(DEPLOY / "doctor.yaml")
    whole.plane.kubectl("apply", "--validate=strict", "-f", file)
    yield
    whole.plane.kubectl("delete", "-f", file)


def test_doctor_as_a_job_finds_nothing_wrong_with_it(whole: KubernetesHost, doctor: None) -> None:
    about = {"batch.kubernetes.io/job-name": "nodewise-doctor"}

    def ended() -> Object | None:
        job = whole.plane.api.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/nodewise-doctor")["status"]
        return job if job.get("succeeded") or job.get("failed") else None

    job = wait("it has looked", ended, 120, lambda: whole.told(NAMESPACE, **about))
    (pod,) = whole.pods(NAMESPACE, **about)
    assert job.get("succeeded") == 1, whole.log(pod, "doctor")
    assert "Nothing is wrong" in whole.log(pod, "doctor")
