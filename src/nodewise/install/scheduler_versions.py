"""Versions of kube-scheduler, API versions of its configuration, and flags that have no effect beside `--config`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, BadSettings, Problem, shown

OLDEST: Final = 19
"""The oldest minor version whose configuration can be written."""
OLDEST_TESTED: Final = 34
NEWEST: Final = 37
"""The oldest and the newest minor version that the tests run on (tests/cluster/program_cache.py)."""
GROUP: Final = "kubescheduler.config.k8s.io"
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
        return f"{GROUP}/{_WRITTEN[first_minor]}"

    def untested_warnings(self, program: str = "kube-scheduler") -> list[str]:
        """A warning that names the program if the tests do not run on this version; otherwise none."""
        if self.minor > NEWEST:
            return [f"{program} {self} is newer than what was tried, 1.{NEWEST}"]
        if self.minor < OLDEST_TESTED:
            return [f"{program} {self} is older than what was tried, 1.{OLDEST_TESTED}"]
        return []

    def loads(self, api_version: str) -> bool:
        group, _, version = api_version.partition("/")
        return group == GROUP and self.minor in _LOADABLE.get(version, range(0))

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


WITHOUT_FIELD: Final = "pod-max-in-unschedulable-pods-duration"
"""A deprecated flag that kube-scheduler reads beside `--config` too, because no field has its value."""
_FIRST_WITH_LEADER_ELECTION_FLAGS: Final = 22
"""First minor version that reads the flags for leader election beside `--config`."""
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?")
_WHOLE_NUMBER: Final = re.compile(r"\+?(0|[1-9]\d{0,9})")
_MAX_BURST: Final = 2**31 - 1
_CLIENT_DEFAULTS: Final = {"qps": 5, "burst": 10, "contentType": "application/json"}
"""What Kubernetes' client uses for an empty value. In the configuration an empty value means kube-scheduler's own
default instead.
"""


class IgnoredFlag(NamedTuple):
    """A flag that loses its effect, and the field that has the same effect."""

    text: str
    """The flag as the manifest has it, such as `--profiling=false`."""
    path: tuple[str, ...]
    """The names of the field, from the outermost on; empty: no field has this effect."""
    value: Any

    @property
    def field(self) -> str:
        return ".".join(self.path)


def list_ignored_flags(container: Mapping[str, Any], minor: int) -> list[IgnoredFlag]:
    """The flags of kube-scheduler's container that this minor version does not read beside `--config`, without
    `--kubeconfig`, one for each field: the last one counts. `BadInput` for values that a field cannot have.
    """
    flags: dict[Any, IgnoredFlag] = {}
    problems = []
    reads_leader_election = minor >= _FIRST_WITH_LEADER_ELECTION_FLAGS
    for name, text, value in _command_line_flags(container):
        if name not in _FIELDS or (name.startswith("leader-elect") and reads_leader_election):
            continue
        path, parse = _FIELDS[name]
        try:
            parsed = parse(value)
        except ValueError as error:
            expected = f"{error}: --config needs it as {'.'.join(path)}"
            problems.append(Problem("command", shown(text), expected))
            continue
        if path[:1] == ("clientConnection",):
            parsed = parsed or _CLIENT_DEFAULTS[path[-1]]
        flags[path or name] = IgnoredFlag(text, path, parsed)
    if problems:
        raise BadInput("manifest", problems)
    return list(flags.values())


def flag_without_field(container: Mapping[str, Any]) -> str | None:
    """The flag with the value of `WITHOUT_FIELD`, as the manifest has it; None without it."""
    return next((text for name, text, _ in _command_line_flags(container) if name == WITHOUT_FIELD), None)


def get_field(configuration: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value of a field; None if it is missing."""
    value: Any = configuration
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def set_field(configuration: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a field. `BadInput` if an outer field is no map."""
    *outer, last = path
    place: Any = configuration
    for name in outer:
        if place.get(name) is None:
            place[name] = {}
        place = place[name]
        if not isinstance(place, dict):
            raise BadInput("configuration", [Problem(name, "no map", "a map")])
    place[last] = value


def _command_line_flags(container: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Name, text and value of each flag in the order of the command line; the value is None without one. Like
    kube-scheduler, reads `_` in a name as `-`.
    """
    for words in (container.get("command") or [], container.get("args") or []):
        for at, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            if not word.startswith("-"):
                continue
            if equals or name in _BOOLEAN_FLAGS:
                yield name, word, value if equals else None
            else:
                following = words[at + 1] if at + 1 < len(words) else None
                yield name, word if following is None else f"{word}={following}", following


def _parse_boolean(text: str | None) -> bool:
    if text is not None and text not in _TRUE | _FALSE:
        raise ValueError("true or false")
    return text not in _FALSE


def _parse_rate(text: str | None) -> float | int:
    if text is None or not _NUMBER.fullmatch(text):
        raise ValueError("a number")
    return int(float(text)) if float(text).is_integer() else float(text)


def _parse_burst(text: str | None) -> int:
    if text is None or not _WHOLE_NUMBER.fullmatch(text) or int(text) > _MAX_BURST:
        raise ValueError("a whole number from 0 on")
    return int(text)


def _parse_text(text: str | None) -> str:
    if text is None or "$(" in text:
        # the kubelet replaces variables in the command line, and nothing replaces them in the configuration
        raise ValueError("a value without variables")
    return text


_FIELDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[str | None], Any]]]] = {
    "profiling": (("enableProfiling",), _parse_boolean),
    "contention-profiling": (("enableContentionProfiling",), _parse_boolean),
    "kube-api-qps": (("clientConnection", "qps"), _parse_rate),
    "kube-api-burst": (("clientConnection", "burst"), _parse_burst),
    "kube-api-content-type": (("clientConnection", "contentType"), _parse_text),
    "lock-object-name": (("leaderElection", "resourceName"), _parse_text),
    "lock-object-namespace": (("leaderElection", "resourceNamespace"), _parse_text),
    "leader-elect": (("leaderElection", "leaderElect"), _parse_boolean),
    "leader-elect-lease-duration": (("leaderElection", "leaseDuration"), _parse_text),
    "leader-elect-renew-deadline": (("leaderElection", "renewDeadline"), _parse_text),
    "leader-elect-retry-period": (("leaderElection", "retryPeriod"), _parse_text),
    "leader-elect-resource-lock": (("leaderElection", "resourceLock"), _parse_text),
    "leader-elect-resource-name": (("leaderElection", "resourceName"), _parse_text),
    "leader-elect-resource-namespace": (("leaderElection", "resourceNamespace"), _parse_text),
    # up to 1.21, without a field of the whole configuration
    "algorithm-provider": ((), _parse_text),
    "hard-pod-affinity-symmetric-weight": ((), _parse_text),
    "scheduler-name": ((), _parse_text),
}
"""The field of each flag, and the function that parses its value. Newer versions do not start with those that they do
not know.
"""
_BOOLEAN_FLAGS: Final = frozenset({"profiling", "contention-profiling", "leader-elect"})
"""Flags whose value, if any, is in the same word."""
