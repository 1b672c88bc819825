"""Objects of the cluster made what they should be: nothing where they are it already, so that it can be done again.

Who waits gives up at a deadline, asks less often while nothing happens, and knows objects by their UID: one of the
same name may be another one.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from nodewise.cpu.api_client import ApiClient, Object
from nodewise.cpu.cluster import setup_objects
from nodewise.errors import Conflict, Problem, Unavailable
from nodewise.kube.api import NotFound
from nodewise.kube.resources import Resource

Outcome = Literal["created", "replaced", "unchanged"]
Seen = TypeVar("Seen")

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
_OVER: Final = frozenset({"Succeeded", "Failed"})
_TRIES: Final = 10
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 1.0


class Time(Protocol):
    """The two things to know of time while waiting."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Deadline:
    """A time limit, from now on, and pauses that grow while nothing happens."""

    def __init__(self, timeout_s: float, clock: Time = time) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._end = clock.monotonic() + timeout_s
        self._pause_s = _FIRST_S

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end

    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return self._clock.monotonic()

    def pause(self) -> None:
        left_s = max(0.0, self._end - self._clock.monotonic())
        self._clock.sleep(min(self._pause_s, left_s))
        self._pause_s = min(self._pause_s * 1.6, _LONGEST_S)

    def rest(self, seconds: float) -> None:
        """A pause that does not depend on how long nothing has happened."""
        self._clock.sleep(seconds)

    def hurry(self) -> None:
        """Something happened: more may happen soon."""
        self._pause_s = _FIRST_S

    def until(self, what: str, see: Callable[[], Seen | None]) -> Seen:
        """The first thing other than None that `see` returns. Unavailable when there is no time left."""
        while (seen := see()) is None:
            if self.is_over:
                raise Unavailable(what, [Problem("", f"not so after {self.timeout_s:g} s", "")])
            self.pause()
        return seen


class Applied(NamedTuple):
    """An object as it is now, and what was done to it."""

    found: Any
    outcome: Outcome


def resource(made: Object) -> Resource:
    """Where objects of this kind are; KeyError for a kind that nobody makes here."""
    group, _, version = made["apiVersion"].rpartition("/")
    kind = made["kind"]
    return Resource(group, version, _PLURALS[kind], kind, kind not in _OF_THE_CLUSTER)


def path(made: Object) -> str:
    metadata = made["metadata"]
    return resource(made).path(metadata.get("namespace", ""), metadata["name"])


def title(made: Object) -> str:
    """`Pod cmk-init-pod-node1`, as people are told it."""
    return f"{made['kind']} {made['metadata']['name']}"


def find(api: ApiClient, at: str) -> Any:
    """The object, or None where there is none."""
    try:
        return api.get(at)
    except NotFound:
        return None


def ensure(api: ApiClient, wanted: Object, deadline: Deadline) -> Applied:
    """The wanted object is there, made anew only if what is there was made from something else.

    A pod that failed is replaced; one that succeeded stays, and is not run again. Conflict if others change it all
    the time; whatever else the API server refuses.
    """
    wanted = wanted if _is_stamped(wanted) else setup_objects.stamped(wanted)
    for _ in range(_TRIES - 1):
        try:
            return _ensured(api, wanted, deadline)
        except Conflict:
            deadline.pause()
    return _ensured(api, wanted, deadline)


def _is_stamped(wanted: Object) -> bool:
    return setup_objects.MADE_FROM in wanted["metadata"].get("annotations", {})


def _ensured(api: ApiClient, wanted: Object, deadline: Deadline) -> Applied:
    at = path(wanted)
    found = find(api, at)
    if found is None:
        return Applied(_created(api, wanted), "created")
    if _is_usable(found) and setup_objects.is_current(found, wanted):
        return Applied(found, "unchanged")
    if wanted["kind"] == "Pod":
        remove(api, wanted, deadline, found=found)
        return Applied(_created(api, wanted), "replaced")
    try:
        return Applied(_replaced(api, at, found, wanted), "replaced")
    except NotFound as error:
        raise Conflict(f"{title(wanted)} was deleted meanwhile") from error


def _replaced(api: ApiClient, at: str, found: Object, wanted: Object) -> Any:
    if wanted["kind"] == "Service":  # its address is the server's, and stays
        change = {"metadata": {"annotations": wanted["metadata"]["annotations"]}, "spec": wanted["spec"]}
        return api.patch(at, change, "merge")
    return api.replace(at, _over(found, wanted))


def _created(api: ApiClient, wanted: Object) -> Any:
    metadata = wanted["metadata"]
    return api.create(resource(wanted).path(metadata.get("namespace", "")), wanted)


def _is_usable(found: Object) -> bool:
    leaving = found["metadata"].get("deletionTimestamp")
    return not leaving and (found["kind"] != "Pod" or phase(found) != "Failed")


def _over(found: Object, wanted: Object) -> Object:
    """The wanted object in the place of that very version, with what others have written on its outside."""
    before, own = found["metadata"], wanted["metadata"]
    kept = {key: {**(before.get(key) or {}), **own.get(key, {})} for key in ("annotations", "labels")}
    return {**wanted, "metadata": {**own, **kept, "resourceVersion": before["resourceVersion"]}}


def remove(api: ApiClient, made: Object, deadline: Deadline, found: Object | None = None) -> bool:
    """Delete an object and wait until it is gone; False where it was not there.

    Unavailable if it is there still when there is no time left, as a pod on a node that does not answer.
    """
    at = path(made)
    found = found or find(api, at)
    if found is None:
        return False
    uid = found["metadata"]["uid"]
    with contextlib.suppress(NotFound, Conflict):  # it is gone, or another one by now
        api.delete(at, {"preconditions": {"uid": uid}, "propagationPolicy": "Background"})
    deadline.until(f"waiting until {title(made)} is gone", lambda: True if _is_gone(api, at, uid) else None)
    return True


def _is_gone(api: ApiClient, at: str, uid: str) -> bool:
    found = find(api, at)
    return found is None or found["metadata"]["uid"] != uid


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def is_over(pod: Object) -> bool:
    """Whether all its containers have ended for good."""
    return phase(pod) in _OVER
