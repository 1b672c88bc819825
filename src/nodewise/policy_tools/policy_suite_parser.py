"""Parses a suite, and collects all of its problems, each with file, line and field.

Unknown fields are problems, as are references to policies, metrics, nodes and pods that do not exist.
"""

import os.path
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from nodewise.agent import ObjectKey
from nodewise.base import clock, safe_yaml_loader
from nodewise.base.errors import BadInput, NodewiseError, Problem, did_you_mean, shown
from nodewise.kube import object_files
from nodewise.kube.object_files import DEFAULT_NAMESPACE, FileObject, ObjectLocation
from nodewise.policies.placement_policy import Comparison
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

_DEFAULT_INTERVAL_S: Final = 60.0
_MAX_DURATION_S: Final = 3650 * 86400.0
"""So that every time of a test is a valid date."""
_MAX_LISTED: Final = 10
"""Valid names in one message."""


class SuiteFieldParser:
    """Parses values of fields. A value with a problem becomes an empty one, so that all problems are found."""

    def __init__(self, source: str, root: yaml.Node) -> None:
        self.problems: list[Problem] = []
        self.source = source
        self.root = root
        """The document, for lines."""

    def line(self, field: str) -> int:
        """The line of a field, or of its closest existing parent."""
        return object_files.line_of_field(self.root, field)

    def add_problem(self, field: str, actual: str, expected: str, line_and_column: str = "") -> None:
        at = line_and_column or str(self.line(field))
        where = f"{self.source}:{at}" + (f": {field}" if field else "")
        self.problems.append(Problem(where, actual, expected))

    def parse_fields(self, path: str, value: Any, valid: Sequence[str]) -> dict[str, Any]:
        """The fields of an object; unknown ones are problems."""
        if not isinstance(value, Mapping):
            self.add_problem(path, shown(value), f"an object with {', '.join(valid)}")
            return {}
        for name in value.keys() - set(valid):
            field = f"{path}.{name}".lstrip(".")
            self.add_problem(field, "an unknown field", ", ".join(valid) + did_you_mean(name, valid))
        return {name: value[name] for name in valid if value.get(name) is not None}

    def parse_list(self, path: str, value: Any) -> list[Any]:
        if isinstance(value, list) and value:
            return value
        self.add_problem(path, "none" if value is None else shown(value), "a list with at least one entry")
        return []

    def parse_optional_list(self, path: str, value: Any) -> list[Any]:
        """A list that may be empty."""
        return [] if value == [] else self.parse_list(path, value)

    def check_distinct(self, names: Sequence[tuple[str, str]], expected: str) -> None:
        """Each name, given with its field, is unique; a repeated one is a problem that names the first occurrence."""
        first_fields: dict[str, str] = {}
        for field, name in names:
            first = first_fields.setdefault(name, field)
            if name and first != field:
                occurrence = f"{first} in line {self.line(first)} is the same"
                self.add_problem(field, shown(name), f"{expected}; {occurrence}")

    def parse_text(self, path: str, value: Any, expected: str = "a text") -> str:
        if isinstance(value, str) and value:
            return value
        self.add_problem(path, "none" if value is None else shown(value), expected)
        return ""

    def parse_written_text(self, path: str, expected: str) -> str:
        """A text as it is written, also where YAML reads a number: `0x5` is not 5."""
        node = object_files.node_of_field(self.root, path)
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        return self.parse_text(path, text or None, expected)

    def parse_texts(self, path: str, value: Any) -> dict[str, str]:
        """An object of texts."""
        if isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values()):
            return dict(value)
        self.add_problem(path, shown(value), "an object of texts")
        return {}

    def parse_duration(self, path: str, value: Any) -> float:
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
        self.add_problem(path, "none" if value is None else shown(value), expected)
        return 0.0

    def parse_interval(
        self, fields: Mapping[str, Any], name: str, default: float = 0.0, path: str = ""
    ) -> float:
        if name not in fields:
            return default or _DEFAULT_INTERVAL_S
        seconds = self.parse_duration(path or name, fields[name])
        if seconds < 1:
            self.add_problem(path or name, shown(fields[name]), "at least 1s")
        return max(seconds, 1.0)

    def check_reference(self, path: str, name: str, valid: Sequence[str], what: str) -> str:
        """A name that has to exist."""
        if name in valid:
            return name
        listed = ", ".join(sorted(valid)[:_MAX_LISTED]) or "none, there are none"
        self.add_problem(path, shown(name), f"{what}: {listed}{did_you_mean(name, list(valid))}")
        return ""

    def parse_notation(self, path: str, text: str, parse: Callable[[str], T]) -> T | None:
        """The parsed text; None if there is none or it cannot be read, which is a problem with line and column."""
        if not text:
            return None
        try:
            return parse(text)
        except NotationError as error:
            place = _place_of_character(self.root, path, error.position)
            self.add_problem(path, f"{error} at character {error.position + 1}", error.expected, place)
            return None


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


NAMESPACE_KIND: Final = ("", "Namespace")
_KINDS: Final = (*((resource.group, resource.kind) for resource in RESOURCES.values()), NAMESPACE_KIND)
_SUITE_FIELDS: Final = ("policy_files", "policies", "evaluation_interval", "tests")
_TEST_FIELDS: Final = ("name", "interval", "nodes", "pods", "input_series", "expect")
_POD_FIELDS: Final = ("name", "namespace", "labels")
_SERIES_FIELDS: Final = ("series", "query", "values")
_EXPECTED_STATES: Final = ("rejected", "ranks", "labels", "suspended", "events")
_EXPECTATION_FIELDS: Final = ("eval_time", "pod", *_EXPECTED_STATES)
_EVENT_FIELDS: Final = ("pod", "policy", "reason", "message")
_MAX_EVALUATIONS: Final = 20_000
"""Evaluations of one test: two weeks with one per minute."""
_MAX_SUITE_EVALUATIONS: Final = 200_000
"""Evaluations of all tests of a suite: some two minutes."""
_MAX_SUITE_VALUES: Final = 1_000_000
"""Values of all series of a suite: some 70 MB."""
_MAX_FILE_BYTES: Final = 16 * 2**20
"""Of a suite, or of a file that it names."""


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


class _SuiteParser(SuiteFieldParser):
    """Parses one suite."""

    def __init__(self, source: str, root: yaml.Node) -> None:
        super().__init__(source, root)
        self._metrics: frozenset[str] = frozenset()
        self._queries: frozenset[str] = frozenset()
        self._policies: tuple[str, ...] = ()
        self._values_left = _MAX_SUITE_VALUES
        """Negative after the series that exceeds the budget; later ones are not expanded."""

    def parse(self, value: Any) -> Suite:
        fields = self.parse_fields("", value, _SUITE_FIELDS)
        objects = (*self._objects_of_files(fields), *self._inline_objects(fields))
        suite = Suite(self.source, objects, self.parse_interval(fields, "evaluation_interval"), ())
        self._read_references(suite)
        listed = self.parse_list("tests", fields.get("tests"))
        tests = tuple(
            self._test(f"tests[{number}]", test, suite.evaluation_interval_s)
            for number, test in enumerate(listed)
        )
        self._check_evaluations(tests, suite.evaluation_interval_s)
        names = [(f"tests[{number}].name", test.name) for number, test in enumerate(tests)]
        self.check_distinct(names, "a name that no other test has")
        return suite._replace(tests=tests)

    # Policies

    def _objects_of_files(self, fields: Mapping[str, Any]) -> Iterator[SuiteObject]:
        paths = self.parse_list("policy_files", fields["policy_files"]) if "policy_files" in fields else []
        for number, path in enumerate(paths):
            field = f"policy_files[{number}]"
            name = self.parse_text(field, path, "the path of a file, relative to the suite")
            if not name:
                continue
            file = os.path.normpath(Path(self.source).parent / name)
            file = "./-" if file == "-" else file  # not standard input
            if reason := find_file_problem(file):
                self.add_problem(field, f"{name}: {reason}", "a file that can be read")
                continue
            try:
                files = object_files.read([file])
            except NodewiseError as error:
                for problem in error.problems:
                    self.add_problem(field, f"{problem.field}: {problem.found}", problem.expected)
                continue
            objects = [SuiteObject(kind, entry) for kind in _KINDS for entry in files.entries(*kind)]
            if not objects:
                self.add_problem(field, f"{name} without policies", "a file with policies or Namespaces")
            yield from objects

    def _inline_objects(self, fields: Mapping[str, Any]) -> Iterator[SuiteObject]:
        listed = self.parse_list("policies", fields["policies"]) if "policies" in fields else []
        for number, value in enumerate(listed):
            path = f"policies[{number}]"
            group, kind = "", ""
            if isinstance(value, Mapping):
                group = str(value.get("apiVersion", "")).rpartition("/")[0]
                kind = str(value.get("kind", ""))
            if (group, kind) not in _KINDS:
                kinds = [name for _, name in _KINDS]
                expected = f"apiVersion and kind of a policy or Namespace: {', '.join(kinds)}"
                self.add_problem(
                    path, shown(kind) if kind else shown(value), expected + did_you_mean(kind, kinds)
                )
                continue
            entry = FileObject(ObjectLocation(self.source, 1), msgspec.json.encode(value))
            yield SuiteObject((group, kind), entry, path)

    def _read_references(self, suite: Suite) -> None:
        """The policies of the suite, and the metrics that they use, to which tests may refer."""
        policies = suite.policies()
        self._policies = tuple(key.path for key in policies)
        if not policies:
            if not self.problems:
                self.add_problem("", "no policy", "policy_files or policies with at least one policy")
            return
        comparisons = list(self._comparisons(suite))
        self._metrics = frozenset(item.metric for item in comparisons if not item.query and item.metric)
        self._queries = frozenset(item.query for item in comparisons if item.query)

    def _comparisons(self, suite: Suite) -> Iterator[Comparison]:
        """The comparisons of all policies."""
        settings = policy_timeline.TimelineSettings()
        try:
            objects = policy_timeline.objects_of_files(suite.files(), settings.options)
        except NodewiseError as error:
            for problem in error.problems:
                self.add_problem("policies", f"{problem.field}: {problem.found}", problem.expected)
            return
        for policy in policy_timeline.PolicyTimeline(objects, settings).policies.values():
            yield from policy.comparisons()

    # Tests

    def _test(self, path: str, value: Any, evaluation_interval_s: float) -> PolicyTest:
        fields = self.parse_fields(path, value, _TEST_FIELDS)
        name = self.parse_text(f"{path}.name", fields.get("name"), "a name, which says what is expected")
        nodes = tuple(
            self.parse_text(f"{path}.nodes[{number}]", node, "the name of a node")
            for number, node in enumerate(self.parse_list(f"{path}.nodes", fields.get("nodes")))
        )
        named_nodes = [(f"{path}.nodes[{number}]", node) for number, node in enumerate(nodes)]
        self.check_distinct(named_nodes, "a name that no other node of the test has")
        listed_pods = list(self._pods(f"{path}.pods", fields.get("pods", [])))
        named_pods = [
            (f"{path}.pods[{number}].name", f"{namespace}/{name}" if name else "")
            for number, ((namespace, name), _) in enumerate(listed_pods)
        ]
        self.check_distinct(named_pods, "a name that no other pod of its namespace has")
        pods = dict(listed_pods)
        interval_s = self.parse_interval(fields, "interval", evaluation_interval_s, f"{path}.interval")
        listed = self.parse_optional_list(f"{path}.input_series", fields.get("input_series", []))
        series = tuple(
            self._series(f"{path}.input_series[{number}]", item, nodes) for number, item in enumerate(listed)
        )
        self._check_distinct_labels(f"{path}.input_series", series)
        expectations = [
            self._expectation(f"{path}.expect[{number}]", item, nodes, pods)
            for number, item in enumerate(self.parse_list(f"{path}.expect", fields.get("expect")))
        ]
        line = self.line(path)
        ordered = tuple(sorted(expectations, key=lambda expectation: expectation.eval_time_s))
        return PolicyTest(name, line, interval_s, nodes, pods, series, ordered)

    def _check_evaluations(self, tests: Sequence[PolicyTest], interval_s: float) -> None:
        """Limit what a few words can cost: a late `eval_time` is one word."""
        evaluations = 0
        for number, test in enumerate(tests):
            last_s = max((expectation.eval_time_s for expectation in test.expectations), default=0.0)
            own = int(last_s / interval_s)
            remedy = "an earlier eval_time, or a longer evaluation_interval"
            if own > _MAX_EVALUATIONS:
                expected = f"at most {_MAX_EVALUATIONS} evaluations: {remedy}"
                self.add_problem(f"tests[{number}].expect", f"{own} evaluations", expected)
            elif evaluations <= _MAX_SUITE_EVALUATIONS < evaluations + own:
                expected = f"at most {_MAX_SUITE_EVALUATIONS}: {remedy}, or a second suite"
                self.add_problem(
                    f"tests[{number}]", f"{evaluations + own} evaluations of the suite", expected
                )
            evaluations += own

    def _pods(self, path: str, value: Any) -> Iterator[tuple[ObjectKey, Any]]:
        for number, item in enumerate(self.parse_optional_list(path, value)):
            at = f"{path}[{number}]"
            fields = self.parse_fields(at, item, _POD_FIELDS)
            name = self.parse_text(f"{at}.name", fields.get("name"), "the name of the pod")
            namespace = self.parse_text(f"{at}.namespace", fields.get("namespace", DEFAULT_NAMESPACE))
            metadata = {
                "name": name,
                "namespace": namespace,
                "uid": f"{namespace}/{name}",
                "labels": self.parse_texts(f"{at}.labels", fields.get("labels", {})),
            }
            pod = msgspec.convert({"metadata": metadata}, policy_timeline.POD_TYPE)
            yield (namespace, name), pod

    def _series(self, path: str, value: Any, nodes: Sequence[str]) -> InputSeries:
        fields = self.parse_fields(path, value, _SERIES_FIELDS)
        text = self.parse_text(f"{path}.series", fields.get("series"), 'a series such as temp{node="a"}')
        labels = self.parse_notation(f"{path}.series", text, policy_suite.parse_series) or {}
        values_text = self.parse_written_text(f"{path}.values", "values such as 80+1x10 _ stale")
        values: tuple[Value, ...] = ()
        if self._values_left >= 0:
            values = self.parse_notation(f"{path}.values", values_text, policy_suite.parse_values) or ()
            self._values_left -= len(values)
            if self._values_left < 0:
                count = f"more than {_MAX_SUITE_VALUES} values in the suite"
                self.add_problem(f"{path}.values", count, "fewer values, or a second suite")
        query = ""
        if "query" in fields:
            expected = "the query of a rule"
            query = self.check_reference(
                f"{path}.query", self.parse_text(f"{path}.query", fields["query"]), [*self._queries], expected
            )
        elif labels:
            metric = labels.get("__name__", "")
            self.check_reference(f"{path}.series", metric, [*self._metrics], "a metric that a policy names")
        if labels and nodes:
            self._check_node_of_series(f"{path}.series", labels, nodes)
        return InputSeries(labels, query, values)

    def _check_distinct_labels(self, path: str, series: Sequence[InputSeries]) -> None:
        """Of series with the same labels, promtool silently uses the last one."""
        for query in sorted({item.query for item in series}):
            named_series = [
                (f"{path}[{number}].series", policy_suite.format_series(item.labels))
                for number, item in enumerate(series)
                if item.query == query and item.labels
            ]
            self.check_distinct(named_series, "labels that no other series of the test has")

    def _check_node_of_series(self, path: str, labels: Mapping[str, str], nodes: Sequence[str]) -> None:
        naming = {name: labels[name] for name in LABELS.node if name in labels}
        if not naming:
            expected = f"a label that names the node: {LABELS.text()}"
            self.add_problem(path, "no such label", expected)
        elif not any(name in nodes for name in naming.values()):
            self.check_reference(path, next(iter(naming.values())), nodes, "a node of the test")

    # Expectations

    def _expectation(
        self, path: str, value: Any, nodes: Sequence[str], pods: Mapping[ObjectKey, Any]
    ) -> Expectation:
        fields = self.parse_fields(path, value, _EXPECTATION_FIELDS)
        if not any(name in fields for name in _EXPECTED_STATES):
            self.add_problem(path, "no expectation", f"at least one of {', '.join(_EXPECTED_STATES)}")
        pod = self._pod(f"{path}.pod", fields["pod"], pods) if "pod" in fields else None
        if "pod" not in fields and ("rejected" in fields or "ranks" in fields):
            self.add_problem(path, "no pod", "pod together with rejected and ranks")
        rejected = (
            self._rejected(f"{path}.rejected", fields["rejected"], nodes) if "rejected" in fields else None
        )
        ranks = self._ranks(f"{path}.ranks", fields["ranks"], nodes) if "ranks" in fields else None
        labels = self._labels(f"{path}.labels", fields["labels"], nodes) if "labels" in fields else None
        suspended = None
        if "suspended" in fields:
            suspended = frozenset(self._suspended(f"{path}.suspended", fields["suspended"]))
        events = tuple(self._events(f"{path}.events", fields["events"], pods)) if "events" in fields else None
        line = self.line(path)
        time_s = self.parse_duration(f"{path}.eval_time", fields.get("eval_time"))
        return Expectation(line, time_s, pod, rejected, ranks, labels, suspended, events)

    def _pod(self, path: str, value: Any, pods: Mapping[ObjectKey, Any]) -> ObjectKey | None:
        names = {f"{namespace}/{name}": (namespace, name) for namespace, name in pods}
        text = self.parse_text(path, value, "namespace and name of a pod of the test, such as web/web-1")
        known = self.check_reference(path, text, [*names], "a pod of the test") if text else ""
        return names[known] if known else None

    def _rejected(self, path: str, value: Any, nodes: Sequence[str]) -> dict[str, str]:
        """Reasons by node; a list has no reasons."""
        if isinstance(value, list):
            entries: dict[str, Any] = {str(node): "" for node in value}
        elif isinstance(value, Mapping):
            entries = {node: reason or "" for node, reason in value.items()}
        else:
            self.add_problem(path, shown(value), "nodes with reasons, or a list of nodes; {} for none")
            return {}
        for node, reason in entries.items():
            self.check_reference(path, node, nodes, "a node of the test")
            if not isinstance(reason, str):
                self.add_problem(f"{path}.{node}", shown(reason), "the end of the reason")
        return entries

    def _ranks(self, path: str, value: Any, nodes: Sequence[str]) -> dict[str, int]:
        if not isinstance(value, Mapping):
            self.add_problem(path, shown(value), "nodes with their ranks, such as {a: 1, b: 2}; {} for none")
            return {}
        for node, rank in value.items():
            self.check_reference(path, node, nodes, "a node of the test")
            if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
                self.add_problem(f"{path}.{node}", shown(rank), "a rank from 1, the best")
        return dict(value)

    def _labels(self, path: str, value: Any, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
        if not isinstance(value, Mapping):
            self.add_problem(path, shown(value), "nodes with their labels; {} for none")
            return {}
        for node in value:
            self.check_reference(path, node, nodes, "a node of the test")
        return {
            node: self.parse_texts(f"{path}.{node}", labels) for node, labels in value.items() if labels != {}
        }

    def _suspended(self, path: str, value: Any) -> Iterator[str]:
        if not isinstance(value, list):
            self.add_problem(path, shown(value), "a list of policies such as [web/cool]; [] for none")
            return
        for number, policy in enumerate(value):
            text = self.parse_text(f"{path}[{number}]", policy)
            yield self.check_reference(f"{path}[{number}]", text, self._policies, "a policy of the suite")

    def _events(self, path: str, value: Any, pods: Mapping[ObjectKey, Any]) -> Iterator[ExpectedEvent]:
        if not isinstance(value, list):
            self.add_problem(path, shown(value), "a list of events; [] for none")
            return
        for number, item in enumerate(value):
            at = f"{path}[{number}]"
            fields = self.parse_fields(at, item, _EVENT_FIELDS)
            if ("pod" in fields) == ("policy" in fields):
                self.add_problem(at, "both" if "pod" in fields else "neither", "one of pod and policy")
            if "pod" in fields:
                self._pod(f"{at}.pod", fields["pod"], pods)
                about = f"pod {fields['pod']}"
            else:
                policy = self.parse_text(f"{at}.policy", fields.get("policy"))
                self.check_reference(f"{at}.policy", policy, self._policies, "a policy of the suite")
                about = f"policy {policy}"
            reason = self.parse_text(f"{at}.reason", fields.get("reason"), "a reason such as NoNodePasses")
            yield ExpectedEvent(about, reason, str(fields.get("message", "")))
