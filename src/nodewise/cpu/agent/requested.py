"""What the containers of this node's pods requested, which is what they may claim of exclusive pools."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from nodewise import quantity
from nodewise.cpu.names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES
from nodewise.cpu.pools import EXCLUSIVE, NON_ISOLCPUS
from nodewise.cpu.requests import Object, Requests
from nodewise.cpu.state import Task
from nodewise.errors import Problem, Refused, Unavailable
from nodewise.kube.resources import PODS, selector

RESOURCES: Final = {EXCLUSIVE: EXCLUSIVE_CORES, NON_ISOLCPUS: NON_ISOLCPUS_CORES}
"""Of each pool the resource that stands for its lists."""

_SPECS: Final = {
    "containers": "containerStatuses",
    "initContainers": "initContainerStatuses",
    "ephemeralContainers": "ephemeralContainerStatuses",
}
_WHAT: Final = "cannot choose CPUs"


class PodRequests:
    """Pods of one node, listed anew when they are older than `age_s` or do not tell what is asked.

    A kubelet tells which container is which a moment after it was started: that is waited for, `patience_s` at most.
    """

    def __init__(self, requests: Requests, node: str, age_s: float = 3.0, patience_s: float = 10.0) -> None:
        self._requests = requests
        self._params = {"fieldSelector": selector("spec.nodeName", node), "resourceVersion": "0"}
        self._age_s = age_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pods: Mapping[str, Object] = {}
        self._listed_s = float("-inf")

    def allowed(self, pool: str, task: Task, wanted: int) -> int:
        """As `claiming.Requested` has it."""
        resource = RESOURCES.get(pool)
        if resource is None or not task.pod or not task.container:
            seen = (
                f"process {task.pid} runs in no container of a pod"
                if resource
                else f"pool {pool} has no resource"
            )
            problem = Problem("", seen, f"a container that requests {resource or 'one'}")
            raise Refused(_WHAT, [problem])
        end = time.monotonic() + self._patience_s
        pods = self._list(self._age_s)
        while True:
            found = _allowed(pods.get(task.pod), resource, task.container, wanted)
            if found is not None:
                return found
            if time.monotonic() >= end:
                where = f"container {task.container} of pod {task.pod}"
                seen = (
                    "the API server does not tell which it is"
                    if task.pod in pods
                    else "not among the node's pods"
                )
                raise Unavailable(_WHAT, [Problem(where, seen, f"a container that requests {resource}")])
            time.sleep(min(self._age_s, 0.5))
            pods = self._list(0.5)

    def pod(self, uid: str) -> Object | None:
        """A pod of this node, or None; Unavailable without an answer."""
        return self._list(self._age_s).get(uid) or self._list(0.5).get(uid)

    def _list(self, age_s: float) -> Mapping[str, Object]:
        """The pods by uid, as they were `age_s` ago or later."""
        with self._lock:
            if time.monotonic() - self._listed_s > age_s:
                answer = self._requests.get(PODS.path(), self._params)
                self._pods = _by_uid(answer.get("items") or ())
                self._listed_s = time.monotonic()
            return self._pods


def _by_uid(pods: Iterable[Object]) -> Mapping[str, Object]:
    """Pods by the uids that their cgroups are named after.

    A copy of a kubelet's own pod names that pod's uid in an annotation, which whoever makes pods may write: it stands
    for no pod that is there under this uid itself, and the first of several copies counts.
    """
    mirrors: dict[str, Object] = {}
    own = {pod["metadata"]["uid"]: pod for pod in pods}
    for pod in sorted(own.values(), key=lambda one: str(one["metadata"].get("creationTimestamp", ""))):
        if mirror := _mirrored(pod):
            mirrors.setdefault(mirror, pod)
    return {**mirrors, **own}


def _mirrored(pod: Object) -> str:
    """The uid that the kubelet itself gave a pod of its own, of which the API server has a copy."""
    return str((pod["metadata"].get("annotations") or {}).get("kubernetes.io/config.mirror", ""))


def _allowed(pod: Object | None, resource: str, container: str, wanted: int) -> int | None:
    """How many the container requested; where it is not known yet which of the pod's it is, `wanted` if all request
    that many, and the most that one requests if none does; else None.
    """
    if pod is None:
        return None
    counts = {}
    for specs, statuses in _SPECS.items():
        names = {one["name"]: one.get("containerID", "") for one in pod.get("status", {}).get(statuses) or ()}
        for one in pod["spec"].get(specs) or ():
            count = _count(one, resource)
            if names.get(one["name"], "").rpartition("//")[2] == container:
                return count
            counts[one["name"]] = count
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    if most < wanted:
        return most
    return wanted if least >= wanted else None


def _count(container: Object, resource: str) -> int:
    """Limits count where there is no request, as they do for the API server."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    for kind in ("requests", "limits"):
        value = (resources.get(kind) or {}).get(resource)
        if value is not None:
            return quantity.parse(str(value)) // quantity.NANO
    return 0
