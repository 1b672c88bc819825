"""What all unit tests share."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def default_logs() -> Iterator[None]:
    """Tests may configure how events are logged, and the files of a run come in any order."""
    yield
    structlog.reset_defaults()
