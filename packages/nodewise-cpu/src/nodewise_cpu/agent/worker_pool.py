"""A pool of worker threads that is fair among owners: many jobs of one owner do not delay those of others."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

Job = Callable[[], None]


class FairWorkerPool:
    """Runs jobs: those of one owner one at a time and in order, owners in turn.

    A job must not raise. `stop` waits for running jobs and drops the others.
    """

    def __init__(self, threads: int) -> None:
        self._changed: Final = threading.Condition()
        self._queues: dict[str, deque[Job]] = {}
        """The jobs of each owner; the first owner is next."""
        self._busy_owners: set[str] = set()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run_jobs, name=f"answers-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, owner: str, job: Job) -> None:
        """Queue a job; ignored after `stop`."""
        with self._changed:
            if not self._stopped:
                self._queues.setdefault(owner, deque()).append(job)
                self._changed.notify()

    def stop(self, grace_s: float) -> None:
        """Wait at most `grace_s` for each running job."""
        with self._changed:
            self._stopped = True
            self._queues.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(grace_s)

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._next_owner() is not None)
                owner = self._next_owner()
                if owner is None:
                    return
                job = self._take_job(owner)
            job()
            with self._changed:
                self._busy_owners.remove(owner)
                self._changed.notify()

    def _next_owner(self) -> str | None:
        return next((owner for owner in self._queues if owner not in self._busy_owners), None)

    def _take_job(self, owner: str) -> Job:
        """The owner's oldest job. An owner with more jobs goes to the end."""
        jobs = self._queues.pop(owner)
        job = jobs.popleft()
        if jobs:
            self._queues[owner] = jobs
        self._busy_owners.add(owner)
        return job
