"""A namespace for a test, and functions that wait for changes in it."""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from tests.cluster import kubernetes_objects
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.controlplane import ControlPlane

Seen = TypeVar("Seen")

PATIENCE_S: Final = 60.0
"""The default deadline in seconds. It suits a loaded machine and is no performance limit."""

SHORTEST_PAUSE_S: Final = 0.03
LONGEST_PAUSE_S: Final = 0.2
"""Limits of the pause between two checks. The pause grows, because the checks take CPU time from the tested processes.
"""

LEDGERS: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
"""The path of the allocation records of nodewise under test, which are deleted after each test."""

_numbers = itertools.count(1)


def wait(
    what: str, see: Callable[[], Seen | None], deadline_s: float = PATIENCE_S, show: Callable[[], Any] = str
) -> Seen:
    """Calls `see` until it returns a value other than None, and returns it. After the deadline, fails with `show()`."""
    __tracebackhide__ = True  # a report of CI is cut, and the message is worth more than these lines
    end = time.monotonic() + deadline_s
    pause_s = SHORTEST_PAUSE_S
    while (seen := see()) is None:
        assert time.monotonic() < end, f"{what}: not so after {deadline_s:g} s; {show()}"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, LONGEST_PAUSE_S)
    return seen


class Sandbox:
    """A namespace, trusted by default, and the objects that are created through it; `clean` deletes all of them."""

    def __init__(self, plane: ControlPlane, *, trusted: bool = True) -> None:
        self.plane = plane
        self.namespace = f"test-{next(_numbers)}"
        self.api: ClusterApi = plane.api
        self._made: list[str] = []
        self.api.create(kubernetes_objects.namespace(self.namespace, trusted=trusted))

    def trust(self, *, granted: bool = True) -> None:
        """Grants trust to the namespace, or revokes it."""
        labels = {"nodewise.io/trusted": "true" if granted else None}
        self.api.patch(f"/api/v1/namespaces/{self.namespace}", {"metadata": {"labels": labels}})

    def create(self, obj: Object) -> Object:
        """Creates a cluster-scoped object, or one that names its namespace."""
        made = self.api.create(obj)
        self._made.append(path_of(made))
        return made

    def put(self, obj: Object) -> Object:
        """Creates an object in this namespace."""
        return self.create(obj | {"metadata": obj["metadata"] | {"namespace": self.namespace}})

    def nodes(self, *nodes: Object) -> None:
        """Creates nodes; see `kubernetes_objects.node`."""
        for node in nodes:
            self.create(node)

    def pods(self, *pods: Object) -> None:
        """Creates pods in this namespace, and the priority classes that they name; see `kubernetes_objects.pod`."""
        for value in kubernetes_objects.priorities(pods):
            self.api.ensure(kubernetes_objects.priority_class(value))
        for pod in pods:
            wait("a pod is admitted", functools.partial(self._admitted, pod))

    def _admitted(self, pod: Object) -> Object | None:
        """Creates a pod. None while admission, which reads objects from a watch, lacks its new priority class or still
        has a deleted quota.
        """
        try:
            return self.put(pod)
        except ApiError as error:
            if "no PriorityClass with name" in str(error) or "exceeded quota" in str(error):
                return None
            raise

    def pod(self, name: str) -> Object | None:
        """The current state of a pod; None if it does not exist."""
        return self.api.find(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def annotate(self, node: str, key: str, value: str) -> None:
        """Changes an annotation of a node, which no scheduling rule depends on."""
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {key: value}}})

    def expect_bound(self, pod: str, deadline_s: float = PATIENCE_S) -> str:
        """Waits until a pod is bound and returns the node's name."""
        return wait(f"pod {pod} is bound", lambda: node_of(self.pod(pod)), deadline_s, lambda: self.pod(pod))

    def expect_rejected(self, pod: str, deadline_s: float = PATIENCE_S) -> str:
        """Waits until the scheduler has found no node for a pod, and returns the PodScheduled condition's message."""

        def message() -> str | None:
            return (scheduled(self.pod(pod)) or {}).get("message")

        return wait(f"pod {pod} is rejected", message, deadline_s, lambda: self.pod(pod))

    def expect_event(self, pod: str, reason: str = "FailedScheduling", deadline_s: float = PATIENCE_S) -> str:
        """Waits for an event of a pod and returns its message, as `kubectl describe` shows it."""

        def message() -> str | None:
            return next(iter(self.events(pod, reason)), None)

        return wait(f"pod {pod} has an event {reason}", message, deadline_s, lambda: self.events(pod))

    def expect_gone(self, pod: str, deadline_s: float = PATIENCE_S) -> None:
        """Waits until a pod is deleted or being deleted."""
        wait(f"pod {pod} is gone", lambda: True if is_leaving(self.pod(pod)) else None, deadline_s)

    def expect_stays_unbound(self, pod: str, for_s: float = 2) -> None:
        """Checks for `for_s` seconds, and fails if the pod is bound in this time."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            assert node_of(self.pod(pod)) is None, f"pod {pod} was bound to {node_of(self.pod(pod))}"
            time.sleep(0.1)

    def events(self, pod: str, reason: str = "") -> list[str]:
        """The messages of the events of a pod, oldest first."""
        about = f"involvedObject.name={pod}" + (f",reason={reason}" if reason else "")
        events = self.api.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=about)["items"]
        return [event["message"] for event in events]

    def clean(self) -> None:
        """Deletes all pods of the namespace, all other objects in reverse order, and all allocation records.

        The namespace is deleted first, otherwise a controller would create new pods in it.
        """
        inside = f"/api/v1/namespaces/{self.namespace}"
        for path in (inside, f"{inside}/pods", *reversed(self._made)):
            self.api.delete(path)
        self.api.request("DELETE", LEDGERS, params={"labelSelector": "nodewise.io/ledger"})


@contextlib.contextmanager
def created(plane: ControlPlane, *, trusted: bool = True) -> Iterator[Sandbox]:
    """Yields a sandbox, and cleans it at the end."""
    sandbox = Sandbox(plane, trusted=trusted)
    try:
        yield sandbox
    finally:
        sandbox.clean()


def node_of(pod: Object | None) -> str | None:
    """The node to which a pod is bound; None if it is not bound."""
    return pod["spec"].get("nodeName") if pod else None


def scheduled(pod: Object | None) -> Object | None:
    """The PodScheduled condition of a pod; None if the scheduler has not set it yet."""
    conditions = (pod or {}).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)


def is_leaving(pod: Object | None) -> bool:
    """Whether a pod is deleted or being deleted."""
    return pod is None or "deletionTimestamp" in pod["metadata"]
