"""The shipped rights of the gpu agent are exactly those that the audit log shows as used."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from tests.cluster import (
    admission_policy_waits,
    child_processes,
    extender_process,
    gpu_cluster,
    namespace_sandboxes,
    rbac_rights_comparison,
)
from tests.cluster.api_client import Object
from tests.cluster.audit_log_reader import AuditedRequest, AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.shipped_installation import ACCOUNT, HOST, NAMESPACE

NODES = ("g1", "g2")
EMPTIED = "telemetry.aware.scheduling.p/gas-deschedule-pods-card0"
MARK = "gpu.aware.scheduling/deschedule-pod"


class GpuRightsScenario(NamedTuple):
    """Two replicas, two namespaces and two nodes, so that no right is limited to one of them."""

    plane: ControlPlane
    log: AuditLog
    all_sandboxes: Sequence[Sandbox]
    replicas: Sequence[ExtenderProcess]
    certificates: CertificateFiles

    def requests(self) -> list[AuditedRequest]:
        return self.log.requests(ACCOUNT)

    def bind(self, replica: ExtenderProcess, sandbox: Sandbox, name: str, node: str) -> str:
        """Sends a bind call as kube-scheduler does. Returns the error; empty if it succeeded."""
        uid = (sandbox.pod(name) or {})["metadata"]["uid"]
        arguments = {"PodName": name, "PodNamespace": sandbox.namespace, "PodUID": uid, "Node": node}
        context = self.certificates.authority.client_context(self.certificates.client)
        with httpx2.Client(verify=context, trust_env=False, timeout=30) as client:
            return str(client.post(f"{replica.url}/scheduler/bind", json=arguments).json()["Error"])

    def binds_at_once(self) -> None:
        """Binds pods through both replicas at once until one of them has a conflict and reads the record again."""
        for number in range(50):
            if any(
                (request.verb, request.resource) == ("get", "leases") and "gpu-" in request.name
                for request in self.requests()
            ):
                return
            names = [f"p-{number}-{count}" for count in range(4)]
            for sandbox in self.all_sandboxes:
                sandbox.pods(*map(gpu_cluster.pod, names))
            places = [(sandbox, name) for sandbox in self.all_sandboxes for name in names]
            with ThreadPoolExecutor(len(places)) as pool:
                results = [
                    pool.submit(self.bind, self.replicas[at % 2], sandbox, name, NODES[at // 2 % 2])
                    for at, (sandbox, name) in enumerate(places)
                ]
            assert {result.result() for result in results} == {""}
        raise AssertionError("no replica ever was too late")

    def binds_that_fail(self) -> None:
        """Binds pods that are being deleted. Their entries are removed again after the pods were changed."""
        for sandbox, node in zip(self.all_sandboxes, NODES, strict=True):
            self._bind_of_a_leaving_pod(sandbox, node, f"leaving-{node}")

    def _bind_of_a_leaving_pod(self, sandbox: Sandbox, node: str, name: str) -> None:
        leaving = gpu_cluster.pod(name)
        leaving["metadata"]["finalizers"] = ["nodewise.io/test"]
        sandbox.pods(leaving)
        sandbox.api.delete(self._path(sandbox, name))
        assert "being deleted" in self.bind(self.replicas[0], sandbox, name, node)
        uid = (sandbox.pod(name) or {})["metadata"]["uid"]
        wait(
            "its entry is gone",
            lambda: uid not in gpu_cluster.allocation_record(sandbox, node, NAMESPACE) or None,
        )
        sandbox.api.patch(self._path(sandbox, name), {"metadata": {"finalizers": None}})

    def cards_are_emptied(self) -> None:
        for node in NODES:
            self.plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {EMPTIED: "true"}}})
        wait("pods are marked", lambda: all(map(self._is_marked, self.all_sandboxes)) or None)

    def pods_are_counted_again(self) -> None:
        for sandbox in self.all_sandboxes:
            sandbox.pods(gpu_cluster.pod("one-more"))

        def is_counted() -> bool | None:
            verbs = {
                request.verb
                for request in self.requests()
                if request.resource == "configmaps" and request.code < 300
            }
            return {"create", "update"} <= verbs or None

        wait("the count is written again", is_counted, 120)

    def nodes_go(self) -> None:
        for sandbox in self.all_sandboxes:
            sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods")
        for node in NODES:
            self.plane.api.delete(f"/api/v1/nodes/{node}")
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpu-"
        wait("no records left", lambda: not any(self.plane.api.find(path + node) for node in NODES) or None)

    def _is_marked(self, sandbox: Sandbox) -> bool:
        pods: list[Object] = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/pods")["items"]
        return any(MARK in pod["metadata"].get("labels", {}) for pod in pods)

    def _path(self, sandbox: Sandbox, name: str) -> str:
        return f"/api/v1/namespaces/{sandbox.namespace}/pods/{name}"


@pytest.fixture
def run(plane: ControlPlane, audit_log: AuditLog, tmp_path: Path) -> Iterator[GpuRightsScenario]:
    extender_process.define(plane.api)
    for name in ("rbac.yaml", "gpu.yaml"):
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    account = plane.service_account("nodewise", NAMESPACE)
    admission_policy_waits.wait_nodes(plane.api, account.api)
    admission_policy_waits.wait_pods(plane.api, account.api)
    certificates = CertificateFiles(tmp_path, HOST, child_processes.own_address())
    options = [
        *extender_process.arguments(account, certificates),
        f"--namespace={NAMESPACE}",
        "--agents=gpu",
        *gpu_cluster.FAST,
    ]
    with namespace_sandboxes.created(plane) as first, namespace_sandboxes.created(plane) as second:
        first.nodes(*(gpu_cluster.node(name, 8, shares=100) for name in NODES))
        with (
            extender_process.started(tmp_path, options, certificates) as first_replica,
            extender_process.started(tmp_path, options, certificates) as other,
        ):
            wait("both replicas are ready", lambda: (first_replica.is_ready() and other.is_ready()) or None)
            yield GpuRightsScenario(plane, audit_log, (first, second), (first_replica, other), certificates)


def test_the_rights_that_ship_are_those_that_were_needed(run: GpuRightsScenario) -> None:
    run.binds_that_fail()
    run.binds_at_once()
    run.cards_are_emptied()
    run.pods_are_counted_again()
    run.nodes_go()
    requests = [request for request in run.requests() if request.resource]
    assert [request for request in requests if request.is_refused] == []
    needed = rbac_rights_comparison.needed(requests)
    shipped = rbac_rights_comparison.granted(extender_process.manifest("gpu.yaml"))
    assert shipped <= needed, shipped - needed
    beyond = needed - shipped - rbac_rights_comparison.granted(extender_process.manifest("rbac.yaml"))
    assert beyond == set()
