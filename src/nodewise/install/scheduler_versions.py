"""Versions of kube-scheduler, and the API versions of its configuration."""

import re
from typing import Final, NamedTuple

from nodewise.base.errors import BadInput, BadSettings, Problem, shown

OLDEST: Final = 19
"""The oldest minor version whose configuration can be written."""
OLDEST_TESTED: Final = 34
NEWEST: Final = 37
"""The oldest and the newest minor version that the tests run on (tests/cluster/program_cache.py)."""
_GROUP: Final = "kubescheduler.config.k8s.io"
_VERSION: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?![0-9a-zA-Z])")
_LOADABLE: Final = {
    "v1beta1": range(19, 23),
    "v1beta2": range(22, 28),
    "v1beta3": range(23, 29),
    "v1": range(25, 10**9),
}
"""The minor versions that load an API version."""
_WRITTEN: Final = {19: "v1beta1", 22: "v1beta2", 25: "v1"}
"""The API version to write, by the first minor version that it is used for."""


class SchedulerVersion(NamedTuple):
    """A version of kube-scheduler, 1.minor."""

    minor: int

    @property
    def api_version(self) -> str:
        """The API version of the configuration to write."""
        first_minor = max(first for first in _WRITTEN if first <= self.minor)
        return f"{_GROUP}/{_WRITTEN[first_minor]}"

    def untested_warnings(self, program: str = "kube-scheduler") -> list[str]:
        """A warning that names the program if the tests do not run on this version; otherwise none."""
        if self.minor > NEWEST:
            return [f"{program} {self} is newer than what was tried, 1.{NEWEST}"]
        if self.minor < OLDEST_TESTED:
            return [f"{program} {self} is older than what was tried, 1.{OLDEST_TESTED}"]
        return []

    def loads(self, api_version: str) -> bool:
        group, _, version = api_version.partition("/")
        return group == _GROUP and self.minor in _LOADABLE.get(version, range(0))

    def __str__(self) -> str:
        return f"1.{self.minor}"


def parse_image_version(image: str) -> SchedulerVersion:
    """The version in the tag of an image. `BadInput` names `--kubernetes-version` if the tag has no version of
    Kubernetes: forks of kube-scheduler have tags of their own.
    """
    name = image.partition("@")[0]
    last = name.rpartition("/")[2]
    _, colon, tag = last.partition(":")
    match = _VERSION.match(tag) if colon else None
    if match is None:
        remedy = "say it with --kubernetes-version"
        raise BadInput(f"not found error: version not found from imageName: {image}", remedy=remedy)
    major, minor = int(match[1]), int(match[2])
    remedy = "if the tag is not the version of Kubernetes, say that with --kubernetes-version"
    if major == 0 and minor >= OLDEST:
        # libraries of Kubernetes 1.N, and programs that are built with them, have the version 0.N
        remedy = f"releases 0.{minor} of Kubernetes' libraries and of scheduler-plugins are for Kubernetes 1.{minor}: "
        remedy += f"if this image is one of them, say it with --kubernetes-version 1.{minor}"
    return _check_supported_version(major, minor, f"image {image}", remedy)


def parse_version(text: str) -> SchedulerVersion:
    """The version in a setting. `BadSettings` if it is invalid."""
    match = re.fullmatch(r"v?(\d{1,9})\.(\d{1,9})(?:\.\d.*)?", text)
    if match is None:
        raise BadSettings(
            "settings", [Problem("--kubernetes-version", repr(text), "such as 1.30 or v1.30.2")]
        )
    remedy = f"such as 1.{NEWEST}, the minor version of the cluster"
    return _check_supported_version(int(match[1]), int(match[2]), "--kubernetes-version", remedy)


def parse_cluster_version(text: str) -> SchedulerVersion:
    """The version that an API server states as `gitVersion`, such as `v1.33.5-eks-113cf36` or `v1.36.0+k3s1`.
    `BadInput` if it is invalid, or not a version of Kubernetes 1.
    """
    match = _VERSION.match(text)
    if match is None or match[1] != "1":
        raise BadInput("/version of the API server", [Problem("gitVersion", shown(text), "such as v1.36.3")])
    return SchedulerVersion(int(match[2]))


def _check_supported_version(major: int, minor: int, where: str, remedy: str) -> SchedulerVersion:
    if major != 1:
        text = f"not supported error: {where}: unsupported major version {major}; expected 1"
        raise BadInput(text, remedy=remedy)
    if minor < OLDEST:
        text = f"not supported error: {where}: k8s version older than 1.{OLDEST} isn't supported"
        raise BadInput(text, remedy=remedy)
    return SchedulerVersion(minor)
