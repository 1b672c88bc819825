"""How far pods are: which are done, which failed, which go on as they should, and why others do not."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from nodewise.cpu.api_client import Object
from nodewise.cpu.cluster.object_writer import phase
from nodewise.cpu.cluster.setup_objects import MADE_FROM

SETTLED_S: Final = 3.0
"""A container that has run for as long without a restart is taken to run. One that cannot start ends sooner."""
_WORDS: Final = 300
_WAITING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


class PodProgress(NamedTuple):
    """Whether there is nothing more to wait for, and what is the matter."""

    is_done: bool = False
    has_failed: bool = False
    why: str = ""


def once(pod: Object | None) -> PodProgress:
    """Of a pod that is to run once: it is done when it succeeded."""
    if pod is None:
        return PodProgress(has_failed=True, why="somebody deleted the pod")
    state = phase(pod)
    if state == "Failed":
        name = pod["metadata"]["name"]
        return PodProgress(
            has_failed=True, why="; ".join([f"pod {name} went into Failed state", *trouble(pod)])
        )
    return PodProgress(is_done=state == "Succeeded", why="; ".join(trouble(pod)) or state or "Pending")


class PodWatch:
    """Of pods that are to run on: for how long each has run without a restart."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def steady(self, pods: Iterable[Object], stamp: str, now: float) -> PodProgress:
        """Done when a pod made from the wanted template has run for a while. `now` never jumps back."""
        ours = [pod for pod in pods if (pod["metadata"].get("annotations") or {}).get(MADE_FROM) == stamp]
        return self.running(ours, now)

    def running(self, pods: Iterable[Object], now: float) -> PodProgress:
        """Done when one of the pods has run for a while."""
        progress = [self._one(pod, now) for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        if any(one.is_done for one in progress):
            return PodProgress(is_done=True)
        return next(iter(progress), PodProgress(why="its DaemonSet has made no pod yet"))

    def _one(self, pod: Object, now: float) -> PodProgress:
        found = list(pod.get("status", {}).get("containerStatuses") or ())
        names = {one["name"] for one in pod["spec"]["containers"]}
        running = {one["name"] for one in found if one.get("ready") and "running" in one.get("state", {})}
        if phase(pod) != "Running" or running != names:
            return PodProgress(why="; ".join(trouble(pod)) or phase(pod) or "Pending")
        key = (pod["metadata"]["uid"], sum(int(one.get("restartCount", 0)) for one in found))
        since = self._since.setdefault(key, now)
        return PodProgress(is_done=now - since >= SETTLED_S, why="it has just started")


def owned(pods: Iterable[Object], uid: str) -> Iterator[Object]:
    """Those that the object with this UID made."""
    return (
        pod for pod in pods if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences") or ())
    )


def trouble(pod: Object) -> list[str]:
    """What hinders a pod, as its node tells it."""
    status = pod.get("status", {})
    containers = [
        one for key in ("initContainerStatuses", "containerStatuses") for one in status.get(key) or ()
    ]
    found = [f"container {one['name']}: {said}" for one in containers if (said := _said(one))]
    whole = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    conditions = [
        one["message"]
        for one in status.get("conditions") or ()
        if one.get("type") == "PodScheduled" and one.get("status") == "False" and one.get("message")
    ]
    return [*([whole[:_WORDS]] if whole else []), *found, *conditions]


def _said(container: Mapping[str, Any]) -> str:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    words = []
    if waiting.get("reason", "") not in _WAITING:
        words += [waiting["reason"], *([waiting["message"]] if waiting.get("message") else [])]
    if ended.get("exitCode"):
        message = (ended.get("message") or "").strip().splitlines()
        words += [f"exit code {ended['exitCode']}", *message[-1:]]
    return ": ".join(words)[:_WORDS]
