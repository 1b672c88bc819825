"""Work of many askers done by a few threads, so that nobody waits for longer because somebody else asks much."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

Job = Callable[[], None]


class Turns:
    """Does jobs, of each owner one at a time and in order; owners take turns.

    A job must not raise. `stop` waits for jobs under way; those that nobody began are dropped.
    """

    def __init__(self, threads: int) -> None:
        self._changed: Final = threading.Condition()
        self._waiting: dict[str, deque[Job]] = {}
        """Of each owner its jobs; who comes first is next."""
        self._busy: set[str] = set()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=f"answers-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, owner: str, job: Job) -> None:
        """Have it done; nothing once this was stopped."""
        with self._changed:
            if not self._stopped:
                self._waiting.setdefault(owner, deque()).append(job)
                self._changed.notify()

    def stop(self, grace_s: float) -> None:
        """Wait at most `grace_s` for each of what is under way."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(grace_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._next() is not None)
                owner = self._next()
                if owner is None:
                    return
                job = self._taken(owner)
            job()
            with self._changed:
                self._busy.remove(owner)
                self._changed.notify()

    def _next(self) -> str | None:
        return next((owner for owner in self._waiting if owner not in self._busy), None)

    def _taken(self, owner: str) -> Job:
        """Its oldest job; with more of them it comes last again."""
        jobs = self._waiting.pop(owner)
        job = jobs.popleft()
        if jobs:
            self._waiting[owner] = jobs
        self._busy.add(owner)
        return job
