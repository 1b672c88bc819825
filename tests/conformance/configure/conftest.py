from pathlib import Path

import pytest

from tests.conformance.configure.control_plane_hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
