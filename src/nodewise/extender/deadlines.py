"""Work in a thread of its own, waited for no longer than a deadline."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Failure = Literal["exception", "deadline", "busy", "shape", "slot"]
"""It raised; took too long; still does what it was told before; answered what it may not; lacks its slot."""


class Failed(Exception):
    """What was asked for is not there; `why` is in words, the cause is the exception's."""

    def __init__(self, failure: Failure, why: str) -> None:
        self.failure: Failure = failure
        self.why = why
        super().__init__(why)


class Outcome(NamedTuple):
    """What came of some work."""

    value: Any = None
    error: BaseException | None = None

    def got(self) -> Any:
        """The value. `Failed` for whatever was raised, be it a call to end the process."""
        if isinstance(self.error, Failed):
            raise self.error
        if self.error is not None:
            raise Failed("exception", type(self.error).__name__) from self.error
        return self.value


class Worker:
    """One thread that does one thing at a time. One that hangs keeps nothing else from going on, or from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Outcome]]] = SimpleQueue()
        self._newest: Future[Outcome] | None = None
        self._started = False

    def begin(self, work: Callable[[], Any]) -> Future[Outcome]:
        """Have it done. `Failed` while the thread does what it was told before."""
        if self._newest is not None and not self._newest.done():
            raise Failed("busy", "it has not come back from an earlier call")
        if not self._started:
            Thread(target=self._run, name=self._name, daemon=True).start()
            self._started = True
        self._newest = outcome = Future[Outcome]()
        self._queue.put((work, outcome))
        return outcome

    def do(self, work: Callable[[], T], deadline_s: float) -> T:
        """What comes of it. `Failed` if that is an error, or nothing until the deadline; then it goes on by itself."""
        begun = self.begin(work)
        try:
            outcome = begun.result(deadline_s)
        except TimeoutError:
            raise Failed("deadline", f"no answer within {deadline_s:g} s") from None
        value: T = outcome.got()
        return value

    def _run(self) -> None:
        while True:
            work, done = self._queue.get()
            try:
                outcome = Outcome(work())
            except BaseException as error:  # noqa: BLE001 - nobody but who asked is to know of it
                outcome = Outcome(error=error)
            done.set_result(outcome)
            del work, done, outcome  # nothing is held while nobody asks
