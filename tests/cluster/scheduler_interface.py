"""The interface of schedulers that tests of scheduling rules use, and its implementation with kube-scheduler."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from tests.cluster import namespace_sandboxes, program_cache
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox

CLAIMS: Final = "no new claims to deallocate, " if program_cache.MINOR < 37 else ""
"""The message of the plugin DynamicResources in every preemption, before that of the preemption plugin, up to 1.36."""


class SchedulingOutcome(NamedTuple):
    """The result for a pod: its node, or the reason and message of its PodScheduled condition.

    `reason` is Unschedulable if no node was found, SchedulerError if the attempt failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


class ScheduledCluster(Protocol):
    """A cluster with a running scheduler."""

    def submit(self, *pods: Object) -> dict[str, SchedulingOutcome]:
        """Creates pods, each after the previous one was bound or rejected, and returns the outcomes by name."""

    def outcome(self, pod: str) -> SchedulingOutcome:
        """The current outcome of a pod: its node if it is bound, else the scheduler's latest condition."""

    def retried(self, pod: str, deadline_s: float) -> SchedulingOutcome:
        """Waits at most `deadline_s` until a rejected pod is bound."""

    def event(self, pod: str) -> str:
        """The message of the event of a rejected pod, as `kubectl describe` shows it."""

    def pass_time(self, seconds: float) -> None:
        """Lets this time pass for the scheduler."""

    def touch(self, node: str) -> None:
        """Changes a node without effect on scheduling rules, which causes one cluster event."""

    def is_gone(self, pod: str) -> bool:
        """Whether a pod was evicted."""

    def log_errors(self) -> list[str]:
        """The errors about scheduling that the scheduler logged."""


class SchedulerUnderTest(Protocol):
    """A scheduler that follows kube-scheduler's rules."""

    def cluster(
        self, nodes: Sequence[Object], extenders: Sequence[Object], running: Sequence[Object] = ()
    ) -> AbstractContextManager[ScheduledCluster]:
        """A cluster with these nodes, `running` pods on them, and extenders as in a scheduler configuration."""


class RealScheduler:
    """kube-scheduler on the shared control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    @contextlib.contextmanager
    def cluster(
        self, nodes: Sequence[Object], extenders: Sequence[Object], running: Sequence[Object] = ()
    ) -> Iterator[ScheduledCluster]:
        for kind in ("nodes", "pods"):
            left = self._plane.api.get(f"/api/v1/{kind}", limit="1")["items"]
            assert not left, f"a test before left {kind}, such as {left[0]['metadata']['name']}"
        with namespace_sandboxes.created(self._plane) as sandbox:
            sandbox.nodes(*nodes)
            sandbox.pods(*running)
            scheduler = self._plane.start_scheduler({"extenders": list(extenders)})
            try:
                yield RealCluster(sandbox, scheduler)
            finally:
                scheduler.stop()


class RealCluster:
    """A sandbox with a running kube-scheduler."""

    def __init__(self, sandbox: Sandbox, scheduler: Process) -> None:
        self._sandbox = sandbox
        self._scheduler = scheduler
        self._touched = 0

    def submit(self, *pods: Object) -> dict[str, SchedulingOutcome]:
        outcomes = {}
        for pod in pods:
            self._sandbox.pods(pod)
            outcomes[pod["metadata"]["name"]] = self._settled(pod["metadata"]["name"])
        return outcomes

    def outcome(self, pod: str) -> SchedulingOutcome:
        return _outcome(self._sandbox.pod(pod))

    def retried(self, pod: str, deadline_s: float) -> SchedulingOutcome:
        self._sandbox.expect_bound(pod, deadline_s)
        return self.outcome(pod)

    def event(self, pod: str) -> str:
        return self._sandbox.expect_event(pod)

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def touch(self, node: str) -> None:
        self._touched += 1
        self._sandbox.annotate(node, "nodewise.io/touched", str(self._touched))

    def is_gone(self, pod: str) -> bool:
        return namespace_sandboxes.is_leaving(self._sandbox.pod(pod))

    def log_errors(self) -> list[str]:
        lines = self._scheduler.log.read_text().splitlines()
        return [line for line in lines if line.startswith("E") and ("preempt" in line or "schedul" in line)]

    def _settled(self, name: str) -> SchedulingOutcome:
        """Waits until a pod is bound or rejected. A pod with a nominated node waits for its victims and is neither."""

        def see() -> SchedulingOutcome | None:
            pod = self._sandbox.pod(name)
            nominated = (pod or {}).get("status", {}).get("nominatedNodeName")
            outcome = _outcome(pod)
            return outcome if outcome.node or (outcome.reason and not nominated) else None

        return namespace_sandboxes.wait(f"pod {name} is settled", see, show=lambda: self._sandbox.pod(name))


def _outcome(pod: Object | None) -> SchedulingOutcome:
    condition = namespace_sandboxes.scheduled(pod) or {}
    node = namespace_sandboxes.node_of(pod)
    return (
        SchedulingOutcome(node)
        if node
        else SchedulingOutcome(None, condition.get("reason", ""), condition.get("message", ""))
    )
