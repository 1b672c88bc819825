"""Fixture: a node for runs of `isolate`."""

import os
from pathlib import Path

import pytest
from tests.cluster import skip_conditions

from cpu_tests.conformance import isolate_process
from cpu_tests.conformance.isolate_process import DirectoryNode


@pytest.fixture
def two_cpu_node(tmp_path: Path) -> DirectoryNode:
    """A node with CPUs 0 and 1 of this machine as exclusive cores."""
    if not {0, 1} <= os.sched_getaffinity(0):
        skip_conditions.not_run("isolate takes CPUs 0 and 1")
    return isolate_process.on_two_cpus(tmp_path)
