"""Removes all objects from an API server that did not exist when the control plane had started.

The kinds come from the discovery API, so that none is missed: nodes, namespaces and all objects in them, custom
resource definitions, admission policies, webhooks, aggregated APIs, RBAC, priority classes.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from tests.cluster import admission_policy_waits
from tests.cluster.api_client import ApiError, ClusterApi, Object
from tests.cluster.namespace_sandboxes import wait

DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
METADATA: Final = "application/json;g=meta.k8s.io;v=v1;as=PartialObjectMetadataList"
ROUNDS: Final = 20
"""Maximum number of attempts. Objects may delay the deletion of others, such as custom resources that of their
definition.
"""

ADMISSION: Final = "admissionregistration.k8s.io"
AGGREGATED: Final = "apiregistration.k8s.io"
FIRST: Final = (ADMISSION, AGGREGATED)
"""API groups whose objects are deleted first: they may refuse the deletion of others, or make list requests fail."""

STARTED: Final = (
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/kube-node-lease",
    "/api/v1/namespaces/kube-public",
    "/api/v1/namespaces/kube-system",
    "/api/v1/namespaces/default/services/kubernetes",
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
)
"""Objects that the API server creates after it has become ready."""

IDENTITY: Final = "apiserver.kubernetes.io/identity"
"""The label of the Lease that the API server renews for itself."""

TOO_MANY_REQUESTS: Final = 429

AUTOMANAGED: Final = "kube-aggregator.kubernetes.io/automanaged"
"""The label of APIServices that the API server adds and removes with its own API groups."""


class ResourceKind(NamedTuple):
    """A kind of objects that can be listed and deleted."""

    group: str
    version: str
    plural: str
    namespaced: bool

    @property
    def folder(self) -> str:
        """The path of the objects of this kind in all namespaces."""
        return f"/apis/{self.group}/{self.version}/{self.plural}" if self.group else f"/api/v1/{self.plural}"

    def path(self, metadata: Mapping[str, Any]) -> str:
        """The path of one object."""
        if not self.namespaced:
            return f"{self.folder}/{metadata['name']}"
        root = self.folder.removesuffix(self.plural)
        return f"{root}namespaces/{metadata['namespace']}/{self.plural}/{metadata['name']}"


class Baseline:
    """The objects of a control plane that has just started."""

    def __init__(self, api: ClusterApi) -> None:
        for path in STARTED:
            wait(f"{path} is there", functools.partial(api.find, path))
        self._api = api
        self._paths = frozenset(path for _, path, _ in self._objects(self._kinds()))

    def restore(self) -> None:
        """Deletes all other objects, and returns when they are gone and admission no longer applies them."""
        kinds = self._kinds()
        self._delete_admission([kind for kind in kinds if kind.group in FIRST])
        left: list[str] = []
        for _ in range(ROUNDS):
            left = [self._delete(kind, path, metadata) for kind, path, metadata in self._added(self._kinds())]
            if not left:
                return
        raise AssertionError(f"not deleted after {ROUNDS} attempts: {', '.join(left[:10])}")

    def _delete_admission(self, kinds: list[ResourceKind]) -> None:
        deleted = set()
        for kind, path, _ in self._added(kinds):
            self._api.delete(path)
            deleted.add(kind.plural)
        admission_policy_waits.wait_settled(self._api, deleted)

    def _added(self, kinds: list[ResourceKind]) -> list[tuple[ResourceKind, str, Mapping[str, Any]]]:
        return [entry for entry in self._objects(kinds) if entry[1] not in self._paths]

    def _objects(self, kinds: list[ResourceKind]) -> Iterable[tuple[ResourceKind, str, Mapping[str, Any]]]:
        """Kind, path and metadata of every object, except objects that the API server maintains by itself."""
        for kind in kinds:
            for metadata in _metadata(self._api, kind):
                if not {IDENTITY, AUTOMANAGED} & metadata.get("labels", {}).keys():
                    yield kind, kind.path(metadata), metadata

    def _kinds(self) -> list[ResourceKind]:
        """Kinds that can be listed and deleted, in the preferred version of each API group; namespaces come last."""
        kinds = []
        for root in ("/api", "/apis"):
            groups = self._api.request("GET", root, headers={"Accept": DISCOVERY}).json()["items"]
            for group in groups:
                kinds += _kinds_of(group)
        return sorted(kinds, key=lambda kind: (kind.group not in FIRST, kind.plural == "namespaces"))

    def _delete(self, kind: ResourceKind, path: str, metadata: Mapping[str, Any]) -> str:
        """Deletes an object and its finalizers, and returns the path."""
        if metadata.get("finalizers") and kind.plural != "customresourcedefinitions":
            _unless_gone(lambda: self._api.patch(path, {"metadata": {"finalizers": None}}))
        self._api.delete(path)
        if kind.plural == "namespaces":  # the namespace controller, which finalizes it, may not run
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": metadata["name"]}}
            _unless_gone(lambda: self._api.request("PUT", f"{path}/finalize", json=body))
        return path


def _kinds_of(group: Object) -> list[ResourceKind]:
    if not group.get("versions"):
        return []
    version = group["versions"][0]  # the preferred version
    name = group["metadata"].get("name", "")
    return [
        ResourceKind(name, version["version"], kind["resource"], kind["scope"] == "Namespaced")
        for kind in version.get("resources", ())
        if {"list", "delete"} <= set(kind["verbs"])
    ]


def _metadata(api: ClusterApi, kind: ResourceKind) -> list[Any]:
    """The metadata of all objects of a kind; empty if the kind has just been deleted."""

    def read() -> list[Any] | None:
        try:
            answer = api.request("GET", kind.folder, headers={"Accept": METADATA})
        except ApiError as error:
            if error.code in {404, 405, 503}:
                return []
            if error.code == TOO_MANY_REQUESTS:  # the cache of a custom resource is not initialized yet
                return None
            raise
        return [item["metadata"] for item in answer.json()["items"] or ()]

    return wait(f"{kind.plural} can be listed", read)


def _unless_gone(write: Callable[[], object]) -> None:
    try:
        write()
    except ApiError as error:
        if error.code not in {404, 409}:
            raise
