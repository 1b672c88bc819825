"""Laws of `isolate` as real processes: many at once, which somebody ends at any time in any way."""

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.cmk import crowd, isolating


@settings(max_examples=2)
@given(st.integers(0, 2**32))
def test_no_cpu_has_two_owners_and_nothing_is_left(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = isolating.made(Path(folder), crowd.fresh())
        crowd.keep_the_law(crowd.Crowd(node, Path(folder), random.Random(seed), {}), node.store)
