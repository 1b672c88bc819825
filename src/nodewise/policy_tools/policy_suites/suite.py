"""The model of a suite: what `suite_parser` reads, and `suite_run` runs. No I/O."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey
from nodewise.kube.object_files import DEFAULT_NAMESPACE, FileObject, FileObjects, Kind
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools.policy_suites.series_notation import Value

START: Final = 946_684_800.0
"""The time 0 of every test, in seconds since 1970: the year 2000. Time 0 itself means unknown to sources."""


class InputSeries(NamedTuple):
    """One series of a test."""

    labels: Mapping[str, str]
    """With the metric as `__name__`."""
    query: str
    """The expression of which the series is a result; empty for a series of a metric."""
    values: tuple[Value, ...]
    """One for each interval of the test."""


class ExpectedEvent(NamedTuple):
    """An event of a pod or of a policy."""

    about: str
    """`pod web/web-1` or `policy web/cool`."""
    reason: str
    message: str = ""
    """A part of the message."""

    def text(self) -> str:
        return f"{self.about}: {self.reason}" + (f": {self.message}" if self.message else "")


class Expectation(NamedTuple):
    """What is expected at one time. None: nothing about it."""

    line: int
    """In the suite."""
    eval_time_s: float
    """Since the beginning of the test."""
    pod: ObjectKey | None = None
    """The pod that is decided."""
    rejected: Mapping[str, str] | None = None
    """All nodes that do not take the pod, with the end of the reason; empty for any reason."""
    ranks: Mapping[str, int] | None = None
    """All nodes that take the pod and are ranked: 1 is the best, and equal scores have equal ranks."""
    labels: Mapping[str, Mapping[str, str]] | None = None
    """The node labels of all policies, by node; nodes without labels are left out."""
    suspended: frozenset[str] | None = None
    """All policies with a suspended rule, as `web/cool`."""
    events: tuple[ExpectedEvent, ...] | None = None
    """All events since the expectation before."""


class PolicyTest(NamedTuple):
    """One test."""

    name: str
    line: int
    interval_s: float
    """Between two values of a series."""
    nodes: tuple[str, ...]
    pods: Mapping[ObjectKey, Any]
    """As `policy_timeline.POD_TYPE`."""
    series: tuple[InputSeries, ...]
    expectations: tuple[Expectation, ...]
    """In the order of their times."""


class SuiteObject(NamedTuple):
    """A policy or a namespace of a suite, and its place."""

    kind: Kind
    entry: FileObject
    path: str = ""
    """The path of an object that is part of the suite, such as `policies[0]`; empty for an object of another file."""

    def policy_key(self) -> PolicyKey | None:
        """None for an object that is no policy."""
        metadata = {name: text for name, text in self._field("metadata").items() if isinstance(text, str)}
        for kind, resource in RESOURCES.items():
            if self.kind == (resource.group, resource.kind):
                namespace = metadata.get("namespace") or DEFAULT_NAMESPACE
                return PolicyKey(kind, namespace if resource.namespaced else "", metadata.get("name", ""))
        return None

    def spec(self) -> Mapping[str, Any]:
        """Empty if there is none."""
        return self._field("spec")

    def _field(self, name: str) -> Mapping[str, Any]:
        """A field that is an object; empty if it is anything else."""
        value = msgspec.json.decode(self.entry.data).get(name)
        return value if isinstance(value, dict) else {}


class Suite(NamedTuple):
    """A suite of tests for policies."""

    source: str
    """The path of its file."""
    objects: tuple[SuiteObject, ...]
    evaluation_interval_s: float
    tests: tuple[PolicyTest, ...]

    def policies(self) -> dict[PolicyKey, SuiteObject]:
        keys = ((item.policy_key(), item) for item in self.objects)
        return {key: item for key, item in keys if key is not None}

    def files(self, changed: Mapping[PolicyKey, Any] = {}) -> FileObjects:
        """All objects. `changed` are the specs of policies that differ from what is written."""
        entries: dict[Kind, list[FileObject]] = {}
        for item in self.objects:
            entry, key = item.entry, item.policy_key()
            if key is not None and key in changed:
                document = {**msgspec.json.decode(entry.data), "spec": changed[key]}
                entry = entry._replace(data=msgspec.json.encode(document))
            entries.setdefault(item.kind, []).append(entry)
        return FileObjects(entries)
