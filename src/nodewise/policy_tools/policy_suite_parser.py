"""Parses a suite, and collects all of its problems, each with file, line and field.

Unknown fields are problems, as are references to policies, metrics, nodes and pods that do not exist.
"""

import os.path
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from nodewise.agent import ObjectKey
from nodewise.base import clock, safe_yaml_loader
from nodewise.base.errors import BadInput, NodewiseError, Problem, did_you_mean, shown
from nodewise.kube import object_files
from nodewise.kube.object_files import DEFAULT_NAMESPACE, FileObject, ObjectLocation
from nodewise.kube.resource_kinds import RESOURCE_SLICES
from nodewise.policies.placement_policy import Policy
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools import policy_suite, policy_timeline
from nodewise.policy_tools.policy_suite import (
    LABELS,
    Expectation,
    ExpectedEvent,
    InputSeries,
    NotationError,
    PolicyTest,
    Suite,
    SuiteObject,
    Value,
)

T = TypeVar("T")

_KINDS: Final = (
    *((resource.group, resource.kind) for resource in RESOURCES.values()),
    ("", "Namespace"),
    (RESOURCE_SLICES.group, RESOURCE_SLICES.kind),
)
_SUITE_FIELDS: Final = ("policy_files", "policies", "evaluation_interval", "tests")
_TEST_FIELDS: Final = ("name", "interval", "nodes", "pods", "input_series", "expect")
_POD_FIELDS: Final = ("name", "namespace", "labels")
_SERIES_FIELDS: Final = ("series", "query", "values")
_EXPECTED_STATES: Final = ("rejected", "ranks", "labels", "tainted", "suspended", "events")
_EXPECTATION_FIELDS: Final = ("eval_time", "pod", *_EXPECTED_STATES)
_EFFECTS: Final = ("NoSchedule", "NoExecute")
_EVENT_FIELDS: Final = ("pod", "policy", "reason", "message")

_DEFAULT_INTERVAL_S: Final = 60.0
_MAX_DURATION_S: Final = 3650 * 86400.0  # so that every time of a test is a valid date
_MAX_LISTED: Final = 10  # valid names in one message
_MAX_EVALUATIONS: Final = 20_000  # evaluations of one test: two weeks with one per minute
_MAX_SUITE_EVALUATIONS: Final = 200_000  # evaluations of all tests of a suite: some two minutes
_MAX_SUITE_VALUES: Final = 1_000_000  # values of all series of a suite: some 70 MB
_MAX_FILE_BYTES: Final = 16 * 2**20  # of a suite, or of a file that it names


def read_suite(path: str) -> Suite:
    """The suite of a file. `BadInput` has all problems, each with its place in `field`."""
    text = _read_text(path)
    try:
        documents = safe_yaml_loader.compose_all(text, path)
        values = [msgspec.json.decode(data) for _, data in object_files.split_documents(text, path)]
    except BadInput as error:
        # of several suites, the field has to name the file
        problems = (problem._replace(field=f"{path}, {problem.field}") for problem in error.problems)
        raise BadInput("policy test", problems) from error
    if values and isinstance(values[0], dict) and "apiVersion" in values[0]:
        kind = shown(values[0].get("kind"))
        expected = "a suite with the tests of policies; nodewise policy lint checks a policy"
        raise BadInput("policy test", [Problem(path, f"an object of kind {kind}", expected)])
    if len(values) != 1 or len(documents) != 1:
        raise BadInput("policy test", [Problem(path, f"{len(values)} documents", "one with a suite")])
    parser = _SuiteParser(path, documents[0])
    suite = parser.parse(values[0])
    if parser.problems:
        raise BadInput("policy test", parser.problems)
    return suite


def _read_text(path: str) -> bytes:
    """The text of a suite, which may come from a pipe."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput("policy test", [Problem(path, reason, "a file that can be read")]) from error
    if len(text) > _MAX_FILE_BYTES:
        size = f"more than {_MAX_FILE_BYTES} bytes"
        raise BadInput("policy test", [Problem(path, size, "a suite of at most so many")])
    return text


def find_file_problem(path: str | Path) -> str:
    """Why a file that a folder or a suite names is not read: a pipe or a device may never end. Empty for a file."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    if stat.S_ISREG(status.st_mode):
        size = status.st_size
        return f"{size} bytes, expected at most {_MAX_FILE_BYTES}" if size > _MAX_FILE_BYTES else ""
    return "" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"


class _SuiteParser:
    """Parses one suite. A value with a problem becomes an empty one, so that all problems are found."""

    def __init__(self, source: str, root: yaml.Node) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._root = root
        """The document, for lines."""
        self._metrics: frozenset[str] = frozenset()
        self._queries: frozenset[str] = frozenset()
        self._policies: tuple[str, ...] = ()
        self._devices: frozenset[str] | None = None
        """Those of the suite's ResourceSlices; None if they are not known."""
        self._nodes: tuple[str, ...] = ()
        """Of the current test, like its pods."""
        self._pods: Mapping[ObjectKey, Any] = {}
        self._values_left = _MAX_SUITE_VALUES
        """Negative after the series that exceeds the budget; later ones are not expanded."""

    def parse(self, value: Any) -> Suite:
        fields = self._fields("", value, _SUITE_FIELDS)
        objects = (*self._objects_of_files(fields), *self._inline_objects(fields))
        suite = Suite(self._source, objects, self._interval(fields, "evaluation_interval"), ())
        self._read_references(suite)
        tests = tuple(
            self._test(path, test, suite.evaluation_interval_s)
            for path, test in self._entries("tests", fields.get("tests"))
        )
        self._check_evaluations(tests, suite.evaluation_interval_s)
        self._check_distinct("tests[{}].name", [test.name for test in tests], "a name that no other test has")
        return suite._replace(tests=tests)

    # Values of fields

    def _line(self, field: str) -> int:
        """The line of a field, or of its closest existing parent."""
        return object_files.line_of_field(self._root, field)

    def _add_problem(self, field: str, actual: str, expected: str, line_and_column: str = "") -> None:
        at = line_and_column or str(self._line(field))
        where = f"{self._source}:{at}" + (f": {field}" if field else "")
        self.problems.append(Problem(where, actual, expected))

    def _fields(self, path: str, value: Any, valid: Sequence[str]) -> dict[str, Any]:
        """The fields of an object; unknown ones are problems."""
        if not isinstance(value, Mapping):
            self._add_problem(path, shown(value), f"an object with {', '.join(valid)}")
            return {}
        for name in value.keys() - set(valid):
            field = f"{path}.{name}".lstrip(".")
            self._add_problem(field, "an unknown field", ", ".join(valid) + did_you_mean(name, valid))
        return {name: value[name] for name in valid if value.get(name) is not None}

    def _entries(self, path: str, value: Any, *, may_be_empty: bool = False) -> list[tuple[str, Any]]:
        """The place and the value of each entry of a list."""
        if not isinstance(value, list) or not (value or may_be_empty):
            text = "none" if value is None else shown(value)
            self._add_problem(path, text, "a list with at least one entry")
            return []
        return [(f"{path}[{number}]", entry) for number, entry in enumerate(value)]

    def _check_distinct(self, field: str, names: Iterable[str], expected: str) -> None:
        """Each name is unique; a repeated one is a problem that names the first one. `field` has `{}` for a number."""
        first_fields: dict[str, str] = {}
        for number, name in enumerate(names):
            own = field.format(number)
            first = first_fields.setdefault(name, own)
            if name and first != own:
                occurrence = f"{first} in line {self._line(first)} is the same"
                self._add_problem(own, shown(name), f"{expected}; {occurrence}")

    def _text(self, path: str, value: Any, expected: str = "a text") -> str:
        if isinstance(value, str) and value:
            return value
        self._add_problem(path, "none" if value is None else shown(value), expected)
        return ""

    def _texts(self, path: str, value: Any) -> dict[str, str]:
        """An object of texts."""
        if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
            return dict(value)
        self._add_problem(path, shown(value), "an object of texts")
        return {}

    def _duration(self, path: str, value: Any) -> float:
        try:
            if isinstance(value, str):
                seconds = clock.parse_option_duration(value)
                if 0 <= seconds <= _MAX_DURATION_S:
                    return seconds
            elif value == 0 and not isinstance(value, bool):
                return 0.0
        except ValueError:
            pass
        expected = "a duration such as 30s or 5m, at most 3650d"
        self._add_problem(path, "none" if value is None else shown(value), expected)
        return 0.0

    def _interval(self, fields: Mapping[str, Any], path: str, default: float = _DEFAULT_INTERVAL_S) -> float:
        name = path.rpartition(".")[2]
        if name not in fields:
            return default
        seconds = self._duration(path, fields[name])
        if seconds < 1:
            self._add_problem(path, shown(fields[name]), "at least 1s")
        return max(seconds, 1.0)

    def _reference(self, path: str, name: str, valid: Sequence[str], what: str) -> str:
        """A name that has to exist."""
        if name in valid:
            return name
        listed = ", ".join(sorted(valid)[:_MAX_LISTED]) or "none, there are none"
        self._add_problem(path, shown(name), f"{what}: {listed}{did_you_mean(name, list(valid))}")
        return ""

    def _notation(self, path: str, text: str, parse: Callable[[str], T]) -> T | None:
        """The parsed text; None if there is none or it cannot be read, which is a problem with line and column."""
        if not text:
            return None
        try:
            return parse(text)
        except NotationError as error:
            place = _place_of_character(self._root, path, error.position)
            self._add_problem(path, f"{error} at character {error.position + 1}", error.expected, place)
            return None

    # Policies

    def _objects_of_files(self, fields: Mapping[str, Any]) -> Iterator[SuiteObject]:
        if "policy_files" not in fields:
            return
        for field, path in self._entries("policy_files", fields["policy_files"]):
            name = self._text(field, path, "the path of a file, relative to the suite")
            if not name:
                continue
            file = os.path.normpath(Path(self._source).parent / name)
            file = "./-" if file == "-" else file  # not standard input
            if reason := find_file_problem(file):
                self._add_problem(field, f"{name}: {reason}", "a file that can be read")
                continue
            try:
                files = object_files.read([file])
            except NodewiseError as error:
                for problem in error.problems:
                    self._add_problem(field, f"{problem.field}: {problem.found}", problem.expected)
                continue
            objects = [SuiteObject(kind, entry) for kind in _KINDS for entry in files.entries(*kind)]
            if not objects:
                expected = "a file with policies, Namespaces or ResourceSlices"
                self._add_problem(field, f"{name} without policies", expected)
            yield from objects

    def _inline_objects(self, fields: Mapping[str, Any]) -> Iterator[SuiteObject]:
        if "policies" not in fields:
            return
        for path, value in self._entries("policies", fields["policies"]):
            group, kind = "", ""
            if isinstance(value, Mapping):
                group = str(value.get("apiVersion", "")).rpartition("/")[0]
                kind = str(value.get("kind", ""))
            if (group, kind) in _KINDS:
                entry = FileObject(ObjectLocation(self._source, 1), msgspec.json.encode(value))
                yield SuiteObject((group, kind), entry, path)
            else:
                kinds = [name for _, name in _KINDS]
                expected = f"apiVersion and kind of a policy, Namespace or ResourceSlice: {', '.join(kinds)}"
                self._add_problem(path, shown(kind or value), expected + did_you_mean(kind, kinds))

    def _read_references(self, suite: Suite) -> None:
        """The policies of the suite, and the metrics that they use, to which tests may refer."""
        policies = suite.policies()
        self._policies = tuple(key.path for key in policies)
        if not policies:
            if not self.problems:
                self._add_problem("", "no policy", "policy_files or policies with at least one policy")
            return
        settings = policy_timeline.TimelineSettings()
        try:
            objects = policy_timeline.objects_of_files(suite.files(), settings.options)
            self._devices = suite.devices()
        except NodewiseError as error:
            for problem in error.problems:
                self._add_problem("policies", f"{problem.field}: {problem.found}", problem.expected)
            return
        parsed = policy_timeline.PolicyTimeline(objects, settings).policies.values()
        both = (Policy.comparisons, Policy.device_comparisons)
        comparisons = [*chain.from_iterable(chain.from_iterable(map(each, parsed) for each in both))]
        self._metrics = frozenset("" if item.query else item.metric for item in comparisons) - {""}
        self._queries = frozenset(item.query for item in comparisons) - {""}

    # Tests

    def _test(self, path: str, value: Any, evaluation_interval_s: float) -> PolicyTest:
        fields = self._fields(path, value, _TEST_FIELDS)
        name = self._text(f"{path}.name", fields.get("name"), "a name, which says what is expected")
        self._nodes = tuple(
            self._text(at, node, "the name of a node")
            for at, node in self._entries(f"{path}.nodes", fields.get("nodes"))
        )
        expected = "a name that no other node of the test has"
        self._check_distinct(f"{path}.nodes[{{}}]", self._nodes, expected)
        pods = [
            self._pod(at, item)
            for at, item in self._entries(f"{path}.pods", fields.get("pods", []), may_be_empty=True)
        ]
        names = [f"{namespace}/{name}" if name else "" for (namespace, name), _ in pods]
        expected = "a name that no other pod of its namespace has"
        self._check_distinct(f"{path}.pods[{{}}].name", names, expected)
        self._pods = dict(pods)
        interval_s = self._interval(fields, f"{path}.interval", evaluation_interval_s)
        listed = self._entries(f"{path}.input_series", fields.get("input_series", []), may_be_empty=True)
        series = tuple(self._series(at, item) for at, item in listed)
        for query in sorted({item.query for item in series}):
            # of series with the same labels, promtool silently uses the last one
            labels = [
                policy_suite.format_series(item.labels) if item.query == query and item.labels else ""
                for item in series
            ]
            expected = "labels that no other series of the test has"
            self._check_distinct(f"{path}.input_series[{{}}].series", labels, expected)
        expectations = [
            self._expectation(at, item) for at, item in self._entries(f"{path}.expect", fields.get("expect"))
        ]
        ordered = tuple(sorted(expectations, key=lambda expectation: expectation.eval_time_s))
        return PolicyTest(name, self._line(path), interval_s, self._nodes, self._pods, series, ordered)

    def _check_evaluations(self, tests: Sequence[PolicyTest], interval_s: float) -> None:
        """Limit what a few words can cost: a late `eval_time` is one word."""
        evaluations = 0
        for number, test in enumerate(tests):
            last_s = max((expectation.eval_time_s for expectation in test.expectations), default=0.0)
            own = int(last_s / interval_s)
            remedy = "an earlier eval_time, or a longer evaluation_interval"
            if own > _MAX_EVALUATIONS:
                expected = f"at most {_MAX_EVALUATIONS} evaluations: {remedy}"
                self._add_problem(f"tests[{number}].expect", f"{own} evaluations", expected)
            elif evaluations <= _MAX_SUITE_EVALUATIONS < evaluations + own:
                expected = f"at most {_MAX_SUITE_EVALUATIONS}: {remedy}, or a second suite"
                self._add_problem(
                    f"tests[{number}]", f"{evaluations + own} evaluations of the suite", expected
                )
            evaluations += own

    def _pod(self, path: str, value: Any) -> tuple[ObjectKey, Any]:
        fields = self._fields(path, value, _POD_FIELDS)
        name = self._text(f"{path}.name", fields.get("name"), "the name of the pod")
        namespace = self._text(f"{path}.namespace", fields.get("namespace", DEFAULT_NAMESPACE))
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}/{name}",
            "labels": self._texts(f"{path}.labels", fields.get("labels", {})),
        }
        return (namespace, name), msgspec.convert({"metadata": metadata}, policy_timeline.POD_TYPE)

    def _series(self, path: str, value: Any) -> InputSeries:
        fields = self._fields(path, value, _SERIES_FIELDS)
        text = self._text(f"{path}.series", fields.get("series"), 'a series such as temp{node="a"}')
        labels = self._notation(f"{path}.series", text, policy_suite.parse_series) or {}
        # as it is written, also where YAML reads a number: 0x5 is not 5
        node = object_files.node_of_field(self._root, f"{path}.values")
        written = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        values_text = self._text(f"{path}.values", written or None, "values such as 80+1x10 _ stale")
        values: tuple[Value, ...] = ()
        if self._values_left >= 0:
            values = self._notation(f"{path}.values", values_text, policy_suite.parse_values) or ()
            self._values_left -= len(values)
            if self._values_left < 0:
                count = f"more than {_MAX_SUITE_VALUES} values in the suite"
                self._add_problem(f"{path}.values", count, "fewer values, or a second suite")
        query = ""
        if "query" in fields:
            query = self._text(f"{path}.query", fields["query"])
            query = self._reference(f"{path}.query", query, [*self._queries], "the query of a rule")
        elif labels:
            metric = labels.get("__name__", "")
            self._reference(f"{path}.series", metric, [*self._metrics], "a metric that a policy names")
        if labels and self._nodes:
            self._check_node_of_series(f"{path}.series", labels)
        return InputSeries(labels, query, values)

    def _check_node_of_series(self, path: str, labels: Mapping[str, str]) -> None:
        naming = [labels[name] for name in LABELS.node if name in labels]
        if not naming:
            expected = f"a label that names the node: {LABELS.text()}"
            self._add_problem(path, "no such label", expected)
        elif not any(name in self._nodes for name in naming):
            self._node_reference(path, naming[0])

    # Expectations

    def _expectation(self, path: str, value: Any) -> Expectation:
        fields = self._fields(path, value, _EXPECTATION_FIELDS)
        if not any(name in fields for name in _EXPECTED_STATES):
            self._add_problem(path, "no expectation", f"at least one of {', '.join(_EXPECTED_STATES)}")
        pod = self._pod_reference(f"{path}.pod", fields["pod"]) if "pod" in fields else None
        if "pod" not in fields and ("rejected" in fields or "ranks" in fields):
            self._add_problem(path, "no pod", "pod together with rejected and ranks")
        parsers = {
            "rejected": self._rejected,
            "ranks": self._ranks,
            "labels": self._labels,
            "tainted": self._tainted,
            "suspended": self._suspended,
            "events": self._events,
        }
        states: dict[str, Any] = {
            name: parse(f"{path}.{name}", fields[name]) for name, parse in parsers.items() if name in fields
        }
        time_s = self._duration(f"{path}.eval_time", fields.get("eval_time"))
        return Expectation(self._line(path), time_s, pod, **states)

    def _tainted(self, path: str, value: Any) -> dict[str, str]:
        """The effects by device."""
        tainted = self._texts(path, value)
        if self._devices is not None and not self._devices:
            expected = "policy_files or policies with the ResourceSlices of the devices"
            self._add_problem(path, "no ResourceSlice with devices", expected)
        elif self._devices:
            for device in (device for device in tainted if device not in self._devices):
                similar = did_you_mean(device, sorted(self._devices))
                expected = f"a device of the ResourceSlices, as DRIVER/POOL/DEVICE{similar}"
                self._add_problem(f"{path}.{device}", "an unknown device", expected)
        for device, effect in tainted.items():
            self._reference(f"{path}.{device}", effect, _EFFECTS, "an effect of taints")
        return tainted

    def _node_reference(self, path: str, name: str) -> None:
        self._reference(path, name, self._nodes, "a node of the test")

    def _pod_reference(self, path: str, value: Any) -> ObjectKey | None:
        names = {f"{namespace}/{name}": (namespace, name) for namespace, name in self._pods}
        text = self._text(path, value, "namespace and name of a pod of the test, such as web/web-1")
        known = self._reference(path, text, [*names], "a pod of the test") if text else ""
        return names[known] if known else None

    def _policy_reference(self, path: str, value: Any) -> str:
        return self._reference(path, self._text(path, value), self._policies, "a policy of the suite")

    def _by_node(self, path: str, value: Any, expected: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self._add_problem(path, shown(value), expected)
            return {}
        for node in value:
            self._node_reference(path, node)
        return value

    def _rejected(self, path: str, value: Any) -> dict[str, str]:
        """Reasons by node; a list has no reasons."""
        entries = {str(node): None for node in value} if isinstance(value, list) else value
        reasons = self._by_node(path, entries, "nodes with reasons, or a list of nodes; {} for none")
        for node, reason in reasons.items():
            if reason and not isinstance(reason, str):
                self._add_problem(f"{path}.{node}", shown(reason), "the end of the reason")
        return {node: reason or "" for node, reason in reasons.items()}

    def _ranks(self, path: str, value: Any) -> dict[str, int]:
        ranks = self._by_node(path, value, "nodes with their ranks, such as {a: 1, b: 2}; {} for none")
        for node, rank in ranks.items():
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
                self._add_problem(f"{path}.{node}", shown(rank), "a rank from 1, the best")
        return dict(ranks)

    def _labels(self, path: str, value: Any) -> dict[str, dict[str, str]]:
        by_node = self._by_node(path, value, "nodes with their labels; {} for none")
        return {
            node: self._texts(f"{path}.{node}", labels) for node, labels in by_node.items() if labels != {}
        }

    def _suspended(self, path: str, value: Any) -> frozenset[str]:
        if not isinstance(value, list):
            self._add_problem(path, shown(value), "a list of policies such as [web/cool]; [] for none")
            return frozenset()
        return frozenset(
            self._policy_reference(f"{path}[{number}]", policy) for number, policy in enumerate(value)
        )

    def _events(self, path: str, value: Any) -> tuple[ExpectedEvent, ...]:
        if not isinstance(value, list):
            self._add_problem(path, shown(value), "a list of events; [] for none")
            return ()
        return tuple(self._event(f"{path}[{number}]", item) for number, item in enumerate(value))

    def _event(self, path: str, value: Any) -> ExpectedEvent:
        fields = self._fields(path, value, _EVENT_FIELDS)
        if ("pod" in fields) == ("policy" in fields):
            self._add_problem(path, "both" if "pod" in fields else "neither", "one of pod and policy")
        if "pod" in fields:
            self._pod_reference(f"{path}.pod", fields["pod"])
            about = f"pod {fields['pod']}"
        else:
            about = f"policy {self._policy_reference(f'{path}.policy', fields.get('policy'))}"
        reason = self._text(f"{path}.reason", fields.get("reason"), "a reason such as NoNodePasses")
        return ExpectedEvent(about, reason, str(fields.get("message", "")))


def _place_of_character(root: yaml.Node, path: str, position: int) -> str:
    """Line and column, from 1, of a character of a text; only the line of a text with escapes or several lines."""
    node = object_files.node_of_field(root, path)
    if not isinstance(node, yaml.ScalarNode):
        return ""
    start, end = node.start_mark, node.end_mark
    quotes = 1 if node.style in ("'", '"') else 0
    if start.line != end.line or end.column - start.column - 2 * quotes != len(node.value):
        return str(start.line + 1)
    return f"{start.line + 1}:{start.column + quotes + position + 1}"
