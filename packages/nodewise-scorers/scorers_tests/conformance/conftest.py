from collections.abc import Iterator

import pytest

from scorers_tests.conformance.extender_processes import ExtenderPool


@pytest.fixture(scope="session")
def extenders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExtenderPool]:
    made = ExtenderPool(tmp_path_factory.mktemp("scoring"))
    yield made
    made.close()
