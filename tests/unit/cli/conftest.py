"""Resets the log configuration after each test, because commands run in the process of the tests and configure it."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    yield
    structlog.reset_defaults()
