"""Waiting for ValidatingAdmissionPolicies.

The API server reads policies from a cache that it refreshes once a second. A policy that was created is not enforced at
once, and one that was deleted is enforced a moment longer, so the object says nothing about the effect. These functions
wait for the effect, by requests that the API server answers without storing anything.
"""

from collections.abc import Callable
from typing import Any, Final

from tests.cluster import objects
from tests.cluster.api import MERGE, Api, ApiError, Object, folder_of, path_of
from tests.cluster.sandbox import wait

DRY_RUN: Final = {"dryRun": "All"}
DENIED: Final = "ValidatingAdmissionPolicy"
"""Every refusal by such a policy names the kind."""


def try_create(api: Api, obj: Object) -> None:
    """Creates an object as a dry run. Raises ApiError if the API server refuses it."""
    api.request("POST", folder_of(obj), json=obj, params=DRY_RUN)


def try_patch(api: Api, path: str, patch: Any, kind: str = MERGE) -> None:
    """Changes the object at a path as a dry run. Raises ApiError if the API server refuses it."""
    api.request("PATCH", path, json=patch, params=DRY_RUN, headers={"Content-Type": kind})


def is_denied(write: Callable[[], object]) -> bool:
    """Whether a ValidatingAdmissionPolicy refuses a write; ApiError if it is refused for another reason."""
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


def wait_enforced(admin: Api, account: Api, obj: Object) -> None:
    """Waits until a policy refuses an account a finalizer of an object, which is made for that and deleted."""
    path = path_of(admin.create(obj))
    try:
        patch = {"metadata": {"finalizers": ["example.org/forbidden"]}}
        wait_denied(lambda: try_patch(account, path, patch))
    finally:
        admin.delete(path)


def wait_nodes(admin: Api, account: Api) -> None:
    """Waits until a policy limits what an account writes to Nodes."""
    wait_enforced(admin, account, objects.node("admission-is-enforced"))


def wait_pods(admin: Api, account: Api) -> None:
    """Waits until a policy limits what an account writes to Pods."""
    pod = objects.pod("admission-is-enforced")
    wait_enforced(admin, account, pod | {"metadata": {**pod["metadata"], "namespace": "default"}})
