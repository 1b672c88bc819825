"""Pods that run commands on a real node, and waits for their state."""

from collections.abc import Sequence
from typing import Any

from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import busybox_image


def pod(name: str, script: str, *, on: str = "", **spec: Any) -> Object:
    """A pod whose container `main` runs a script once; `on` is the node, if no scheduler chooses one."""
    container = {"name": "main", "image": busybox_image.NAME, "command": ["sh", "-c", script]}
    placed = {"nodeName": on} if on else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container | spec.pop("container", {})],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            **placed,
            **spec,
        },
    }


def running(sandbox: Sandbox, name: str) -> Object:
    """The pod once it is running."""
    return _in_phase(sandbox, name, ["Running"])


def ended(sandbox: Sandbox, name: str) -> Object:
    """The pod once its container has ended, with any result."""
    return _in_phase(sandbox, name, ["Succeeded", "Failed"])


def _in_phase(sandbox: Sandbox, name: str, phases: Sequence[str]) -> Object:
    def seen() -> Object | None:
        pod = sandbox.pod(name) or {}
        return pod if pod.get("status", {}).get("phase") in phases else None

    what = f"pod {name} is {' or '.join(phases)}"
    return wait(what, seen, show=lambda: (sandbox.pod(name), sandbox.events(name)))


def container_of(pod: Object) -> str:
    """The container id of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    return status["containerID"].partition("://")[2]


def exit_code(pod: Object) -> int:
    """The exit code of a pod's only container, which has ended."""
    (status,) = pod["status"]["containerStatuses"]
    return status["state"]["terminated"]["exitCode"]
