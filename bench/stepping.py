"""The extender's process with each step of its event loop measured: what `nodewise extender` is otherwise.

    python -m bench.stepping STEPS extender --cert FILE …

The first argument is a file; the rest is nodewise's command line. The loop is uvloop's, as in the program, with the
callbacks that are handed to it measured on their way: steps of tasks, timers, readiness of sockets, bytes that came
for the scheduler's connections, handshakes with new clients. What uvloop does by itself between two of them (reading
and writing, accepting, TLS's records) counts as a step as well; more than one read may hide in it, so it is an upper
bound.

A step's wall time holds other programs' time on a busy machine, its CPU time does not; both are written at once, one
JSON line for each step of `LEAST_MS` and more. With them go the new pages of memory that it had from the kernel: what
one costs is up to the machine, from half a microsecond to, in a virtual machine that has to get it from its host, a
dozen.
"""

import asyncio
import functools
import gc
import json
import resource
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.steps import LEAST_MS, Step
from nodewise.cli import extender, main
from nodewise.serve.protocol import Connection

UNSEEN: Final = "uvloop itself: reading, writing, accepting"


class Steps:
    """Measures on one thread: that of the event loop."""

    def __init__(self, tell: Callable[[Step], Any]) -> None:
        self.tell = tell
        self.count = 0
        self._ended_cpu_s = time.thread_time()
        self._ended_pages = _pages()
        self._depth = 0
        self._gc_s = 0.0
        self._gc_began_s = 0.0
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_s = time.monotonic()
        else:
            self._gc_s += time.monotonic() - self._gc_began_s

    def run(self, callback: Callable[..., Any], *arguments: Any) -> Any:
        """Call it as a step, unless it is called within one."""
        if self._depth:
            return callback(*arguments)
        began_s, began_cpu_s, pages = time.monotonic(), time.thread_time(), _pages()
        self._note(began_s, 0.0, began_cpu_s - self._ended_cpu_s, pages - self._ended_pages, UNSEEN)
        self._depth = 1
        try:
            return callback(*arguments)
        finally:
            self._depth = 0
            cpu_s, wall_s = time.thread_time() - began_cpu_s, time.monotonic() - began_s
            self._ended_pages = _pages()
            self._note(began_s, wall_s, cpu_s, self._ended_pages - pages, callback)
            self._ended_cpu_s = time.thread_time()  # to note it is no step

    def _note(
        self, at_s: float, wall_s: float, cpu_s: float, pages: int, ran: str | Callable[..., Any]
    ) -> None:
        self.count += 1
        if max(wall_s, cpu_s) * 1000 >= LEAST_MS:
            times = (round(spent_s * 1000, 3) for spent_s in (wall_s, cpu_s, self._gc_s))
            self.tell(Step(at_s, *times, pages, ran if isinstance(ran, str) else name_of(ran)))
        self._gc_s = 0.0


def _pages() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def name_of(callback: Any) -> str:
    """Which of our functions a task waits in after the step, from the outside in; else the function itself."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    return " > ".join(_ours(task.get_coro())) or task.get_coro().__qualname__


def _ours(coroutine: Any) -> Iterator[str]:
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "ag_code", None)
        if code is not None and "/nodewise/" in code.co_filename:
            yield coroutine.__qualname__
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)


STEPS: Final = Steps(lambda _: None)


class Loop(uvloop.Loop):  # type: ignore[misc]
    """uvloop's, with its callbacks measured."""

    def call_soon(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon(STEPS.run, callback, *arguments, context=context)

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(STEPS.run, callback, *arguments, context=context)

    def call_later(self, delay: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_later(delay, STEPS.run, callback, *arguments, context=context)

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Any = None) -> Any:
        return super().call_at(when, STEPS.run, callback, *arguments, context=context)

    def add_reader(self, source: Any, callback: Any, *arguments: Any) -> Any:
        return super().add_reader(source, STEPS.run, callback, *arguments)


def _measure_connections() -> None:
    """That there is a new one, and the bytes that come: `Connection` is told by uvloop itself."""
    for name in ("connection_made", "data_received"):
        setattr(Connection, name, _measured(getattr(Connection, name)))


def _measured(inner: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(inner)
    def told(self: Connection, what: Any) -> None:
        STEPS.run(inner, self, what)

    return told


class Handshaking(ssl.SSLObject):
    """TLS of one connection; each of a handshake's steps is one of the loop."""

    def do_handshake(self) -> None:
        STEPS.run(super().do_handshake)


def run() -> None:
    file = Path(sys.argv[1]).open("w", buffering=1)  # noqa: SIM115 - it is open as long as the process lives
    STEPS.tell = lambda step: file.write(json.dumps(step._asdict()) + "\n")
    _measure_connections()
    ssl.SSLContext.sslobject_class = Handshaking
    extender._event_loop = Loop  # noqa: SLF001 - the one place where the program chooses its loop
    main.run(sys.argv[2:])


if __name__ == "__main__":
    run()
