"""Fairness of the worker pool: many jobs of one owner do not delay other owners."""

import threading
from functools import partial

from nodewise_cpu.agent.socket_server import FairWorkerPool

PATIENCE_S = 30.0


class GatedJobs:
    """Jobs whose begin and end tests control."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open: dict[str, threading.Event] = {}
        self._changed = threading.Condition()

    def job(self, name: str) -> partial[None]:
        self._open[name] = threading.Event()
        return partial(self._run, name)

    def _run(self, name: str) -> None:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        assert self._open[name].wait(PATIENCE_S)

    def end(self, *names: str) -> None:
        for name in names:
            self._open[name].set()

    def expect(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun == list(names), PATIENCE_S), self.begun


def test_owners_take_turns() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(1)
    for name in ("a1", "a2", "a3", "b1", "b2"):
        turns.add(name[0], gates.job(name))
    for done, then in enumerate(["a1", "b1", "a2", "b2", "a3"]):
        gates.expect(*["a1", "b1", "a2", "b2", "a3"][: done + 1])
        gates.end(then)
    turns.stop(PATIENCE_S)


def test_an_owner_has_one_job_under_way_at_a_time() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(2)
    turns.add("a", gates.job("a1"))
    gates.expect("a1")
    turns.add("a", gates.job("a2"))
    turns.add("b", gates.job("b1"))
    gates.expect("a1", "b1")
    gates.end("a1")
    gates.expect("a1", "b1", "a2")
    gates.end("a2", "b1")
    turns.stop(PATIENCE_S)


def test_stop_finishes_running_jobs_and_drops_the_others() -> None:
    gates, turns = GatedJobs(), FairWorkerPool(1)
    turns.add("a", gates.job("a1"))
    turns.add("a", gates.job("a2"))
    gates.expect("a1")
    threading.Timer(0.1, gates.end, ["a1"]).start()
    turns.stop(PATIENCE_S)
    turns.add("b", gates.job("b1"))
    assert gates.begun == ["a1"]
