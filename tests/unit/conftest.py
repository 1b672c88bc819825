"""Fixtures of all unit tests."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def default_logs() -> Iterator[None]:
    """Reset the log configuration after each test, because tests change it and run in any order."""
    yield
    structlog.reset_defaults()
