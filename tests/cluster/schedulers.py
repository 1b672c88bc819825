"""The interface of schedulers that tests of scheduling rules use, and its implementation with kube-scheduler."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from tests.cluster import namespace_sandboxes
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox


class SchedulingOutcome(NamedTuple):
    """What became of a pod: a node, or the reason and text of its PodScheduled condition.

    `reason` is Unschedulable where no node was found, SchedulerError where the attempt itself failed.
    """

    node: str | None
    reason: str = ""
    message: str = ""


class ScheduledCluster(Protocol):
    """A cluster with a scheduler at work."""

    def submit(self, *pods: Object) -> dict[str, SchedulingOutcome]:
        """Makes pods, each when the one before is settled; what became of them, by name."""

    def outcome(self, pod: str) -> SchedulingOutcome:
        """What has become of a pod now; a node once it has one, else the scheduler's last word."""

    def retried(self, pod: str, deadline_s: float) -> SchedulingOutcome:
        """Waits, at most `deadline_s`, for a pod that was rejected to be bound."""

    def event(self, pod: str) -> str:
        """The text that `kubectl describe` shows under the events of a pod that was rejected."""

    def pass_time(self, seconds: float) -> None:
        """Lets that much of the scheduler's time go by."""

    def touch(self, node: str) -> None:
        """Changes a node in a way that no rule looks at: one cluster event."""

    def is_gone(self, pod: str) -> bool:
        """Whether a pod was evicted."""


class SchedulerUnderTest(Protocol):
    """Something that schedules by kube-scheduler's rules."""

    def cluster(
        self, nodes: Sequence[Object], extenders: Sequence[Object], running: Sequence[Object] = ()
    ) -> AbstractContextManager[ScheduledCluster]:
        """A cluster of nodes, with `running` pods on them, and extenders as a configuration lists them."""


class RealScheduler:
    """kube-scheduler itself, on a control plane that others use as well."""

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
                yield RealCluster(sandbox)
            finally:
                scheduler.stop()


class RealCluster:
    """A sandbox whose scheduler is at work."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._corner = sandbox
        self._touched = 0

    def submit(self, *pods: Object) -> dict[str, SchedulingOutcome]:
        outcomes = {}
        for pod in pods:
            self._corner.pods(pod)
            outcomes[pod["metadata"]["name"]] = self._settled(pod["metadata"]["name"])
        return outcomes

    def outcome(self, pod: str) -> SchedulingOutcome:
        return _outcome(self._corner.pod(pod))

    def retried(self, pod: str, deadline_s: float) -> SchedulingOutcome:
        self._corner.expect_bound(pod, deadline_s)
        return self.outcome(pod)

    def event(self, pod: str) -> str:
        return self._corner.expect_event(pod)

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def touch(self, node: str) -> None:
        self._touched += 1
        self._corner.annotate(node, "nodewise.io/touched", str(self._touched))

    def is_gone(self, pod: str) -> bool:
        return namespace_sandboxes.is_leaving(self._corner.pod(pod))

    def _settled(self, name: str) -> SchedulingOutcome:
        """Bound, or rejected for the time being; a pod that waits for its victims to go is neither."""

        def see() -> SchedulingOutcome | None:
            pod = self._corner.pod(name)
            nominated = (pod or {}).get("status", {}).get("nominatedNodeName")
            outcome = _outcome(pod)
            return outcome if outcome.node or (outcome.reason and not nominated) else None

        return namespace_sandboxes.wait(f"pod {name} is settled", see, show=lambda: self._corner.pod(name))


def _outcome(pod: Object | None) -> SchedulingOutcome:
    condition = namespace_sandboxes.scheduled(pod) or {}
    node = namespace_sandboxes.node_of(pod)
    return (
        SchedulingOutcome(node)
        if node
        else SchedulingOutcome(None, condition.get("reason", ""), condition.get("message", ""))
    )
