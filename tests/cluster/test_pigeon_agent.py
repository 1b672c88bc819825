"""Pods are packed by current requests, and the statistics of requests survive a restart."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.cluster import api_user_kubeconfigs, child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import OWN_NAMESPACE, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait

NODES = "a b c"
CPU = 4


def entry(running: ExtenderProcess) -> Object:
    """The extender's entry for scores of all pods, with a weight that exceeds kube-scheduler's own plugins."""
    fields = running.entry(weight=100, managedResources=[])
    return {name: value for name, value in fields.items() if name not in ("filterVerb", "preemptVerb")}


def room(running: ExtenderProcess, node: str, cpu_milli: int) -> bool:
    """Whether nodewise considers this amount of CPU free on a node."""
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": f"{cpu_milli}m"}}}]}
    pod = {"metadata": {"name": "probe", "namespace": "default", "uid": "probe"}, "spec": spec}
    context = running.certificates.authority.client_context(running.certificates.client)
    with httpx2.Client(verify=context, trust_env=False) as client:
        request = {"Pod": pod, "NodeNames": [node]}
        (answer,) = client.post(f"{running.url}/agents/pigeon/prioritize", json=request).json()
    return bool(answer["Score"])


def test_one_node_after_another_is_filled(plane: ControlPlane, sandbox: Sandbox, tmp_path: Path) -> None:
    """kube-scheduler alone would spread the pods; scores from annotations would not include the latest pod."""
    sandbox.nodes(*kubernetes_objects.nodes(NODES, cpu=str(CPU)))
    how = ["--agents=pigeon", "--policy-objective=CONSOLIDATE", "--pigeon-usage=pods"]
    there: Counter[str] = Counter()
    with (
        extender_process.extender(plane, tmp_path, *how) as running,
        plane.start_scheduler({"extenders": [entry(running)]}),
    ):
        for number in range(2 * CPU):
            sandbox.pods(kubernetes_objects.pod(f"web-{number}", cpu="1", memory="64Mi"))
            node = sandbox.expect_bound(f"web-{number}")
            there[node] += 1
            left = 1000 * (CPU - there[node])
            wait("the pod counts", lambda node=node, left=left: not room(running, node, left + 1) or None)
    assert sorted(there.values()) == [CPU, CPU]


KEPT = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps/nodewise-memory"


@pytest.fixture
def forgotten(plane: ControlPlane) -> Iterator[None]:
    """Deletes the stored state before and after a test."""
    forget(plane)
    yield
    forget(plane)


def forget(plane: ControlPlane) -> None:
    if plane.api.find(KEPT) is not None:
        plane.api.delete(KEPT)


def keeper(plane: ControlPlane) -> User:
    """A user with the shipped rights, including those for stored state."""
    memory = next(
        manifest for manifest in extender_process.manifest("memory.yaml") if manifest["kind"] == "Role"
    )["rules"]
    made = plane.user(f"nodewise-{child_processes.number()}", extender_process.rules())
    api_user_kubeconfigs.grant(
        plane.api, made.name, [*extender_process.rules("Role"), *memory], OWN_NAMESPACE
    )
    return made


def demand(running: ExtenderProcess) -> Any:
    return plain_http.get(f"{running.health}/state/pigeon").json()


@pytest.mark.usefixtures("forgotten")
def test_requests_of_pods_are_known_after_a_restart(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes(NODES, cpu="32"))
    user = keeper(plane)
    with (
        extender_process.extender(plane, tmp_path, "--agents=pigeon", by=user) as running,
        plane.start_scheduler({"extenders": [entry(running)]}),
    ):
        for number, cpu in enumerate(("1", "3")):
            sandbox.pods(kubernetes_objects.pod(f"web-{number}", cpu=cpu, memory="1Gi"))
            sandbox.expect_bound(f"web-{number}")
        before = wait("both are counted", lambda: demand(running) if demand(running)["pods"] == 2 else None)
    kept = plane.api.get(KEPT)["data"]
    assert json.loads(kept["pigeon.json"])["samples"] == 2
    with extender_process.extender(plane, tmp_path, "--agents=pigeon", by=user) as running:
        wait("the state is restored", lambda: demand(running) == before or None)
    assert before["resources"]["cpu"]["pod_mean"] == 2000
    assert before["resources"]["cpu"]["pod_deviation"] == 1000
