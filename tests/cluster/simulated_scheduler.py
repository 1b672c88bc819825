"""An implementation of the interface in `scheduler_interface` with the simulated scheduler."""

import contextlib
from collections.abc import Iterator, Sequence

from nodewise.scheduling_model import simulated_cluster
from tests.cluster.api_client import Object
from tests.cluster.scheduler_interface import SchedulingOutcome
from tests.manual_clock import ManualClock


class SimulatedScheduler:
    """The simulated scheduler. It schedules in memory and calls the extenders over HTTP, as kube-scheduler does."""

    @contextlib.contextmanager
    def cluster(
        self, nodes: Sequence[Object], extenders: Sequence[Object], running: Sequence[Object] = ()
    ) -> Iterator["SimulatedCluster"]:
        assert not running
        clock = ManualClock(1_700_000_000)
        with simulated_cluster.Cluster(nodes, extenders, clock) as made:
            yield SimulatedCluster(made, clock)


class SimulatedCluster:
    """A simulated cluster with a manual clock."""

    def __init__(self, made: simulated_cluster.Cluster, clock: ManualClock) -> None:
        self._cluster = made
        self._clock = clock

    def submit(self, *pods: Object) -> dict[str, SchedulingOutcome]:
        for pod in pods:
            self._cluster.submit(pod)
        return {pod["metadata"]["name"]: self.outcome(pod["metadata"]["name"]) for pod in pods}

    def outcome(self, pod: str) -> SchedulingOutcome:
        return SchedulingOutcome(*self._cluster.outcome(pod))

    def retried(self, pod: str, deadline_s: float) -> SchedulingOutcome:
        if not self.outcome(pod).node:
            self.pass_time(deadline_s)
        assert self.outcome(pod).node, self.outcome(pod)
        return self.outcome(pod)

    def event(self, pod: str) -> str:
        return self._cluster.outcome(pod).message

    def pass_time(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self._cluster.settle()

    def touch(self, node: str) -> None:
        self._cluster.touch()

    def is_gone(self, pod: str) -> bool:
        """Whether a pod was evicted; the simulated scheduler does not model preemption."""
        raise NotImplementedError(pod)

    def log_errors(self) -> list[str]:
        return []
