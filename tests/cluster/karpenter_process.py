"""Runs the real Karpenter with its kwok provider, which creates Node objects without machines."""

import contextlib
import functools
import json
import os
import subprocess
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from tests.cluster import network_namespaces
from tests.cluster.api_client import ApiError, Object
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait

NODE_CLASS: Object = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
}
NODE_POOL: Object = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default"},
    "spec": {
        "template": {
            "spec": {
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            }
        },
        "disruption": {"consolidateAfter": "Never"},
    },
}
CLAIMS, POOLS = "/apis/karpenter.sh/v1/nodeclaims", "/apis/karpenter.sh/v1/nodepools"
NODES = "/api/v1/nodes"


@contextlib.contextmanager
def running(plane: ControlPlane, programs: Path) -> Iterator[Process]:
    """Creates the definitions of Karpenter's resources, and runs it. Its ports are in a namespace of their own."""
    printed = subprocess.run([programs / "karpenter-crds"], capture_output=True, check=True)
    for definition in json.loads(printed.stdout):
        plane.api.ensure(definition)
    port = urllib.parse.urlsplit(plane.url).port
    assert port is not None
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(plane.admin.kubeconfig),
        "DISABLE_LEADER_ELECTION": "true",
        "BATCH_IDLE_DURATION": "100ms",
    }
    with network_namespaces.created(plane.folder, port) as prefix:
        command = [*prefix, programs / "karpenter"]
        with Process(command, plane.folder / "karpenter.log", environment) as process:
            yield process


@contextlib.contextmanager
def pool(sandbox: Sandbox) -> Iterator[None]:
    """A pool of nodes. Its objects are deleted at the end, although Karpenter may have stopped."""
    for wanted in (NODE_CLASS, NODE_POOL):
        wait("the resource is served", functools.partial(_create, sandbox, wanted))
    yield
    for path in (CLAIMS, NODES, POOLS):
        for made in sandbox.api.get(path)["items"]:
            own = f"{path}/{made['metadata']['name']}"
            sandbox.api.delete(own)
            if made["metadata"].get("finalizers"):
                with contextlib.suppress(ApiError):  # Karpenter was faster
                    sandbox.api.patch(own, {"metadata": {"finalizers": None}})


def _create(sandbox: Sandbox, wanted: Object) -> Object | None:
    """The created object; None if the API server does not serve its resource yet."""
    try:
        return sandbox.create(wanted)
    except ApiError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return None
        raise
