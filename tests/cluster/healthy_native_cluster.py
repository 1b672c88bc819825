"""A cluster with native mode as `nodewise configure --mode native` installs it, in which `nodewise doctor` must report
no problem. The controller is a real process; the test writes the status of its Deployment.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster import (
    admission_policy_waits,
    extender_process,
    followed_remedies,
    healthy_cluster,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.healthy_cluster import NAMESPACE, TENANT, HealthyCluster
from tests.cluster.namespace_sandboxes import wait

INSTALL: Final = "nodewise configure --mode native | kubectl apply --server-side -f -"
DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nodewise-controller"
PODS: Final = f"/api/v1/namespaces/{TENANT}/pods"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/nodewise-controller"


@contextlib.contextmanager
def installed(plane: ControlPlane, log: AuditLog, folder: Path) -> Iterator[HealthyCluster]:
    """The cluster on a control plane without other objects. Its processes run while the context is open."""
    with contextlib.ExitStack() as stack:
        cluster = HealthyCluster(plane, folder, log, stack)
        plane.api.ensure(kubernetes_objects.namespace(TENANT, trusted=True))
        followed_remedies.run_in_shell(cluster, INSTALL)
        extender_process.define(plane.api)
        healthy_cluster.report_available(plane.api, plane.api.get(DEPLOYMENT))
        healthy_cluster.create_doctor_account(cluster)
        healthy_cluster.put_nodes(cluster)
        healthy_cluster.serve_metrics(cluster)
        start_controller(cluster)
        create_policy(plane.api, healthy_cluster.placement_policy("cool", {"app": "shop"}, above=80))
        plane.api.create(pod("shop", "shop"))
        yield cluster


def start_controller(cluster: HealthyCluster, *flags: str) -> None:
    """Runs the container of the Deployment, and waits until it leads."""
    account = cluster.plane.service_account("nodewise", NAMESPACE)
    admission_policy_waits.wait_nodes(cluster.api, account.api)
    admission_policy_waits.wait_pods(cluster.api, account.api)
    run = extender_process.controller(account, cluster.folder, f"--namespace={NAMESPACE}", *flags)
    cluster.controller = cluster.stack.enter_context(run)

    def leads() -> bool | None:
        lease = cluster.api.find(LEASE)
        return bool(lease and lease["spec"].get("holderIdentity")) or None

    wait("the controller leads", leads, show=cluster.controller.tail)


def pod(name: str, app: str, **spec: object) -> Object:
    """A pod of the tenant that waits, because it has a scheduling gate."""
    made = kubernetes_objects.pod(name, labels={"app": app})
    made["metadata"]["namespace"] = TENANT
    made["spec"] |= {"schedulingGates": [{"name": "tests/held"}], **spec}
    return made


def create_policy(api: ClusterApi, policy: Object) -> None:
    """Creates a policy that selects pods by the label `app`, and waits until new pods get its requirement."""
    uid = api.create(policy)["metadata"]["uid"]
    probe = pod("probe", policy["spec"]["podSelector"]["matchLabels"]["app"])

    def is_required() -> bool | None:
        made = api.request("POST", PODS, json=probe, params=admission_policy_waits.DRY_RUN).json()
        return native_mode.requires(made, uid) or None

    wait("new pods get the requirement", is_required)


def condition(api: ClusterApi, policy: Object, kind: str) -> Object:
    """A condition of a policy; empty if it has none of this type."""
    conditions = api.get(path_of(policy)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})
