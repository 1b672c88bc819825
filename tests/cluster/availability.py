"""What a test run could not set up is said, never skipped in silence.

`make test` collects every reason that begins with `not run: ` into the list it closes with; REQUIRE=all,
which comes here as NODEWISE_REQUIRE=all, makes each of them a failure.
"""

import os
from typing import NoReturn

import pytest


def not_run(why: str) -> NoReturn:
    """Ends a test that this machine cannot run; `why` closes with the command that would set it up."""
    if os.environ.get("NODEWISE_REQUIRE") == "all":
        pytest.fail(f"not run: {why}", pytrace=False)
    pytest.skip(f"not run: {why}")
