"""Commands run in the tests' own process here, and set up its log."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
