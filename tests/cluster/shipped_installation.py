"""A cluster with the shipped installation of nodewise: the manifests are applied, both metrics APIs are served,
requests are recorded, and nodewise runs with its shipped service account and all features enabled.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster import (
    admission_policy_waits,
    child_processes,
    extender_process,
    fake_custom_metrics_server,
    fake_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    placement_policy_specs,
    rbac_rights_comparison,
)
from tests.cluster.api_client import JSON_PATCH, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.rbac_rights_comparison import ApiRight

NAMESPACE = "nodewise"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:nodewise"
HOST = f"{extender_process.SERVICE}.{NAMESPACE}.svc"
ADVERTISED = "telemetry/scheduling"


class ShippedInstallation(NamedTuple):
    """The installation as tests use it."""

    plane: ControlPlane
    log: AuditLog
    metrics: FakeCustomMetricsApi
    account: User
    """The service account."""
    certificates: CertificateFiles
    """The certificates of replicas at an address of this machine, behind their Service."""

    @contextlib.contextmanager
    def started(self, folder: Path) -> Iterator[ExtenderProcess]:
        """Runs a replica at an address of this machine with the service account. It may not be ready yet."""
        arguments = extender_process.arguments(self.account, self.certificates)
        arguments += [f"--namespace={NAMESPACE}", f"--advertise-resource={ADVERTISED}=1000"]
        with extender_process.started(
            folder, [*arguments, f"--address={child_processes.own_address()}"], self.certificates
        ) as running:
            yield running

    def labels(self, node: str) -> dict[str, str]:
        labels: dict[str, str] = self._node(node)["metadata"]["labels"]
        return labels

    def advertises(self, node: str) -> bool:
        return ADVERTISED in self._node(node)["status"]["allocatable"]

    def label_as_the_older_system(self, node: str, key: str) -> None:
        """Labels a node as Telemetry Aware Scheduling does: it sets no field manager, so the manager is `extender`."""
        patch = [{"op": "add", "path": f"/metadata/labels/{key}", "value": "violating"}]
        by = {"fieldManager": "extender"}
        headers = {"Content-Type": JSON_PATCH}
        self.plane.api.request("PATCH", f"/api/v1/nodes/{node}", json=patch, headers=headers, params=by)

    @contextlib.contextmanager
    def missing(self, right: ApiRight) -> Iterator[None]:
        """Removes one right from the account's role while the context is open."""
        kind = "Role" if right.namespace else "ClusterRole"
        role = next(
            manifest for manifest in extender_process.manifest("rbac.yaml") if manifest["kind"] == kind
        )
        self._put(role | {"rules": rbac_rights_comparison.without(role["rules"], right)})
        try:
            wait(
                "the right is gone",
                lambda: not rbac_rights_comparison.holds(self.plane.api, ACCOUNT, right) or None,
            )
            yield
        finally:
            self._put(role)
            wait(
                "the right is back",
                lambda: rbac_rights_comparison.holds(self.plane.api, ACCOUNT, right) or None,
            )

    def _put(self, role: Object) -> None:
        self.plane.api.request("PUT", path_of(role), json=role)

    def _node(self, name: str) -> Object:
        return self.plane.api.get(f"/api/v1/nodes/{name}")


def policy(name: str, metric: str, *strategies: str) -> Object:
    """A policy. Nodes whose metric is above 80 break the rule of each strategy; the node with the lowest CPU usage is
    preferred.
    """
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 80}
    rules_by_strategy = {strategy: {"rules": [rule]} for strategy in strategies}
    idlest = {"metricname": "cpu_usage", "operator": "LessThan"}
    return extender_process.tas_policy(name, rules_by_strategy | {"scheduleonmetric": {"rules": [idlest]}})


def placement_policies(sandbox: Sandbox) -> None:
    """Creates a PlacementPolicy and a ClusterPlacementPolicy, both named after the namespace. No pod matches."""
    rules = {"podSelector": {"matchLabels": {"app": "placed"}}, "avoid": [{"metric": "heat", "above": 80}]}
    sandbox.put(placement_policy_specs.policy(rules, name=sandbox.namespace))
    by_name = {"matchLabels": {"kubernetes.io/metadata.name": sandbox.namespace}}
    spec = rules | {"namespaceSelector": by_name}
    sandbox.create(placement_policy_specs.policy(spec, "ClusterPlacementPolicy", sandbox.namespace))


def placement_policy_statuses(sandbox: Sandbox) -> list[Object]:
    """The statuses of these policies; empty ones for those that have none."""
    folder = f"/apis/{placement_policy_specs.GROUP}"
    own = sandbox.api.get(f"{folder}/namespaces/{sandbox.namespace}/placementpolicies/{sandbox.namespace}")
    wide = sandbox.api.get(f"{folder}/clusterplacementpolicies/{sandbox.namespace}")
    return [own.get("status", {}), wide.get("status", {})]


def pod(name: str, policy: str) -> Object:
    return kubernetes_objects.pod(name, labels={"telemetry-policy": policy}, limits=extender_process.LIMITS)


@contextlib.contextmanager
def installed(plane: ControlPlane, log: AuditLog, folder: Path) -> Iterator[ShippedInstallation]:
    """Applies the manifests and serves the metrics APIs while the context is open."""
    extender_process.define(plane.api)
    for name in ("rbac.yaml", "reader.yaml"):
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    with (
        namespace_sandboxes.created(plane) as own,
        fake_custom_metrics_server.behind(own, folder) as custom,
        fake_metrics_server.behind(plane.api, folder) as resource,
    ):
        resource.cpu = {"a": "1", "b": "2", "c": "500m"}
        certificates = CertificateFiles(folder, HOST, child_processes.own_address())
        account = plane.service_account("nodewise", NAMESPACE)
        admission_policy_waits.wait_nodes(plane.api, account.api)
        yield ShippedInstallation(plane, log, custom, account, certificates)
