"""A namespace for a test, and waits for what happens in it."""

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
"""For what comes about on a loaded machine; nothing here is a limit of speed."""

SHORTEST_PAUSE_S: Final = 0.03
LONGEST_PAUSE_S: Final = 0.2
"""Between two looks, the longer the longer it takes: looking keeps from others the core that they are waited for on."""

LEDGERS: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
"""Where nodewise under test keeps who holds the cards of a node; what one test leaves there is nothing to the next."""

_numbers = itertools.count(1)


def wait(
    what: str, see: Callable[[], Seen | None], deadline_s: float = PATIENCE_S, show: Callable[[], Any] = str
) -> Seen:
    """The first thing other than None that `see` returns; AssertionError with `show()` when there is none."""
    end = time.monotonic() + deadline_s
    pause_s = SHORTEST_PAUSE_S
    while (seen := see()) is None:
        assert time.monotonic() < end, f"{what}: not so after {deadline_s:g} s; {show()}"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, LONGEST_PAUSE_S)
    return seen


class Sandbox:
    """A namespace, trusted by default, and everything made through it; `clean` takes all of that away again."""

    def __init__(self, plane: ControlPlane, *, trusted: bool = True) -> None:
        self.plane = plane
        self.namespace = f"test-{next(_numbers)}"
        self.api: ClusterApi = plane.api
        self._made: list[str] = []
        self.api.create(kubernetes_objects.namespace(self.namespace, trusted=trusted))

    def trust(self, *, granted: bool = True) -> None:
        """Grants trust to the namespace, or takes it away."""
        labels = {"nodewise.io/trusted": "true" if granted else None}
        self.api.patch(f"/api/v1/namespaces/{self.namespace}", {"metadata": {"labels": labels}})

    def create(self, obj: Object) -> Object:
        """Makes an object that belongs to no namespace, or that names its own."""
        made = self.api.create(obj)
        self._made.append(path_of(made))
        return made

    def put(self, obj: Object) -> Object:
        """Makes an object in this namespace."""
        return self.create(obj | {"metadata": obj["metadata"] | {"namespace": self.namespace}})

    def nodes(self, *nodes: Object) -> None:
        """Makes nodes; see `kubernetes_objects.node`."""
        for node in nodes:
            self.create(node)

    def pods(self, *pods: Object) -> None:
        """Makes pods in this namespace, with the priority classes that they name; see `kubernetes_objects.pod`."""
        for value in kubernetes_objects.priorities(pods):
            self.api.ensure(kubernetes_objects.priority_class(value))
        for pod in pods:
            wait("a priority class is known", functools.partial(self._admitted, pod))

    def _admitted(self, pod: Object) -> Object | None:
        """Admission hears of a new priority class a moment after it was made."""
        try:
            return self.put(pod)
        except ApiError as error:
            if "no PriorityClass with name" in str(error):
                return None
            raise

    def pod(self, name: str) -> Object | None:
        """A pod as it is now, or None when it is gone."""
        return self.api.find(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def annotate(self, node: str, key: str, value: str) -> None:
        """Changes one annotation of a node, a change that no scheduling rule looks at."""
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {key: value}}})

    def expect_bound(self, pod: str, deadline_s: float = PATIENCE_S) -> str:
        """Waits until a pod is on a node; the node's name."""
        return wait(f"pod {pod} is bound", lambda: node_of(self.pod(pod)), deadline_s, lambda: self.pod(pod))

    def expect_rejected(self, pod: str, deadline_s: float = PATIENCE_S) -> str:
        """Waits until the scheduler has found no node; the text of the PodScheduled condition."""

        def message() -> str | None:
            return (scheduled(self.pod(pod)) or {}).get("message")

        return wait(f"pod {pod} is rejected", message, deadline_s, lambda: self.pod(pod))

    def expect_event(self, pod: str, reason: str = "FailedScheduling", deadline_s: float = PATIENCE_S) -> str:
        """Waits for an event about a pod; its text, as `kubectl describe` shows it."""

        def message() -> str | None:
            return next(iter(self.events(pod, reason)), None)

        return wait(f"pod {pod} has an event {reason}", message, deadline_s, lambda: self.events(pod))

    def expect_gone(self, pod: str, deadline_s: float = PATIENCE_S) -> None:
        """Waits until a pod is no more, or is on its way out."""
        wait(f"pod {pod} is gone", lambda: True if is_leaving(self.pod(pod)) else None, deadline_s)

    def expect_stays_unbound(self, pod: str, for_s: float = 2) -> None:
        """Looks for a while, and fails if the pod is bound in that time."""
        end = time.monotonic() + for_s
        while time.monotonic() < end:
            assert node_of(self.pod(pod)) is None, f"pod {pod} was bound to {node_of(self.pod(pod))}"
            time.sleep(0.1)

    def events(self, pod: str, reason: str = "") -> list[str]:
        """The texts of the events about a pod, oldest first."""
        about = f"involvedObject.name={pod}" + (f",reason={reason}" if reason else "")
        events = self.api.get(f"/api/v1/namespaces/{self.namespace}/events", fieldSelector=about)["items"]
        return [event["message"] for event in events]

    def clean(self) -> None:
        """Takes away all pods of the namespace and all other objects in reverse order, and all allocation records.

        The namespace is closed before anything else, or a controller would put new pods into it.
        """
        inside = f"/api/v1/namespaces/{self.namespace}"
        for path in (inside, f"{inside}/pods", *reversed(self._made)):
            self.api.delete(path)
        self.api.request("DELETE", LEDGERS, params={"labelSelector": "nodewise.io/ledger"})


@contextlib.contextmanager
def created(plane: ControlPlane, *, trusted: bool = True) -> Iterator[Sandbox]:
    """A sandbox that is clean again at the end."""
    sandbox = Sandbox(plane, trusted=trusted)
    try:
        yield sandbox
    finally:
        sandbox.clean()


def node_of(pod: Object | None) -> str | None:
    """The node that a pod is bound to."""
    return pod["spec"].get("nodeName") if pod else None


def scheduled(pod: Object | None) -> Object | None:
    """The PodScheduled condition, once the scheduler has said anything."""
    conditions = (pod or {}).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)


def is_leaving(pod: Object | None) -> bool:
    """Whether a pod is gone or marked to go."""
    return pod is None or "deletionTimestamp" in pod["metadata"]
