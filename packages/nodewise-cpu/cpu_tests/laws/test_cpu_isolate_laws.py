"""Properties of concurrent `isolate` processes, which end at random times in different ways."""

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_tests.conformance import concurrent_isolates, isolate_process


@settings(max_examples=2)
@given(st.integers(0, 2**32))
def test_concurrent_isolates_never_share_a_cpu_and_leave_nothing(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = isolate_process.create_node(Path(folder), concurrent_isolates.fresh())
        concurrent_isolates.check_isolation(
            concurrent_isolates.ConcurrentIsolates(node, Path(folder), random.Random(seed), {}), node.store
        )
