"""Memory of requests: the kernel clears each page that a process maps anew, which takes longer than the request."""

import subprocess
import sys

import pytest

PROGRAM = """
import json, resource
from nodewise.cli import server_components
from nodewise.metrics.node_index import NodeIndex
{setting}
names = [f"ip-10-{{number >> 8}}-{{number & 255}}.eu-central-1.compute.internal" for number in range({nodes})]
index, listed = NodeIndex(names), json.dumps(names, separators=(",", ":")).encode()
for number in range(120):
    if number == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    index.read(bytes(bytearray(listed)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 100)
"""


KEPT = "memory = server_components.RequestMemory(); memory.keep(0); memory.keep({nodes})"


def page_faults_per_request(setting: str, nodes: int) -> int:
    program = PROGRAM.format(setting=setting, nodes=nodes)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(ended.stdout)


@pytest.mark.parametrize("nodes", [5000, 50_000])
def test_the_extender_keeps_the_memory_of_one_request_for_the_next(nodes: int) -> None:
    assert page_faults_per_request(KEPT.format(nodes=nodes), nodes) < 10


def test_the_controller_returns_the_memory_of_each_request() -> None:
    assert page_faults_per_request("server_components.return_freed_blocks()", 5000) > 100
