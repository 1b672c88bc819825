"""Idempotent creation, replacement and removal of objects in a cluster, and the progress of pods.

Waiting ends at a deadline, with growing pauses while nothing changes. Objects are identified by their UID, because an
object may be deleted and created again with the same name. Pods succeed, fail or run steadily; their status has the
reason if they do not yet.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.errors import Conflict, Unavailable
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import Resource
from nodewise_cpu.cluster import node_setup_objects
from nodewise_cpu.cluster.api_server import ApiClient, Object
from nodewise_cpu.cluster.node_setup_objects import MADE_FROM

Outcome = Literal["created", "replaced", "unchanged"]

_PLURALS: Final[Mapping[str, str]] = {
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "Pod": "pods",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "ThirdPartyResource": "thirdpartyresources",
}
_OF_THE_CLUSTER: Final = frozenset(
    {"CustomResourceDefinition", "MutatingWebhookConfiguration", "ThirdPartyResource"}
)
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_TRIES: Final = 10
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 1.0


class Deadline:
    """A time limit from now on, and pauses that grow while nothing changes. `clock` has the functions of `time`."""

    def __init__(self, timeout_s: float, clock: Any = time) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._end = clock.monotonic() + timeout_s
        self._pause_s = _FIRST_S

    @property
    def is_over(self) -> bool:
        return bool(self._clock.monotonic() >= self._end)

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return float(self._clock.monotonic())

    def pause(self) -> None:
        left_s = max(0.0, self._end - self._clock.monotonic())
        self._clock.sleep(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * 1.6, _LONGEST_S)

    def sleep(self, seconds: float) -> None:
        """Wait for a fixed time."""
        self._clock.sleep(seconds)

    def reset_pause(self) -> None:
        """Begin again with short pauses, because something changed."""
        self._pause_s = _FIRST_S


class EnsureResult(NamedTuple):
    """An object of the API server, and what was done to it."""

    current: Any
    outcome: Outcome


def resource(made: Object) -> Resource:
    """The resource of an object. KeyError for a kind that is not created here."""
    group, _, version = made["apiVersion"].rpartition("/")
    kind = made["kind"]
    return Resource(group, version, _PLURALS[kind], kind, kind not in _OF_THE_CLUSTER)


def path(made: Object) -> str:
    metadata = made["metadata"]
    return resource(made).path(metadata.get("namespace", ""), metadata["name"])


def title(made: Object) -> str:
    """The object's name in messages: `Pod cmk-init-pod-node1`."""
    return f"{made['kind']} {made['metadata']['name']}"


def find_object(api: ApiClient, at: str) -> Any:
    """The object at a path, or None."""
    try:
        return api.get(at)
    except NotFound:
        return None


def create_or_replace(api: ApiClient, wanted: Object, deadline: Deadline) -> EnsureResult:
    """Create an object, or replace one that was made from another template.

    A failed pod is replaced; one that succeeded stays, and is not run again. Conflict if others keep changing it;
    raises any other error of the API server.
    """
    if node_setup_objects.MADE_FROM not in wanted["metadata"].get("annotations", {}):
        wanted = node_setup_objects.with_template_digest(wanted)
    for _ in range(_TRIES - 1):
        try:
            return _create_or_replace_object(api, wanted, deadline)
        except Conflict:
            deadline.pause()
    return _create_or_replace_object(api, wanted, deadline)


def _create_or_replace_object(api: ApiClient, wanted: Object, deadline: Deadline) -> EnsureResult:
    at, folder = path(wanted), resource(wanted).path(wanted["metadata"].get("namespace", ""))
    current = find_object(api, at)
    if current is None:
        return EnsureResult(api.create(folder, wanted), "created")
    is_leaving = current["metadata"].get("deletionTimestamp")
    is_usable = not is_leaving and (current["kind"] != "Pod" or phase(current) != "Failed")
    if is_usable and node_setup_objects.has_same_template(current, wanted):
        return EnsureResult(current, "unchanged")
    if wanted["kind"] == "Pod":
        remove(api, wanted, deadline, current=current)
        return EnsureResult(api.create(folder, wanted), "replaced")
    try:
        if wanted["kind"] == "Service":  # keeps the address that the API server chose
            change = {"metadata": {"annotations": wanted["metadata"]["annotations"]}, "spec": wanted["spec"]}
            return EnsureResult(api.patch(at, change, "merge"), "replaced")
        # the annotations and labels of others are kept
        before, own = current["metadata"], wanted["metadata"]
        kept = {key: {**(before.get(key) or {}), **own.get(key, {})} for key in ("annotations", "labels")}
        body = {**wanted, "metadata": {**own, **kept, "resourceVersion": before["resourceVersion"]}}
        return EnsureResult(api.replace(at, body), "replaced")
    except NotFound as error:
        raise Conflict(f"{title(wanted)} was deleted meanwhile") from error


def remove(api: ApiClient, made: Object, deadline: Deadline, current: Object | None = None) -> bool:
    """Delete an object and wait until it is gone. Returns False if it did not exist.

    Unavailable if it still exists at the deadline, such as a pod on a node that does not respond.
    """
    at = path(made)
    current = current or find_object(api, at)
    if current is None:
        return False
    uid = current["metadata"]["uid"]
    with contextlib.suppress(NotFound, Conflict):  # deleted meanwhile, or created again
        api.delete(at, {"preconditions": {"uid": uid}, "propagationPolicy": "Background"})
    while (current := find_object(api, at)) is not None and current["metadata"]["uid"] == uid:
        if deadline.is_over:
            what = f"waiting until {title(made)} is gone"
            raise Unavailable.of(what, "", f"not so after {deadline.timeout_s:g} s")
        deadline.pause()
    return True


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def has_pod_ended(pod: Object) -> bool:
    """Whether all containers of a pod have ended for good."""
    return phase(pod) in _ENDED


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
    whole = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    problems = [whole[:_MAX_CHARACTERS]] if whole else []
    for key in ("initContainerStatuses", "containerStatuses"):
        problems += [
            f"container {container['name']}: {problem}"
            for container in status.get(key) or ()
            if (problem := _container_problem(container))
        ]
    for condition in status.get("conditions") or ():
        is_unscheduled = (condition.get("type"), condition.get("status")) == ("PodScheduled", "False")
        if is_unscheduled and condition.get("message"):
            problems.append(condition["message"])
    return problems


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
