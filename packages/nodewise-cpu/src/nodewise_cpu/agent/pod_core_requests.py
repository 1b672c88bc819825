"""The extended resources that containers of this node's pods request, which limit their exclusive CPUs."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from nodewise.base import quantity
from nodewise.base.errors import Refused, Unavailable
from nodewise.kube.resource_kinds import PODS, selector
from nodewise_cpu.allocator import CANNOT_CHOOSE_CPUS
from nodewise_cpu.cluster.api_server import ApiClient, Object
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import EXCLUSIVE, NON_ISOLCPUS

RESOURCES: Final = {EXCLUSIVE: EXCLUSIVE_CORES, NON_ISOLCPUS: NON_ISOLCPUS_CORES}
"""The extended resource of each pool; one unit is one CPU list."""

_STATUS_FIELDS: Final = {
    "containers": "containerStatuses",
    "initContainers": "initContainerStatuses",
    "ephemeralContainers": "ephemeralContainerStatuses",
}


class PodRequests:
    """The pods of one node, listed again if the list is older than `age_s` or lacks the container in question.

    The kubelet reports the id of a container a moment after its start; this waits for it, at most `patience_s`.
    """

    def __init__(self, api: ApiClient, node: str, age_s: float = 3.0, patience_s: float = 10.0) -> None:
        self._api = api
        self._params = {"fieldSelector": selector("spec.nodeName", node), "resourceVersion": "0"}
        self._age_s = age_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._pods: Mapping[str, Object] = {}
        self._listed_s = float("-inf")

    def allowed(self, pool: str, task: Task, wanted: int) -> int:
        """See `allocation_service.ResourceRequests`."""
        resource = RESOURCES.get(pool)
        if resource is None or not task.pod or not task.container:
            seen = (
                f"process {task.pid} runs in no container of a pod"
                if resource
                else f"pool {pool} has no resource"
            )
            raise Refused.of(CANNOT_CHOOSE_CPUS, "", seen, f"a container that requests {resource or 'one'}")
        deadline = time.monotonic() + self._patience_s
        pods = self._list_pods(self._age_s)
        while True:
            count = _requested_units(pods.get(task.pod), resource, task.container, wanted)
            if count is not None:
                return count
            if time.monotonic() >= deadline:
                where = f"container {task.container} of pod {task.pod}"
                seen = (
                    "the API server does not tell which it is"
                    if task.pod in pods
                    else "not among the node's pods"
                )
                raise Unavailable.of(CANNOT_CHOOSE_CPUS, where, seen, f"a container that requests {resource}")
            time.sleep(min(self._age_s, 0.5))
            pods = self._list_pods(0.5)

    def pod(self, uid: str) -> Object | None:
        """A pod of this node, or None. Unavailable if the API server does not respond."""
        return self._list_pods(self._age_s).get(uid) or self._list_pods(0.5).get(uid)

    def _list_pods(self, age_s: float) -> Mapping[str, Object]:
        """The pods by uid, at most `age_s` old."""
        with self._lock:
            if time.monotonic() - self._listed_s > age_s:
                answer = self._api.get(PODS.path(), self._params)
                self._pods = _pods_by_uid(answer.get("items") or ())
                self._listed_s = time.monotonic()
            return self._pods


def _pods_by_uid(pods: Iterable[Object]) -> Mapping[str, Object]:
    """The pods by the uids in the names of their cgroups.

    A mirror pod has the uid of its static pod in an annotation, which any creator of pods may write. So it does not
    replace a pod with that uid, and the oldest of several mirror pods counts.
    """
    mirrors: dict[str, Object] = {}
    own = {pod["metadata"]["uid"]: pod for pod in pods}
    for pod in sorted(own.values(), key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        static_uid = (pod["metadata"].get("annotations") or {}).get("kubernetes.io/config.mirror")
        if static_uid:
            mirrors.setdefault(str(static_uid), pod)
    return {**mirrors, **own}


def _requested_units(pod: Object | None, resource: str, container: str, wanted: int) -> int | None:
    """How many units the container requests.

    While it is unknown which of the pod's containers it is: `wanted` if all of them request that many, the largest
    request if none does, else None.
    """
    if pod is None:
        return None
    counts = {}
    for specs, statuses in _STATUS_FIELDS.items():
        ids = {
            status["name"]: status.get("containerID", "")
            for status in pod.get("status", {}).get(statuses) or ()
        }
        for spec in pod["spec"].get(specs) or ():
            count = _container_request(spec, resource)
            if ids.get(spec["name"], "").rpartition("//")[2] == container:
                return count
            counts[spec["name"]] = count
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    if most < wanted:
        return most
    return wanted if least >= wanted else None


def _container_request(container: Object, resource: str) -> int:
    """The request, or the limit without a request, which is the API server's rule."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    for kind in ("requests", "limits"):
        value = (resources.get(kind) or {}).get(resource)
        if value is not None:
            return quantity.parse(str(value)) // quantity.NANO
    return 0
