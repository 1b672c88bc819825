"""The CPU manager's API client on a real API server."""

from collections.abc import Iterator

import pytest

from cpu_tests.unit.api_client_suite import CONFIG_MAPS, ApiClientSuite, item
from nodewise.base.errors import Refused, Unavailable
from nodewise.kube.kubeconfig import KubeOptions
from nodewise_cpu.cluster import api_server
from nodewise_cpu.cluster.blocking_client import BlockingApiClient
from tests.cluster import child_processes
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox


@pytest.fixture
def api_client(plane: ControlPlane) -> Iterator[BlockingApiClient]:
    options = KubeOptions(kubeconfig=str(plane.admin.kubeconfig), kube_qps=1000, kube_burst=1000)
    with BlockingApiClient(options) as opened:
        yield opened


@pytest.fixture
def space(sandbox: Sandbox) -> str:
    return sandbox.namespace


class TestBlockingOnReal(ApiClientSuite):
    def test_a_version_may_be_asked_in_the_path(self, api_client: BlockingApiClient, space: str) -> None:
        api_client.create(CONFIG_MAPS.path(space) + "?dryRun=All", item("dry"))
        assert api_client.get(CONFIG_MAPS.path(space), {"fieldSelector": "metadata.name=dry"})["items"] == []


def test_the_version_of_today_is_spoken(api_client: BlockingApiClient) -> None:
    assert api_server.fetch_features(api_client) == api_server.TABLE[-1]


def test_a_user_without_rights_is_refused(plane: ControlPlane, space: str) -> None:
    nobody = plane.user("nobody-of-cpus")
    options = KubeOptions(kubeconfig=str(nobody.kubeconfig))
    with BlockingApiClient(options) as opened, pytest.raises(Refused, match="grant this right"):
        opened.get(CONFIG_MAPS.path(space, "a"))


def test_no_answer_is_unavailable(plane: ControlPlane) -> None:
    gone = plane.folder / "gone.kubeconfig"
    text = plane.admin.kubeconfig.read_text()
    gone.write_text(text.replace(plane.url.rpartition(":")[2], str(child_processes.free_port())))
    with BlockingApiClient(KubeOptions(kubeconfig=str(gone))) as opened, pytest.raises(Unavailable):
        opened.get("/version")
