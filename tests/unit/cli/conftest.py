"""Commands run in the process of the tests and configure its log, which is reset after each test."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
