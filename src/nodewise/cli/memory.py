"""How a server keeps its memory: so that requests wait neither for the garbage collector nor for the kernel."""

import contextlib
import ctypes
import gc
from typing import Final

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `malloc.h`."""
_KEPT_BYTES: Final = 32 * 2**20
"""So much that is free may stay the process's own: a few times what a request, or a metric's answer, needs."""
_LARGE_BYTES: Final = 8 * 2**20
"""What is larger is taken from the kernel and given back at once: requests with whole nodes."""


def settle() -> None:
    """To be called when all is imported and nobody is served yet.

    What is there at the start stays, and the garbage collector need not walk through it while requests wait: 5,000
    young objects take half a millisecond.

    What one request needs for its time is kept for the next. An answer about 5,000 nodes takes some 300 pages, and the
    kernel needs up to a hundredth of a millisecond for each page that it hands out; glibc would give many of them back
    after each answer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 100, 100)
    with contextlib.suppress(AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
