from pathlib import Path

import pytest

from tests.conformance.configure.control_plane_hosts import ControlPlaneHost


@pytest.fixture
def host(tmp_path: Path) -> ControlPlaneHost:
    return ControlPlaneHost(tmp_path)
