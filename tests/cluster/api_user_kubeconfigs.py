"""Users of the API server: kubeconfigs with a client certificate or a token, and RBAC rules."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.certificates import CertificateAuthority, CertificatePair

RBAC = "rbac.authorization.k8s.io"

ADMIN_GROUP = "system:masters"
"""The group that may do everything, independent of RBAC rules."""


def rule(verbs: str, resources: str, group: str = "") -> Object:
    """An RBAC rule from space-separated verbs and resources: `rule("get list", "nodes pods")`."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


class ApiServerAccess(NamedTuple):
    """What a client needs to reach an API server. `folder` receives the kubeconfig files."""

    url: str
    authority: CertificateAuthority
    folder: Path

    def user(self, name: str, group: str = "") -> "User":
        """A user with a client certificate. Rights are granted separately (`grant`)."""
        return User(self, name, pair=self.authority.issue(name, group=group))

    def bearer(self, name: str, token: str) -> "User":
        """A user with a bearer token."""
        return User(self, name, token=token)


class User:
    """A user of the API server with credentials: a kubeconfig file for programs and a ClusterApi for tests."""

    def __init__(
        self, server: ApiServerAccess, name: str, pair: CertificatePair | None = None, token: str = ""
    ) -> None:
        self.name = name
        self.pair = pair
        self.token = token
        self.kubeconfig = server.folder / f"{name.replace(':', '-')}.kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._config(server), indent=1))
        self.kubeconfig.chmod(0o600)
        self.api = ClusterApi(server.url, server.authority.client_context(pair), token)

    def _config(self, server: ApiServerAccess) -> Object:
        cluster = {"server": server.url, "certificate-authority": str(server.authority.ca_file)}
        user = {"token": self.token} if self.token else {}
        if self.pair:
            user = {"client-certificate": str(self.pair.cert), "client-key": str(self.pair.key)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": self.name, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": self.name}}],
            "current-context": "test",
        }


def grant(api: ClusterApi, user: str, rules: Sequence[Object], namespace: str = "") -> None:
    """Grants a user the rights of these rules in one namespace, or in the cluster if no namespace is given.

    A service account's user name is `system:serviceaccount:<namespace>:<name>`.
    """
    name = f"test-{user.replace(':', '-')}"
    metadata = _metadata(name, namespace)
    api.create(
        {"apiVersion": f"{RBAC}/v1", "kind": _kind(namespace), "metadata": metadata, "rules": list(rules)}
    )
    bind(api, user, name, namespace)


def bind(api: ClusterApi, user: str, role: str, namespace: str = "") -> None:
    """Binds an existing role to a user: a Role of the namespace, or a ClusterRole if no namespace is given."""
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{_kind(namespace)}Binding",
        "metadata": _metadata(f"{role}-{user.replace(':', '-')}", namespace),
        "roleRef": {"apiGroup": RBAC, "kind": _kind(namespace), "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    api.create(binding)


def bind_cluster_role(api: ClusterApi, user: str, role: str, namespace: str) -> None:
    """Grants a user the rights of a ClusterRole in one namespace."""
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(f"{role}-{user.replace(':', '-')}", namespace),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    api.create(binding)


def _kind(namespace: str) -> str:
    return "Role" if namespace else "ClusterRole"


def _metadata(name: str, namespace: str) -> Object:
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def service_account_token(
    api: ClusterApi, name: str, namespace: str, lifetime_s: int = 3600, pod: Object | None = None
) -> str:
    """A token of a service account, which is created if it does not exist; `lifetime_s` is at least 600.

    If a pod is given, the token is bound to it, as is a token that a kubelet mounts.
    """
    account: Object = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
    }
    api.ensure(account)
    spec: Object = {"expirationSeconds": lifetime_s}
    if pod:
        about = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **about}
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(api.request("POST", path, json=wanted).json()["status"]["token"])
