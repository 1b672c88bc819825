"""The learn pages that need a cluster, followed literally, in their order.

Real are all commands of nodewise and kubectl, the API server, the controllers, both schedulers, the image, the kubelet
and containerd. kind cannot run without Docker: `laptop` describes its replacement.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docs_page_code_blocks
from tests.cluster import debian_packages, image_archive
from tests.cluster.conftest import get_or_skip
from tests.node import host_with_kubelet
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.learn_page_program_replacements import REAL, laptop, other_nodes

pytestmark = pytest.mark.cluster

CLUSTER = docs_page_code_blocks.LEARN / "a-cluster-on-a-laptop.md"
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


def test_a_cluster_and_a_policy(
    request: pytest.FixtureRequest,
    cluster: KubernetesHost,
    control_plane_programs: Path,
    container_programs: debian_packages.ContainerPrograms,
    tmp_path: Path,
) -> None:
    archive = get_or_skip(request, image_archive.archive)
    end = docs_page_code_blocks.section(CLUSTER, "## Clean up")
    begin = [block for block in docs_page_code_blocks.blocks(CLUSTER) if block not in end]
    policy_blocks = docs_page_code_blocks.blocks(POLICY)
    assert len(begin) > 5
    assert len(end) == 1
    assert len(policy_blocks) > 10
    with laptop(cluster, control_plane_programs, container_programs.busybox, archive, tmp_path) as reader:
        try:
            reader.follows([*begin, *policy_blocks, *end])
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{cluster.describe_state('nodewise', app='nodewise-scheduler')}"
            ) from None
        assert not (tmp_path / "kubeconfig").exists()
