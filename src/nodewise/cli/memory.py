"""How a server keeps its memory: so that requests wait neither for the garbage collector nor for the kernel."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import mmap
from itertools import count
from typing import Final

_THRESHOLDS: Final = (50_000, 100, 100)
"""For when `tidy` cannot keep up."""
_TIDY_S: Final = 0.25
_OLDER_EACH: Final = 4
"""Every so many times also those that were left the last times."""
_ALL_EACH: Final = 240
"""Every so many times all that are not kept for good."""
_KEPT_FROM: Final = 40
"""After so many times, when everything has run once, what is there then is kept as well."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `malloc.h`."""
_POPULATE_WRITE: Final = 23
"""Of Linux's `mman.h`, from 5.14 on."""
_KEPT_BYTES: Final = 32 * 2**20
"""So much that is free may stay the process's own: a few times what a request, or a metric's answer, needs."""
_LARGE_BYTES: Final = 8 * 2**20
"""What is larger is taken from the kernel and given back at once: requests with whole nodes."""
_AHEAD_BYTES: Final = 4 * 2**20
"""So much more than what is in use has its pages: what some tens of requests keep."""
_AT_ONCE_BYTES: Final = 32 * mmap.PAGESIZE
"""While the kernel hands these out, nobody else of the process can have more memory of it."""
_LOOK_S: Final = 0.1


def settle() -> None:
    """To be called when all is imported and nobody is served yet.

    What is there at the start stays, and the garbage collector need not walk through it while requests wait: 5,000
    young objects take half a millisecond, and two where others use the processor's cache.

    What one request needs for its time is kept for the next. An answer about 5,000 nodes takes some 300 pages, and the
    kernel needs up to a hundredth of a millisecond for each page that it hands out; glibc would give many of them back
    after each answer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    with contextlib.suppress(AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


async def tidy() -> None:
    """Collect garbage some times a second, in a step of its own, and not on top of whatever makes an object just then.

    Never ends. Nothing is left to the collector itself: each of these sets its count of new objects to zero, so it
    would never come to what is old. To walk through the 6,000 objects or so that are there when everything has run once
    takes some two milliseconds, so they are left out.
    """
    for number in count(1):
        await asyncio.sleep(_TIDY_S)
        gc.collect(2 if number % _ALL_EACH == 0 else 1 if number % _OLDER_EACH == 0 else 0)
        if number == _KEPT_FROM:
            gc.freeze()


async def stay_ahead() -> None:
    """Have a thread ask the kernel for the pages that requests will need next, while the event loop goes on.

    Decisions are kept, so memory grows with the requests, and whoever touches a new page waits for the kernel. To be
    run on the thread that serves: others have heaps of their own. Ends at once where the kernel cannot be asked so, or
    the C library is not glibc.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mallopt"):
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    seen = None
    while True:
        # where the heap would take so much from: it has it now, but for the pages
        place = libc.malloc(_AHEAD_BYTES)
        libc.free(place)
        state = place, libc.sbrk(0)
        if place and state != seen:
            if await asyncio.to_thread(_populate, libc, place) == errno.EINVAL:
                return
            seen = state
        await asyncio.sleep(_LOOK_S)


def _populate(libc: ctypes.CDLL, place: int) -> int:
    """0, or why the kernel refuses: what is no longer mapped there, for one, was given back meanwhile."""
    begin = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE
    for part in range(begin, place + _AHEAD_BYTES - _AT_ONCE_BYTES, _AT_ONCE_BYTES):
        if libc.madvise(part, _AT_ONCE_BYTES, _POPULATE_WRITE):
            return ctypes.get_errno()
    return 0
