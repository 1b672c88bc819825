"""What the process does with its memory, seen from the kernel: how many new pages it asks for."""

import platform
import subprocess
import sys

import pytest

ANSWERS = """
import resource
from nodewise.cli import memory

memory.settle()

def answer():
    parts = [b"x" * 300_000 for _ in range(4)]
    return len(parts)

answer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    answer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_what_an_answer_needed_is_kept_for_the_next():
    ended = subprocess.run([sys.executable, "-c", ANSWERS], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 100  # an answer is of 293 pages
