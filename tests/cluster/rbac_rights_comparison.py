"""Rights that RBAC grants and rights that requests needed, in a common form for comparison."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.audit_log_reader import AuditedRequest

ANY = "*"
NAMED_BY_USERS = frozenset(["custom.metrics.k8s.io"])
"""API groups with resource names that users choose, so that a rule cannot list them."""


class ApiRight(NamedTuple):
    """A verb on a resource; `resource` includes the subresource, as in an RBAC rule: `nodes/status`."""

    verb: str
    group: str
    resource: str
    name: str = ""
    """The name of the object; empty means all objects."""
    namespace: str = ""
    """The namespace; empty means the whole cluster."""


def granted(objects: Iterable[Object]) -> set[ApiRight]:
    """The rights that the Roles and ClusterRoles among these objects grant."""
    return {
        right
        for manifest in objects
        for rule in manifest.get("rules", ())
        for right in of_rule(rule, manifest["metadata"].get("namespace", ""))
    }


def of_rule(rule: Object, namespace: str = "") -> Iterator[ApiRight]:
    """The rights of one rule."""
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield ApiRight(verb, group, resource, name, namespace)


def needed(requests: Iterable[AuditedRequest]) -> set[ApiRight]:
    """The narrowest rights under which all of these requests are allowed.

    A right is limited to a name or a namespace if all its requests have this name or namespace.
    """
    places = defaultdict(set)
    for request in requests:
        resource = ANY if request.group in NAMED_BY_USERS else request.resource
        places[request.verb, request.group, resource].add((request.name, request.namespace))
    return {
        ApiRight(*what, _only(name for name, _ in where), _only(namespace for _, namespace in where))
        for what, where in places.items()
    }


def _only(values: Iterable[str]) -> str:
    """The only value; empty if there are several."""
    different = set(values)
    return different.pop() if len(different) == 1 else ""


def without(rules: Iterable[Object], right: ApiRight) -> list[Object]:
    """The rules of a role without one right."""
    kept: list[Object] = []
    for rule in rules:
        verbs = [verb for verb in rule["verbs"] if not _is(right, verb, rule)]
        kept += [rule | {"verbs": verbs}] if verbs else []
    return kept


def _is(right: ApiRight, verb: str, rule: Object) -> bool:
    about = (right.group in rule["apiGroups"], right.resource in rule["resources"])
    return all(about) and right.name in rule.get("resourceNames", [""]) and right.verb == verb


def holds(api: ClusterApi, user: str, right: ApiRight) -> bool:
    """Whether the API server currently grants a user this right."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    return bool(api.create(review)["status"]["allowed"])
