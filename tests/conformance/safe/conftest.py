from collections.abc import Iterator

import pytest

from tests.conformance.safe.test_processes import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("scoring"))
    yield made
    made.close()
