"""Parses the values of a suite's fields, and collects problems with file, line and field. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import yaml

from nodewise.base import clock
from nodewise.base.errors import Problem, did_you_mean, shown
from nodewise.kube import yaml_json_documents
from nodewise.policy_tools.policy_suites.suite import NotationError

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
        return yaml_json_documents.line_of_field(self.root, field)

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
        node = yaml_json_documents.node_of_field(self.root, path)
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
    node = yaml_json_documents.node_of_field(root, path)
    if not isinstance(node, yaml.ScalarNode):
        return ""
    start, end = node.start_mark, node.end_mark
    quotes = 1 if node.style in ("'", '"') else 0
    if start.line != end.line or end.column - start.column - 2 * quotes != len(node.value):
        return str(start.line + 1)
    return f"{start.line + 1}:{start.column + quotes + position + 1}"
