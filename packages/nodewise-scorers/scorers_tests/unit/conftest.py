"""Fixtures of all unit tests."""

from tests.unit.conftest import default_logs

__all__ = ["default_logs"]
