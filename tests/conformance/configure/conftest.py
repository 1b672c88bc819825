from pathlib import Path

import pytest

from tests.conformance.configure.hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
