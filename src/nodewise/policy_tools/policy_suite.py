"""The model of a suite of tests for policies, which `policy_suite_parser` reads and `policy_suite_run` runs. No I/O.

Series have the notation of Prometheus' unit tests: `temp{node="a"}` with the values `80+1x10 _ stale`. Source:
Prometheus 3 `promql/parser` (`series_description`), and the documentation of `promtool test rules`. Histograms are not
supported. Numbers are decimal, so that `0.1+0.1x3` ends with exactly 0.4.

The series answer requests for metrics like Prometheus as a source. A metric is a range query, so a node has the newest
sample that is not older than the maximum age of the request, or than 2.5 distances of samples, also if the series has
ended since. A query is evaluated at once, so a node has the sample of this interval or none.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import ObjectKey
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import shown
from nodewise.devices.resource_slices import ResourceSliceObject
from nodewise.kube.object_files import DEFAULT_NAMESPACE, FileObject, FileObjects, Kind
from nodewise.kube.resource_kinds import RESOURCE_SLICES
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import node_matching
from nodewise.metrics.prometheus.query_responses import NAN, SeriesValue
from nodewise.metrics.series import COUNTED, Series, newest_distance_s, pack_samples
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools.policy_timeline import Response

STALE: Final = "stale"
"""The series has ended."""
Value = str | None
"""A number as Prometheus writes it, `STALE`, or None for a time without a sample."""

MAX_VALUES: Final = 100_000
"""Of one series: 69 days with a value per minute."""

_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_SPECIAL: Final = r"[+-]?(?:[Ii]nf|[Nn]a[Nn])"
_ITEM: Final = re.compile(
    rf"(?:(?P<stale>stale)|(?P<gap>_)|(?P<special>{_SPECIAL})|(?P<number>{_NUMBER}))"
    rf"(?:(?P<step>[+-](?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{{1,3}})?)?x(?P<times>[0-9]{{1,7}}))?"
)
_EXPECTED: Final = "a number, a+bxn, a-bxn, axn, _, _xn or stale"
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(
    r"""\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*"""
)
_ESCAPE: Final = re.compile(r"\\(.)")


class NotationError(ValueError):
    """An unreadable part of a notation. The text says what was found, and `position` is its place, from 0."""

    def __init__(self, position: int, actual: str, expected: str) -> None:
        super().__init__(actual)
        self.position = position
        self.expected = expected


def parse_values(text: str) -> tuple[Value, ...]:
    """The values of a series, one for each interval. `NotationError` for anything else."""
    values: list[Value] = []
    for match in re.finditer(r"\S+", text):
        item = _ITEM.fullmatch(match[0])
        if item is None or ((item["stale"] or item["special"]) and item["times"]):
            raise NotationError(match.start(), shown(match[0]), _EXPECTED)
        if item["step"] and item["number"] is None:
            raise NotationError(match.start(), shown(match[0]), _EXPECTED)
        if len(values) + int(item["times"] or 0) >= MAX_VALUES:
            raise NotationError(match.start(), "more values", f"at most {MAX_VALUES} values")
        values += _expand(item)
    if not values:
        raise NotationError(0, "no value", _EXPECTED)
    return tuple(values)


def _expand(item: re.Match[str]) -> Iterator[Value]:
    """The values of one item. As in Prometheus, `axn` are n+1 values, and `_xn` are n gaps."""
    times = int(item["times"] or 0)
    if item["gap"]:
        yield from [None] * (times if item["times"] else 1)
    elif item["stale"]:
        yield STALE
    elif item["special"]:
        yield item["special"]
    else:
        number, step = Decimal(item["number"]), Decimal(item["step"] or 0)
        yield from (_number_text(number + step * count) for count in range(times + 1))


def _number_text(number: Decimal) -> str:
    """Without an exponent where that is short."""
    return f"{number:f}" if -20 < number.adjusted() < 20 else str(number)  # noqa: PLR2004 - digits


def parse_series(text: str) -> dict[str, str]:
    """The labels of a series, with its name as `__name__` if it has one. `NotationError` for anything else."""
    name = _METRIC.match(text)
    begin = name.end() if name else 0
    labels = {"__name__": name[0]} if name else {}
    rest = text[begin:].strip()
    if not rest and not name:
        raise NotationError(0, "nothing", 'a series such as temp{node="a"}')
    if rest:
        at = text.find(rest, begin)
        if not re.fullmatch(r"\{.*\}", rest, re.DOTALL):
            raise NotationError(at, shown(rest), 'labels such as {node="a"}')
        _parse_labels(text, at + 1, at + len(rest) - 1, labels)
    return labels


def format_series(labels: Mapping[str, str]) -> str:
    """The series with these labels, sorted; without empty labels, which Prometheus regards as absent."""
    rest = sorted((name, value) for name, value in labels.items() if name != "__name__" and value)
    texts = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in rest]
    return f"{labels.get('__name__', '')}{{{','.join(texts)}}}"


def _parse_labels(text: str, at: int, end: int, labels: dict[str, str]) -> None:
    """Add the labels in a part of a text."""
    while text[at:end].strip():
        match = _LABEL.match(text, at, end)
        if match is None:
            raise NotationError(at, shown(text[at:end]), 'a label such as node="a"')
        if match["name"] in labels:
            raise NotationError(match.start("name"), f"{match['name']} twice", "each label once")
        labels[match["name"]] = _ESCAPE.sub(r"\1", match["value"][1:-1])
        at = match.end()
        if at < end and text[at] != ",":
            raise NotationError(at, shown(text[at:end]), "a comma or }")
        at += 1


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
    tainted: Mapping[str, str] | None = None
    """All tainted devices, as `DRIVER/POOL/DEVICE`, with the effect."""
    suspended: frozenset[str] | None = None
    """All policies with a suspended rule, as `web/cool`."""
    events: tuple[ExpectedEvent, ...] | None = None
    """All events since the expectation before."""


class PolicyTest(NamedTuple):
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
    """A policy, a namespace or a ResourceSlice of a suite, and its place."""

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

    def slices(self) -> list[ResourceSliceObject]:
        """The ResourceSlices. `BadInput` for one that cannot be read."""
        return self.files().of(RESOURCE_SLICES, ResourceSliceObject)

    def devices(self) -> frozenset[str]:
        """The devices of the ResourceSlices, as `DRIVER/POOL/DEVICE`. Errors as in `slices`."""
        return frozenset(
            f"{item.spec.driver}/{item.spec.pool.name}/{device.name}"
            for item in self.slices()
            for device in item.spec.devices or ()
        )

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


LABELS: Final = node_matching.series_labels()
"""The labels that name the node of a series."""
_LOOKBACK_S: Final = 300.0  # Prometheus ends a series that has had no sample for this time
_SOURCE: Final = "suite"


class InputSeriesSource:
    """The series of a test."""

    def __init__(self, test: PolicyTest) -> None:
        self._series = test.series
        self._interval_s = test.interval_s
        self._nodes = NodeAttributes({}, {name: name for name in test.nodes})

    def respond(self, requests: Mapping[str, MetricRequest], at_s: float) -> dict[str, Response]:
        """The response to each request, by key, at a time since the beginning of the test."""
        return {key: self._respond(request, at_s) for key, request in requests.items()}

    def _respond(self, request: MetricRequest, at_s: float) -> Response:
        run = cooperative_scheduling.run_without_pauses
        own = [series for series in self._series if _answers(series, request)]
        values = list(self._values(own, request, at_s))
        grouped = run(node_matching.group_by_node(values, LABELS, self._nodes, request.max_age_s))
        if request.device_label:
            grouped = run(node_matching.group_by_device(grouped, request.device_label, LABELS))
        if not grouped.by_node and not request.empty_is_healthy:
            return "no series of the test has a value"
        current = None
        if run(node_matching.depends_on_ended_series(grouped, request.aggregate)):
            active = [series for series in own if self._is_active(series, at_s)]
            current_series = (SeriesValue(series.labels, "", None) for series in active)
            current = frozenset(
                node_matching.series_identity(item, LABELS.replica) for item in current_series
            )
        node_values = run(node_matching.reduce(grouped, request.aggregate, LABELS, current))
        samples = run(pack_samples(node_values.samples))
        invalid, differing = node_values.invalid, node_values.differing
        return Series(
            request.key,
            _SOURCE,
            START + at_s,
            samples,
            invalid,
            differing,
            sample_distance_s=grouped.distance_s,
            is_distance_measured=grouped.distance_s is not None,
        )

    def _values(
        self, own: Sequence[InputSeries], request: MetricRequest, at_s: float
    ) -> Iterator[SeriesValue]:
        """The newest value of each series that the query returns."""
        for series in own:
            last = int(at_s // self._interval_s)
            if request.query:
                value = series.values[last] if last < len(series.values) else None
                if value is not None and value != STALE:
                    yield SeriesValue(series.labels, value, None)
                continue
            lookback_s = max(request.max_age_s, request.lookback_s)
            samples = list(self._samples(series, last, at_s - lookback_s))
            times = [at for at, _ in samples[:COUNTED]]
            distance_s = newest_distance_s(times)
            number = next((sample for sample in samples if sample[1] != NAN), None)
            if number is not None:
                has_ended = number is not samples[0]
                yield SeriesValue(series.labels, number[1], number[0], has_ended, distance_s)
            elif samples:
                yield SeriesValue(series.labels, NAN, samples[0][0], distance_s=distance_s)

    def _samples(self, series: InputSeries, last: int, since_s: float) -> Iterator[tuple[float, str]]:
        """Time and value of each sample since a time of the test, newest first."""
        for number in range(min(last, len(series.values) - 1), -1, -1):
            if number * self._interval_s < since_s:
                return
            value = series.values[number]
            if value is not None and value != STALE:
                yield START + number * self._interval_s, value

    def _is_active(self, series: InputSeries, at_s: float) -> bool:
        """Whether Prometheus does not regard the series as ended: its newest sample is no older than the lookback."""
        for number in range(min(int(at_s // self._interval_s), len(series.values) - 1), -1, -1):
            if series.values[number] is not None:
                is_recent = at_s - number * self._interval_s <= _LOOKBACK_S
                return is_recent and series.values[number] != STALE
        return False


def _answers(series: InputSeries, request: MetricRequest) -> bool:
    """Whether a series is a result of the request."""
    if request.query or series.query:
        return series.query == request.query
    return series.labels.get("__name__") == request.metric
