"""How many cases a test tries: few in `make test` and `make test-cluster`, many in `make test-long`."""

import os
from typing import Final, TypeVar

Value = TypeVar("Value")

LONG: Final = os.environ.get("TESTS_EXTENT") == "long"


def of(usual: Value, long: Value) -> Value:
    """The value for this run."""
    return long if LONG else usual
