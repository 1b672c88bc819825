"""README and the learn pages that need a cluster, followed literally, in their order.

Real are all commands of nodewise and kubectl, the API server, the controllers, kube-scheduler, the image, the kubelet
and containerd. kind cannot run without Docker: `laptop` describes its replacement.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docs_page_code_blocks
from tests.cluster import (
    debian_packages,
    fake_custom_metrics_server,
    image_archive,
    namespace_sandboxes,
)
from tests.cluster.conftest import get_or_skip
from tests.node import host_with_kubelet
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.learn_page_program_replacements import REAL, laptop, other_nodes

pytestmark = pytest.mark.cluster

CLUSTER = docs_page_code_blocks.LEARN / "a-cluster-on-a-laptop.md"
README = docs_page_code_blocks.ROOT / "README.md"
NATIVE = docs_page_code_blocks.ROOT / "docs/native.md"
POLICY = docs_page_code_blocks.LEARN / "first-policy.md"


@pytest.fixture
def cluster(
    control_plane_programs: Path,
    kubelet_program: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path: Path,
) -> Iterator[KubernetesHost]:
    """The cluster that kind would create."""
    with host_with_kubelet.running(
        control_plane_programs, kubelet_program, container_programs, tmp_path, REAL
    ) as running:
        other_nodes(running)
        running.plane.start_scheduler({})
        yield running


@pytest.fixture
def metrics_of_nodes(cluster: KubernetesHost, tmp_path: Path) -> Iterator[None]:
    """A metrics API in which `nodewise-worker` is short of memory."""
    with (
        namespace_sandboxes.created(cluster.plane) as sandbox,
        fake_custom_metrics_server.behind(sandbox, tmp_path) as metrics,
    ):
        values = {"nodewise-worker": "0.9", REAL: "0.5", "nodewise-control-plane": "0.4"}
        metrics.set("memory_usage_share", values)
        yield


def test_an_installation_and_a_policy(
    request: pytest.FixtureRequest,
    cluster: KubernetesHost,
    metrics_of_nodes: None,
    control_plane_programs: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path: Path,
) -> None:
    archive = get_or_skip(request, image_archive.archive)
    to_nodewise = docs_page_code_blocks.section(CLUSTER, "## 1.", "\n## 3. ")
    end = docs_page_code_blocks.section(CLUSTER, "## Clean up")
    from_nodewise = [
        block for block in docs_page_code_blocks.blocks(CLUSTER) if block not in [*to_nodewise, *end]
    ]
    policy_file, status = docs_page_code_blocks.blocks(README)[:2]
    readme = [
        policy_file,
        *docs_page_code_blocks.section(README, "## Install"),
        *docs_page_code_blocks.section(README, "## The first policy", "\n`nodewise explain"),
        status,
    ]
    uninstall = docs_page_code_blocks.section(NATIVE, "## Uninstall")
    policy_blocks = docs_page_code_blocks.blocks(POLICY)
    sizes = [len(part) for part in (to_nodewise, readme, uninstall, from_nodewise, policy_blocks, end)]
    assert sizes == [3, 4, 1, 5, 15, 1]
    with laptop(cluster, control_plane_programs, container_programs.busybox, archive, tmp_path) as reader:
        try:
            reader.follows([*to_nodewise, *readme])
            reader.types("kubectl delete pod web")
            reader.follows([*uninstall, *from_nodewise, *policy_blocks, *end])
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{cluster.describe_state('nodewise', app='nodewise-controller')}"
            ) from None
        assert not (tmp_path / "kubeconfig").exists()


def test_managed_clusters_are_installed_as_the_readme_says() -> None:
    page = docs_page_code_blocks.HOW_TO / "managed-clusters.md"
    (install,) = docs_page_code_blocks.section(page, "## Install")
    (readme,) = docs_page_code_blocks.section(README, "## Install")
    assert readme.text.partition("\n")[2].replace(".venv/bin/", "") == install.text
