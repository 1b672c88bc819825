"""Kinds of objects, their URL paths and selectors in the API server. Standard library only.

This module builds all paths of API calls; `escape_path` checks each segment.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote

from nodewise.base.errors import BadInput, Problem, shown

_SELECTABLE: Final = re.compile(r"[A-Za-z0-9._:-]*", re.ASCII)
"""Characters of names and label values; none of them is special in a selector."""


def escape_path(*segments: str) -> str:
    """The path of these segments, percent-encoded: `/a/b%3Fc`. BadInput for a segment that could name another path.

    Percent-encoding does not protect these: clients and servers remove `.` and `..` also where they are encoded (RFC
    3986, section 6.2.2), and the API server decodes `%2F` before it looks for slashes. client-go rejects the same
    names (`k8s.io/apimachinery/pkg/api/validation/path`).
    """
    for segment in segments:
        if segment in {"", ".", ".."} or "/" in segment or "%" in segment:
            expected = "a name that is not empty, . or .., and has no / and no %"
            raise BadInput("URL path", [Problem("segment", shown(segment), expected)])
    try:
        return "".join(f"/{quote(segment, safe='')}" for segment in segments)
    except UnicodeEncodeError as error:
        raise BadInput("URL path", [Problem("segment", shown(error.object), "text in UTF-8")]) from error


def selector(key: str, value: str) -> str:
    """A label or field selector of one requirement, `key=value`. BadInput for a value that could add another one."""
    if not _SELECTABLE.fullmatch(value):
        expected = "letters, digits, '-', '_', '.' and ':'"
        raise BadInput("selector", [Problem(key, shown(value), expected)])
    return f"{key}={value}"


class Resource(NamedTuple):
    """A kind of object; the core group is the empty string."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    older_versions: tuple[str, ...] = ()
    """Versions that reflectors and lists read, newest first, if the API server does not serve `version`."""

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects: `v1`, `coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str | None = None, subresource: str = "") -> str:
        """The path of the object. Without a name that of the collection, of all namespaces if `namespace` is empty.

        BadInput for a part that `escape_path` rejects: an empty name never means the collection.
        """
        root = ("apis", self.group, self.version) if self.group else ("api", self.version)
        if not self.namespaced or (not namespace and name is None):
            inside: tuple[str, ...] = ()
        else:
            inside = ("namespaces", namespace)
        single = () if name is None else (name, *filter(None, [subresource]))
        return escape_path(*root, *inside, self.plural, *single)


NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")

_BETA: Final = ("v1beta2", "v1beta1")
RESOURCE_SLICES: Final = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, older_versions=_BETA
)
RESOURCE_CLAIMS: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", older_versions=_BETA
)
RESOURCE_CLAIM_TEMPLATES: Final = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", older_versions=_BETA
)
DEVICE_CLASSES: Final = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, older_versions=_BETA
)
DEVICE_TAINT_RULES: Final = Resource(
    "resource.k8s.io",
    "v1",
    "devicetaintrules",
    "DeviceTaintRule",
    namespaced=False,
    older_versions=("v1beta2",),
)
"""v1 since Kubernetes 1.37, v1beta2 in 1.36."""
