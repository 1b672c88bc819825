"""What an API server of a certain version understands: one row for each version that changed something for us.

Source: the older CPU manager's branches by version, and the releases in which Kubernetes brought and dropped the
groups of its own kinds.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from nodewise.cpu.api_client import ApiClient
from nodewise.cpu.cmk_names import EXCLUSIVE_CORES, NON_ISOLCPUS_CORES, OPAQUE
from nodewise.errors import BadInput, Problem, Refused, shown

Version = tuple[int, ...]
"""`(1, 36, 3)`, without zeros at the end: 1.8 and 1.8.0 are the same."""

_VERSION: Final = re.compile(r"\s*v?(\d{1,9}(?:\.\d{1,9})*).*", re.ASCII | re.DOTALL)


class ApiFeatures(NamedTuple):
    """How things are said to an API server."""

    since: Version
    resources: Mapping[str, str]
    """By what name a node advertises each of our resources; without any the version cannot be used."""
    taints: Literal["annotation", "spec"]
    init_containers: Literal["annotation", "spec"]
    reports: Literal["third-party", "v1beta1", "v1"]
    """Third-party resources, or custom resource definitions of that version."""
    daemon_sets: Literal["extensions/v1beta1", "apps/v1"]
    webhooks: Literal["none", "v1beta1", "v1"]
    """The version of `admissionregistration.k8s.io`, where it has mutating webhooks."""
    app_armor: Literal["annotation", "field"] = "annotation"


_EXTENDED: Final = {name: name for name in (EXCLUSIVE_CORES, NON_ISOLCPUS_CORES)}

TABLE: Final = (
    ApiFeatures((), OPAQUE, "annotation", "annotation", "third-party", "extensions/v1beta1", "none"),
    ApiFeatures((1, 7), OPAQUE, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    # neither kind of resource can be patched here
    ApiFeatures((1, 8), {}, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    ApiFeatures((1, 8, 1), _EXTENDED, "spec", "spec", "v1beta1", "extensions/v1beta1", "none"),
    ApiFeatures((1, 9), _EXTENDED, "spec", "spec", "v1beta1", "apps/v1", "v1beta1"),
    ApiFeatures((1, 16), _EXTENDED, "spec", "spec", "v1", "apps/v1", "v1"),
    ApiFeatures((1, 30), _EXTENDED, "spec", "spec", "v1", "apps/v1", "v1", "field"),
)


def parse(text: object) -> Version:
    """`v1.12.0-alpha.0+c9e1-dirty` is 1.12: what follows the numbers does not count. BadInput for what has none."""
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise BadInput(
            "cannot read the API server's version", [Problem("gitVersion", shown(text), "v1.36.3")]
        )
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def features_of(version: Version) -> ApiFeatures:
    """The last row that is not newer."""
    return next(row for row in reversed(TABLE) if row.since <= version)


def fetch(api: ApiClient) -> ApiFeatures:
    """What the API server that answers understands."""
    answer = api.get("/version")
    return features_of(parse(answer.get("gitVersion") if isinstance(answer, Mapping) else answer))


def check(features: ApiFeatures) -> None:
    """Refused if no node can advertise cores there."""
    if not features.resources:
        problem = Problem("API server", "Kubernetes 1.8.0", "1.8.1 or later, or 1.7")
        raise Refused("cannot advertise cores: this version takes neither kind of resource", [problem])
