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


GROWING = """
import asyncio, resource
from nodewise.cli import memory

def pages():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

async def grow(seconds):
    asked = 0
    for _ in range(200):
        before = pages()
        kept.append([b"x" * 20_000 for _ in range(5)])
        asked += pages() - before
        await asyncio.sleep(seconds)
    return asked

async def run():
    ahead = asyncio.create_task(memory.stay_ahead())
    await asyncio.sleep(0.3)
    print(await grow(0.01), await grow(0), ahead.done())

kept = []
memory.settle()
asyncio.run(run())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have their own ways")
def test_what_is_kept_of_requests_finds_its_pages_there():
    ended = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True)
    slowly, at_once, is_over = ended.stdout.split()
    if is_over == "True":
        pytest.skip("this kernel cannot be asked for pages ahead: it is older than 5.14")
    assert int(at_once) > 2_000  # of 4,900: nobody could stay ahead
    assert int(slowly) < 1_000


OLD = """
import asyncio, gc, weakref
from nodewise.cli import memory

class Circle:
    def __init__(self):
        self.itself = self

async def run():
    tidying = asyncio.create_task(memory.tidy())
    while not gc.get_freeze_count() > kept:
        await asyncio.sleep(0.001)
    old = Circle()
    gone = weakref.ref(old)
    gc.collect()
    gc.collect()  # old enough for the last generation
    del old
    for _ in range(1000):
        await asyncio.sleep(0.001)
        if gone() is None:
            break
    print(gone() is None, tidying.done())

memory.settle()
kept = gc.get_freeze_count()
memory._TIDY_S = 0.001
asyncio.run(run())
"""


def test_garbage_goes_however_old_it_is():
    ended = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "False"]
