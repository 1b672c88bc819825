"""The progress of pods: whether they succeeded, failed or run steadily, and why not yet."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from nodewise_cpu.api_client_interface import Object
from nodewise_cpu.cluster.node_setup_objects import MADE_FROM
from nodewise_cpu.cluster.object_writer import phase

SETTLED_S: Final = 3.0
"""A container that has run for this long without a restart counts as running. One that cannot start ends sooner."""
_MAX_CHARACTERS: Final = 300
_WAITING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


class PodProgress(NamedTuple):
    """Whether a pod is done or has failed, and the reason if it is not done."""

    is_done: bool = False
    has_failed: bool = False
    why: str = ""


def completion_progress(pod: Object | None) -> PodProgress:
    """The progress of a pod that runs once: it is done when it succeeded."""
    if pod is None:
        return PodProgress(has_failed=True, why="the pod was deleted")
    current = phase(pod)
    if current == "Failed":
        name = pod["metadata"]["name"]
        return PodProgress(
            has_failed=True, why="; ".join([f"pod {name} went into Failed state", *find_pod_problem(pod)])
        )
    return PodProgress(
        is_done=current == "Succeeded", why="; ".join(find_pod_problem(pod)) or current or "Pending"
    )


class PodWatch:
    """Measures for how long pods have run without a restart."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def steady(self, pods: Iterable[Object], stamp: str, now: float) -> PodProgress:
        """Done when a pod made from the wanted template has run for `SETTLED_S`. `now` is monotonic."""
        ours = [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(MADE_FROM) == stamp]
        return self.running(ours, now)

    def running(self, pods: Iterable[Object], now: float) -> PodProgress:
        """Done when one of the pods has run for `SETTLED_S`."""
        progress = [self._progress(pod, now) for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        if any(item.is_done for item in progress):
            return PodProgress(is_done=True)
        return next(iter(progress), PodProgress(why="its DaemonSet has made no pod yet"))

    def _progress(self, pod: Object, now: float) -> PodProgress:
        statuses = list(pod.get("status", {}).get("containerStatuses") or ())
        names = {container["name"] for container in pod["spec"]["containers"]}
        running = {
            status["name"]
            for status in statuses
            if status.get("ready") and "running" in status.get("state", {})
        }
        if phase(pod) != "Running" or running != names:
            return PodProgress(why="; ".join(find_pod_problem(pod)) or phase(pod) or "Pending")
        key = (pod["metadata"]["uid"], sum(int(status.get("restartCount", 0)) for status in statuses))
        since = self._since.setdefault(key, now)
        return PodProgress(is_done=now - since >= SETTLED_S, why="it has just started")


def pods_owned_by(pods: Iterable[Object], uid: str) -> Iterator[Object]:
    """The pods that the object with this UID owns."""
    return (
        pod
        for pod in pods
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
    )


def find_pod_problem(pod: Object) -> list[str]:
    """The problems of a pod that its status reports."""
    status = pod.get("status", {})
    containers = [
        item for key in ("initContainerStatuses", "containerStatuses") for item in status.get(key) or ()
    ]
    problems = [
        f"container {status['name']}: {problem}"
        for status in containers
        if (problem := _container_problem(status))
    ]
    whole = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    conditions = [
        condition["message"]
        for condition in status.get("conditions") or ()
        if condition.get("type") == "PodScheduled"
        and condition.get("status") == "False"
        and condition.get("message")
    ]
    return [*([whole[:_MAX_CHARACTERS]] if whole else []), *problems, *conditions]


def _container_problem(container: Mapping[str, Any]) -> str:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    words = []
    if waiting.get("reason", "") not in _WAITING:
        words += [waiting["reason"], *([waiting["message"]] if waiting.get("message") else [])]
    if ended.get("exitCode"):
        message = (ended.get("message") or "").strip().splitlines()
        words += [f"exit code {ended['exitCode']}", *message[-1:]]
    return ": ".join(words)[:_MAX_CHARACTERS]
