"""A fake for the kubelets of a namespace: it sets the status of pods, and removes pods that are being deleted.

It also binds pods of DaemonSets to their nodes.
"""

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

from tests.cluster.api_client import ApiError, ClusterApi, Object

_PAUSE_S = 0.05
SUCCEEDED: Object = {"phase": "Succeeded"}
LABELLED: Object = {"metadata": {"labels": {"cmk.intel.com/cmk-node": "true"}}}
"""The patch of a node that `discover` applies, as far as these tests need it."""


def failed(message: str, container: str = "init") -> Object:
    """The status of a failed pod: one of its containers ended with an error."""
    ended = {"exitCode": 1, "message": message}
    return {"phase": "Failed", "containerStatuses": [_container(container, {"terminated": ended})]}


def crashing(pod: Object) -> Object:
    """The status of a pod in CrashLoopBackOff."""
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    names = [container["name"] for container in pod["spec"]["containers"]]
    return {
        "phase": "Running",
        "containerStatuses": [_container(name, {"waiting": waiting}, 4) for name in names],
    }


def running(pod: Object) -> Object:
    """The status of a pod with running containers."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    return {
        "phase": "Running",
        "conditions": [*pod["status"].get("conditions", ()), {"type": "Ready", "status": "True"}],
        "containerStatuses": [_container(name, {"running": {}}, ready=True) for name in names],
    }


def _container(name: str, state: Object, restarts: int = 0, *, ready: bool = False) -> Object:
    return {
        "name": name,
        "image": "none",
        "imageID": "none",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
    }


def _meant_for(pod: Object) -> str | None:
    """The node of a DaemonSet pod that is not bound yet, because no kube-scheduler runs; None for other pods."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    names = [field["values"][0] for term in terms for field in term.get("matchFields", [])]
    return None if pod["spec"].get("nodeName") or not names else str(names[0])


class FakeKubelets:
    """The fake kubelets that `running_kubelets` creates. `fates` maps patterns of pod names to a status; other pods run
    or succeed.
    """

    def __init__(self, api: ClusterApi, namespace: str) -> None:
        self.fates: dict[str, Object] = {}
        self.seen: list[str] = []
        """The names of the pods whose status was set, in order."""
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/pods"
        self._over = threading.Event()
        self._updated: set[str] = set()

    def work(self) -> None:
        while not self._over.wait(_PAUSE_S):
            for pod in self._api.get(self._folder)["items"]:
                with contextlib.suppress(ApiError):  # the pod changed or was deleted
                    self._tend(pod)

    def end(self) -> None:
        self._over.set()

    def _tend(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"{self._folder}/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            self._api.delete(path)
        elif metadata["uid"] not in self._updated and pod["spec"].get("nodeName"):
            status = self._status(pod)
            if status is SUCCEEDED and "discover" in {
                container["name"] for container in pod["spec"]["containers"]
            }:
                self._api.patch(f"/api/v1/nodes/{pod['spec']['nodeName']}", LABELLED)
            self._api.patch(f"{path}/status", {"status": status})
            self._updated.add(metadata["uid"])
            self.seen.append(metadata["name"])
        elif node := _meant_for(pod):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}}
            self._api.request("POST", f"{path}/binding", json=binding | {"target": target})

    def _status(self, pod: Object) -> Any:
        fates = [fate for form, fate in self.fates.items() if re.fullmatch(form, pod["metadata"]["name"])]
        once = pod["spec"]["restartPolicy"] == "Never"
        return fates[0] if fates else SUCCEEDED if once else running(pod)


@contextlib.contextmanager
def running_kubelets(api: ClusterApi, namespace: str) -> Iterator[FakeKubelets]:
    """Runs the fake kubelets of a namespace while the context is open."""
    kubelets = FakeKubelets(api, namespace)
    thread = threading.Thread(target=kubelets.work)
    thread.start()
    try:
        yield kubelets
    finally:
        kubelets.end()
        thread.join()
