"""The roles of `deploy/policy-roles.yaml` on a real API server: what tenants of a namespace can do with policies."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from tests.cluster import api_user_kubeconfigs, child_processes, extender_process
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import COOL, GROUP, WIDE, policy

FORBIDDEN: Final = 403
ROLES: Final = ("admin", "edit", "view")


class Tenants(NamedTuple):
    """Clients of users that have a role of Kubernetes in one namespace, and nothing else."""

    namespace: str
    admin: ClusterApi
    edit: ClusterApi
    view: ClusterApi

    @property
    def folder(self) -> str:
        return f"/apis/{GROUP}/namespaces/{self.namespace}/placementpolicies"


@pytest.fixture(scope="module")
def tenants(plane: ControlPlane) -> Iterator[Tenants]:
    """Tenants with the aggregated roles, as kube-controller-manager computes them."""
    extender_process.define(plane.api)
    for role in extender_process.manifest("policy-roles.yaml"):
        plane.api.create(role)
    space = Sandbox(plane, trusted=False)
    made = {name: plane.user(f"{name}-{child_processes.number()}") for name in ROLES}
    for role, user in made.items():
        api_user_kubeconfigs.bind_cluster_role(plane.api, user.name, role, space.namespace)
    manager = plane.start_controller_manager("clusterrole-aggregation-controller")
    tenants = Tenants(space.namespace, *(made[name].api for name in ROLES))
    wait("the roles are aggregated", lambda: all(api.answers(tenants.folder) for api in tenants[1:]) or None)
    yield tenants
    manager.stop()


def status_code(api: ClusterApi, method: str, path: str, body: Object | None = None) -> int:
    """The HTTP status of a request."""
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    try:
        response = api.request(method, path, json=body, headers=headers)
    except ApiError as error:
        return error.code
    return response.status_code


def in_namespace(namespace: str) -> Object:
    return policy(COOL, name="cool", namespace=namespace)


@pytest.mark.parametrize("role", ["admin", "edit"])
def test_editors_write_policies_of_their_namespace(tenants: Tenants, role: str) -> None:
    api: ClusterApi = getattr(tenants, role)
    path = path_of(api.create(in_namespace(tenants.namespace)))
    api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert tenants.view.get(path)["metadata"]["labels"] == {"a": "b"}
    api.delete(path)
    assert (
        status_code(api, "POST", tenants.folder.replace(tenants.namespace, "default"), policy(COOL))
        == FORBIDDEN
    )


def test_viewers_write_nothing(tenants: Tenants) -> None:
    path = path_of(tenants.edit.create(in_namespace(tenants.namespace)))
    assert status_code(tenants.view, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == FORBIDDEN
    assert status_code(tenants.view, "DELETE", path) == FORBIDDEN
    assert status_code(tenants.view, "POST", tenants.folder, in_namespace(tenants.namespace)) == FORBIDDEN
    tenants.edit.delete(path)


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_a_namespace_do_not_reach_cluster_policies(
    plane: ControlPlane, tenants: Tenants, role: str
) -> None:
    api: ClusterApi = getattr(tenants, role)
    wide = policy(WIDE, "ClusterPlacementPolicy")
    folder = f"/apis/{GROUP}/clusterplacementpolicies"
    assert status_code(api, "POST", folder, wide) == FORBIDDEN
    path = path_of(plane.api.create(wide))
    requests = [
        ("GET", folder, None),
        ("GET", path, None),
        ("PATCH", path, {"spec": {"avoid": []}}),
        ("PATCH", f"{path}/status", {"status": {"mode": "NotEnforced"}}),
        ("DELETE", path, None),
        ("DELETE", folder, None),
        # its namespaceSelector reads these labels
        ("PATCH", f"/api/v1/namespaces/{tenants.namespace}", {"metadata": {"labels": {"tier": "other"}}}),
    ]
    assert [request[:2] for request in requests if status_code(api, *request) != FORBIDDEN] == []
    plane.api.delete(path)


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_a_namespace_do_not_write_a_status(plane: ControlPlane, tenants: Tenants, role: str) -> None:
    """Admission policies read it: a forged mode would release the pods of a policy, or its label select other nodes."""
    api: ClusterApi = getattr(tenants, role)
    forged = {"status": {"mode": "NotEnforced", "nodeLabel": "kubernetes.io/os", "active": True}}
    path = path_of(tenants.edit.create(in_namespace(tenants.namespace) | forged))
    assert "status" not in plane.api.get(path)
    assert status_code(api, "PATCH", f"{path}/status", forged) == FORBIDDEN
    assert status_code(api, "PUT", f"{path}/status", plane.api.get(path) | forged) == FORBIDDEN
    if role != "view":
        api.patch(path, forged)
    assert "status" not in plane.api.get(path)
    tenants.edit.delete(path)


@pytest.mark.parametrize("rule", ["placementpolicies/status", "clusterplacementpolicies"])
def test_an_admin_of_a_namespace_cannot_grant_more(tenants: Tenants, rule: str) -> None:
    """RBAC prevents escalation: an admin may create Roles, with rights that the admin has."""
    role = {
        "apiVersion": f"{api_user_kubeconfigs.RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "more", "namespace": tenants.namespace},
        "rules": [api_user_kubeconfigs.rule("get list create patch", rule, "nodewise.io")],
    }
    path = f"/apis/{api_user_kubeconfigs.RBAC}/v1/namespaces/{tenants.namespace}/roles"
    assert status_code(tenants.admin, "POST", path, role) == FORBIDDEN
