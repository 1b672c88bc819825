"""An extender process for tests that only send requests. Its decision store is small, so that it is full at once."""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import control_plane_programs, plane, shared_control_plane
from tests.hostile import three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender

__all__ = ["control_plane_programs", "plane", "shared_control_plane"]

RING = "4Mi"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    folder = tmp_path_factory.mktemp("hostile")
    options = ["--objects-from", three_node_cluster_objects.write(folder), "--decisions-bytes", RING]
    with AttackedExtender(folder, options) as made:
        yield made
        assert made.process.is_running
        assert not made.events("request_failed")
        assert not made.events("agent_failed")
        assert not made.events("task_failed")
