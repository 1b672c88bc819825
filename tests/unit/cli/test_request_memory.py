"""Memory of requests: the kernel clears each page that a process maps anew, which takes longer than the request."""

import subprocess
import sys

PROGRAM = """
import json, resource
from nodewise.cli import server_components
from nodewise.metrics.node_index import NodeIndex
server_components.return_freed_blocks(*{options})
names = [f"ip-10-0-{{number >> 8}}-{{number & 255}}.eu-central-1.compute.internal" for number in range(5000)]
index, listed = NodeIndex(names), json.dumps(names, separators=(",", ":")).encode()
for number in range(120):
    if number == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    index.read(bytes(bytearray(listed)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 100)
"""


def page_faults_per_request(options: str) -> int:
    program = PROGRAM.format(options=options)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(ended.stdout)


def test_the_extender_keeps_the_memory_of_one_request_for_the_next() -> None:
    options = "(server_components.REQUEST_BLOCK_BYTES, server_components.REQUEST_FREE_BYTES)"
    assert page_faults_per_request(options) < 10
    assert page_faults_per_request("()") > 100  # as the controller, which answers no such requests


TRIMMING = """
import asyncio
from pathlib import Path
from nodewise.base.clock import ManualClock
from nodewise.cli import server_components
def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256
server_components.return_freed_blocks()
blocks = [b"x" * (50_000 + number) for number in range(2000)]
kept = blocks[::10]
del blocks
before = resident_mib()
async def trim():
    task = asyncio.create_task(server_components.create_heap_trim_task(ManualClock())())
    await asyncio.sleep(0.1)
    task.cancel()
asyncio.run(trim())
print(before - resident_mib())
"""


def test_controller_returns_free_blocks_between_others() -> None:
    ended = subprocess.run([sys.executable, "-c", TRIMMING], capture_output=True, text=True, check=True)
    assert int(ended.stdout) > 20
