"""A cluster in which nodewise was installed as it ships: its manifests applied, both metrics APIs served, who asks
for what recorded, and nodewise run as the account that the manifests bind, with all that it can do switched on.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster import (
    admission_policy_waits,
    extender_process,
    fake_custom_metrics_server,
    fake_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    processes,
    rbac_rights,
)
from tests.cluster.api_client import JSON_PATCH, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.rbac_rights import ApiRight

NAMESPACE = "nodewise"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:nodewise"
HOST = f"{extender_process.SERVICE}.{NAMESPACE}.svc"
ADVERTISED = "telemetry/scheduling"


class ShippedInstallation(NamedTuple):
    """What a test has of it."""

    plane: ControlPlane
    log: AuditLog
    metrics: FakeCustomMetricsApi
    account: User
    """The service account."""
    papers: CertificateFiles
    """For replicas at an address of this machine, behind their Service."""

    @contextlib.contextmanager
    def started(self, folder: Path) -> Iterator[ExtenderProcess]:
        """A replica at an address of this machine, by the service account; not waited for to be ready."""
        arguments = extender_process.arguments(self.account, self.papers)
        arguments += [f"--namespace={NAMESPACE}", f"--advertise-resource={ADVERTISED}=1000"]
        with extender_process.started(
            folder, [*arguments, f"--address={processes.own_address()}"], self.papers
        ) as running:
            yield running

    def labels(self, node: str) -> dict[str, str]:
        labels: dict[str, str] = self._node(node)["metadata"]["labels"]
        return labels

    def advertises(self, node: str) -> bool:
        return ADVERTISED in self._node(node)["status"]["allocatable"]

    def label_as_the_older_system(self, node: str, key: str) -> None:
        """Telemetry Aware Scheduling named no manager, so its labels are those of `extender`."""
        patch = [{"op": "add", "path": f"/metadata/labels/{key}", "value": "violating"}]
        by = {"fieldManager": "extender"}
        headers = {"Content-Type": JSON_PATCH}
        self.plane.api.request("PATCH", f"/api/v1/nodes/{node}", json=patch, headers=headers, params=by)

    @contextlib.contextmanager
    def missing(self, right: ApiRight) -> Iterator[None]:
        """The account's role without one right, until the block is left."""
        kind = "Role" if right.namespace else "ClusterRole"
        role = next(
            manifest for manifest in extender_process.manifest("rbac.yaml") if manifest["kind"] == kind
        )
        self._put(role | {"rules": rbac_rights.without(role["rules"], right)})
        try:
            wait("it is gone", lambda: not rbac_rights.holds(self.plane.api, ACCOUNT, right) or None)
            yield
        finally:
            self._put(role)
            wait("it is back", lambda: rbac_rights.holds(self.plane.api, ACCOUNT, right) or None)

    def _put(self, role: Object) -> None:
        self.plane.api.request("PUT", path_of(role), json=role)

    def _node(self, name: str) -> Object:
        return self.plane.api.get(f"/api/v1/nodes/{name}")


def policy(name: str, metric: str, *strategies: str) -> Object:
    """Nodes with more than 80 of a metric break the rule of each strategy; the idlest is preferred."""
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 80}
    rules_by_strategy = {strategy: {"rules": [rule]} for strategy in strategies}
    idlest = {"metricname": "cpu_usage", "operator": "LessThan"}
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name},
        "spec": {"strategies": rules_by_strategy | {"scheduleonmetric": {"rules": [idlest]}}},
    }


def pod(name: str, policy: str) -> Object:
    return kubernetes_objects.pod(name, labels={"telemetry-policy": policy}, limits=extender_process.LIMITS)


def endpoint(name: str, url: str) -> Object:
    """An EndpointSlice of a replica, where `nodewise explain` looks for it."""
    made = extender_process.endpoint(name, url)
    return made | {"metadata": made["metadata"] | {"namespace": NAMESPACE}}


def shown(papers: CertificateFiles) -> list[str]:
    """What `nodewise explain` shows to replicas, and trusts."""
    client = papers.client
    return [f"--cert={client.cert}", f"--key={client.key}", f"--ca={papers.authority.ca_file}"]


@contextlib.contextmanager
def installed(plane: ControlPlane, log: AuditLog, folder: Path) -> Iterator[ShippedInstallation]:
    """The manifests applied, and the metrics APIs served until the block is left."""
    extender_process.define(plane.api)
    for name in ("rbac.yaml", "reader.yaml"):
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    with (
        namespace_sandboxes.created(plane) as own,
        fake_custom_metrics_server.behind(own, folder) as custom,
        fake_metrics_server.behind(plane.api, folder) as resource,
    ):
        resource.cpu = {"a": "1", "b": "2", "c": "500m"}
        papers = CertificateFiles(folder, HOST, processes.own_address())
        account = plane.service_account("nodewise", NAMESPACE)
        admission_policy_waits.wait_nodes(plane.api, account.api)
        yield ShippedInstallation(plane, log, custom, account, papers)
