"""The API server for the CPU manager: the interface of its clients, and the features of its versions.

Clients have blocking calls, with JSON as Python values.

Sources: CMK's branches by version, and the releases in which Kubernetes added and removed the API groups used here.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from nodewise.base.errors import BadInput, Refused, shown
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES, OPAQUE

if TYPE_CHECKING:  # `isolate` imports this module, and starts faster without the other
    from nodewise.kube.api_server_interface import Patch

NO_PARAMS: Final[Mapping[str, str]] = {}
Object = Mapping[str, Any]


class ApiClient(Protocol):
    """One API server, as one user. A path is escaped (`kube.resource_kinds.Resource.path`).

    Every method raises kinds of `NodewiseError` and nothing else: `NotFound` (404),
    `Conflict` (409), `Refused` (another 4xx), `Unavailable` (429, 5xx, no answer).
    """

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any: ...

    def create(self, path: str, body: Object) -> Any: ...

    def replace(self, path: str, body: Object) -> Any: ...

    def patch(self, path: str, body: Any, kind: "Patch", params: Mapping[str, str] = NO_PARAMS) -> Any: ...

    def delete(self, path: str, body: Object | None = None) -> Any: ...


Version = tuple[int, ...]
"""`(1, 36, 3)`, without zeros at the end: 1.8 and 1.8.0 are the same."""

_VERSION: Final = re.compile(r"\s*v?(\d{1,9}(?:\.\d{1,9})*).*", re.ASCII | re.DOTALL)


class ApiFeatures(NamedTuple):
    """The forms that an API server understands."""

    since: Version
    resources: Mapping[str, str]
    """The name of each of our resources on nodes. Without any, the version is not supported."""
    taints: Literal["annotation", "spec"]
    init_containers: Literal["annotation", "spec"]
    reports: Literal["third-party", "v1beta1", "v1"]
    """Third-party resources, or the version of custom resource definitions."""
    daemon_sets: Literal["extensions/v1beta1", "apps/v1"]
    webhooks: Literal["none", "v1beta1", "v1"]
    """The version of `admissionregistration.k8s.io` if it has mutating webhooks."""
    app_armor: Literal["annotation", "field"] = "annotation"


_EXTENDED: Final = {name: name for name in (EXCLUSIVE_CORES, NON_ISOLCPUS_CORES)}

TABLE: Final = (
    ApiFeatures((), OPAQUE, "annotation", "annotation", "third-party", "extensions/v1beta1", "none"),
    ApiFeatures((1, 7), OPAQUE, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    # resources of neither kind can be patched at this version
    ApiFeatures((1, 8), {}, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    ApiFeatures((1, 8, 1), _EXTENDED, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    ApiFeatures((1, 9), _EXTENDED, "spec", "spec", "v1beta1", "apps/v1", "v1beta1"),
    ApiFeatures((1, 16), _EXTENDED, "spec", "spec", "v1", "apps/v1", "v1"),
    ApiFeatures((1, 30), _EXTENDED, "spec", "spec", "v1", "apps/v1", "v1", "field"),
)


def parse_kubernetes_version(text: object) -> Version:
    """Parse a version: `v1.12.0-alpha.0+c9e1-dirty` is 1.12. BadInput without leading numbers."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise BadInput.of("cannot read the API server's version", "gitVersion", shown(text), "v1.36.3")
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def features_of_kubernetes_version(version: Version) -> ApiFeatures:
    """The last row that is not newer than the version."""
    return next(row for row in reversed(TABLE) if row.since <= version)


def fetch_features(api: ApiClient) -> ApiFeatures:
    """The features of the API server that responds."""
    answer = api.get("/version")
    return features_of_kubernetes_version(
        parse_kubernetes_version(answer.get("gitVersion") if isinstance(answer, Mapping) else answer)
    )


def check_resource_support(features: ApiFeatures) -> None:
    """Refused if nodes cannot advertise cores at this API server."""
    if not features.resources:
        raise Refused.of(
            "cannot advertise cores: this version takes neither kind of resource",
            "API server",
            "Kubernetes 1.8.0",
            "1.8.1 or later, or 1.7",
        )
