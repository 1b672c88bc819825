"""Skips a test that this machine cannot run, with the reason, which pytest prints at the end of the run.

`make test-cluster REQUIRE=all` sets NODEWISE_REQUIRE=all, which turns each skip into a failure.
"""

import os
from typing import NoReturn

import pytest


def not_run(why: str) -> NoReturn:
    """Ends a test that this machine cannot run; `why` closes with the command that would set it up."""
    if os.environ.get("NODEWISE_REQUIRE") == "all":
        pytest.fail(f"not run: {why}", pytrace=False)
    pytest.skip(f"not run: {why}")
