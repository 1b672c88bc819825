"""Waits until ValidatingAdmissionPolicies and webhooks are enforced, or no longer are.

The API server reads policies from a cache that it refreshes once a second. A new policy is not enforced at once, and a
deleted policy is enforced a moment longer, so the object does not show the effect. These functions wait for the effect
with dry-run requests, which the API server answers without storing anything.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from tests.cluster import child_processes, kubernetes_objects
from tests.cluster.api_client import MERGE, ApiError, ClusterApi, Object, folder_of, path_of
from tests.cluster.namespace_sandboxes import wait

DRY_RUN: Final = {"dryRun": "All"}
DENIED: Final = "ValidatingAdmissionPolicy"
"""The kind, which the message of every refusal by such a policy contains."""


def try_create(api: ClusterApi, obj: Object) -> None:
    """Creates an object as a dry run. Raises ApiError if the API server refuses it."""
    api.request("POST", folder_of(obj), json=obj, params=DRY_RUN)


def try_patch(api: ClusterApi, path: str, patch: Any, kind: str = MERGE) -> None:
    """Changes the object at a path as a dry run. Raises ApiError if the API server refuses it."""
    api.request("PATCH", path, json=patch, params=DRY_RUN, headers={"Content-Type": kind})


def is_denied(write: Callable[[], object]) -> bool:
    """Whether a ValidatingAdmissionPolicy refuses a write. Raises ApiError if it is refused for another reason."""
    try:
        write()
    except ApiError as error:
        if DENIED in str(error):
            return True
        raise
    return False


def wait_denied(write: Callable[[], object]) -> None:
    """Waits until a policy refuses a write. The write has to be a dry run."""
    wait("a policy refuses the write", lambda: is_denied(write) or None)


def wait_allowed(write: Callable[[], object]) -> None:
    """Waits until no policy refuses a write any more. The write has to be a dry run."""
    wait("no policy refuses the write", lambda: None if is_denied(write) else True)


def wait_enforced(admin: ClusterApi, account: ClusterApi, obj: Object) -> None:
    """Creates an object, waits until a policy refuses that an account adds a finalizer to it, and deletes it."""
    path = path_of(admin.create(obj))
    try:
        patch = {"metadata": {"finalizers": ["example.org/forbidden"]}}
        wait_denied(lambda: try_patch(account, path, patch))
    finally:
        admin.delete(path)


def wait_nodes(admin: ClusterApi, account: ClusterApi) -> None:
    """Waits until a policy limits what an account writes to Nodes."""
    wait_enforced(admin, account, kubernetes_objects.node("admission-is-enforced"))


def wait_pods(admin: ClusterApi, account: ClusterApi) -> None:
    """Waits until a policy limits what an account writes to Pods."""
    pod = kubernetes_objects.pod("admission-is-enforced")
    wait_enforced(admin, account, pod | {"metadata": {**pod["metadata"], "namespace": "default"}})


GROUP: Final = "admissionregistration.k8s.io/v1"
_PROBE: Final = "admission-probe"
_CONFIG_MAPS: Final = [
    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
]


def wait_settled(api: ClusterApi, deleted: Collection[str]) -> None:
    """Waits until the API server no longer enforces objects of these kinds (plurals) that have been deleted.

    The API server receives the changes of one kind in order. When it enforces an object that was created after the
    deletions, it no longer enforces the deleted objects.
    """
    for plural in deleted:
        if "polic" in plural:
            _wait_probe(api, _policy_probe)
        if "webhook" in plural:
            _wait_probe(api, _mutating_probe if plural.startswith("mutating") else _validating_probe)


def _wait_probe(api: ClusterApi, probe: Callable[[str, Object], list[Object]]) -> None:
    """Creates objects that refuse one ConfigMap, waits until they do, and deletes them."""
    name = f"{_PROBE}-{child_processes.number()}"  # the previous probe may still be enforced
    labels = {_PROBE: name}
    created = [api.create(obj) for obj in probe(name, {"matchLabels": labels})]
    metadata = {"name": name, "namespace": "default", "labels": labels}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}

    def refused() -> bool | None:
        try:
            try_create(api, config_map)
        except ApiError:
            return True
        return None

    try:
        wait("a new admission object is enforced", refused)
    finally:
        for obj in created:
            api.delete(path_of(obj))


def _policy_probe(name: str, selector: Object) -> list[Object]:
    constraints = {"resourceRules": _CONFIG_MAPS, "objectSelector": selector}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "validations": [{"expression": "false"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kind = "ValidatingAdmissionPolicy"
    return [_object(kind, name, spec=policy), _object(f"{kind}Binding", name, spec=binding)]


def _mutating_probe(name: str, selector: Object) -> list[Object]:
    return [_object("MutatingWebhookConfiguration", name, webhooks=[_webhook(selector)])]


def _validating_probe(name: str, selector: Object) -> list[Object]:
    return [_object("ValidatingWebhookConfiguration", name, webhooks=[_webhook(selector)])]


def _webhook(selector: Object) -> Object:
    """A webhook at a URL where no server listens, so that every matching request is refused."""
    return {
        "name": f"{_PROBE}.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1"},
        "rules": _CONFIG_MAPS,
        "objectSelector": selector,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }


def _object(kind: str, name: str, **content: Any) -> Object:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, **content}
