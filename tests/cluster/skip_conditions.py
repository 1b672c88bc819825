"""Skips tests that this machine cannot run. pytest prints the reasons at the end of the run.

`make test-cluster REQUIRE=all` sets TESTS_REQUIRE=all, which turns each skip into a failure.
"""

import os
from typing import NoReturn

import pytest


def not_run(why: str) -> NoReturn:
    """Skips or fails a test that this machine cannot run. `why` should end with the command that fixes this."""
    if os.environ.get("TESTS_REQUIRE") == "all":
        pytest.fail(f"not run: {why}", pytrace=False)
    pytest.skip(f"not run: {why}")
