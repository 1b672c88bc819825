"""Reads YAML from untrusted sources. No other module calls PyYAML's loading functions
(`tests/unit/base/test_safe_yaml_loader.py`).

Four kinds of text are rejected that PyYAML accepts or that would end the process: aliases that expand to many times the
written values ("billion laughs"), values nested too deeply for recursion, numbers with very many digits, and duplicate
keys, of which PyYAML silently keeps the last one.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import yaml

from nodewise.base.errors import BadInput, Problem, shown

MOST_FROM_ALIASES: Final = 100_000
"""Limit of values that aliases add to the written values."""
DEEPEST: Final = 200
"""Limit of nested levels."""
LONGEST_NUMBER: Final = 3500
"""Limit of characters of a number. Python writes numbers of at most 4300 digits, and a hexadecimal number of this
length has fewer. PyYAML takes quadratic time for base 60 (`1:59:59`)."""
_SAFE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MANY: Final = 5000
_STAIRS: Final = re.compile(rb"(?:[-?][ \t]+){500}|\n {2000}")
_MERGE: Final = "tag:yaml.org,2002:merge"


def _child_nodes(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def reject_unsafe_yaml(root: yaml.Node) -> None:
    """Reject an unsafe composed document before it is expanded. In it, an alias is the same node as its anchor.

    YAMLError names the line. Each list and mapping is visited once, inner ones first.
    """
    order: list[tuple[yaml.Node, list[yaml.Node]]] = []
    sizes: dict[int, int] = {}
    path: set[int] = set()
    stack: list[tuple[yaml.Node, list[yaml.Node], Iterator[yaml.Node]]] = []

    def enter(node: yaml.Node) -> None:
        if id(node) in path:
            raise _yaml_error_at("an alias inside of what it refers to", node)
        if len(stack) > DEEPEST:
            raise _yaml_error_at(f"values nested deeper than {DEEPEST} levels", node)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        path.add(id(node))
        children = _child_nodes(node)
        stack.append(
            (node, children, iter([child for child in children if not isinstance(child, yaml.ScalarNode)]))
        )

    enter(root)
    while stack:
        node, children, rest = stack[-1]
        child = next((inner for inner in rest if id(inner) not in sizes), None)
        if child is not None:
            enter(child)
            continue
        stack.pop()
        path.remove(id(node))
        sizes[id(node)] = 0
        order.append((node, children))
    written = 1 + len({id(child) for _, children in order for child in children})
    limit = written + MOST_FROM_ALIASES
    for node, children in order:
        size = sizes[id(node)] = 1 + sum(sizes.get(id(child), 1) for child in children)
        if size > limit:
            raise _yaml_error_at(
                f"aliases expand {written} values to more than {limit}, expected at most {MOST_FROM_ALIASES} more",
                node,
            )


def _check_keys(mapping: yaml.MappingNode) -> None:
    keys = set()
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            if key.value in keys:
                raise _yaml_error_at(f"the key {shown(key.value)} twice, expected once", key)
            keys.add(key.value)


def _yaml_error_at(message: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, f"found {message}", node.start_mark)


class Loader(_SAFE):  # type: ignore[misc]  # the base is chosen when the program starts
    """PyYAML's safe loader, which checks a document before it constructs values."""

    def construct_document(self, node: yaml.Node) -> Any:
        reject_unsafe_yaml(node)
        return super().construct_document(node)


def _limit_yaml_constructor(construct: Callable[[Any, yaml.Node], Any]) -> Callable[[Any, yaml.Node], Any]:
    def constructed(loader: Any, node: yaml.Node) -> Any:
        length = len(loader.construct_scalar(node))
        if length > LONGEST_NUMBER:
            raise _yaml_error_at(f"a number of {length} characters, expected at most {LONGEST_NUMBER}", node)
        return construct(loader, node)

    return constructed


for _kind in ("int", "float"):
    _tag = f"tag:yaml.org,2002:{_kind}"
    Loader.add_constructor(_tag, _limit_yaml_constructor(Loader.yaml_constructors[_tag]))


def load(text: bytes | str, source: str) -> Any:
    """The value of a text with one document, None for an empty text. BadInput names `source` and the line."""
    values = list(load_all(text, source))
    if len(values) > 1:
        raise BadInput(source, [Problem("", f"{len(values)} documents", "one document")])
    return values[0] if values else None


def load_all(text: bytes | str, source: str, loader: Any = Loader) -> Iterator[Any]:
    """The values of all documents. BadInput names `source`, the document, and line and column."""
    number = 1
    try:
        for value in yaml.load_all(_encode_checked_utf8(text), Loader=loader):
            yield value
            number += 1
    except yaml.YAMLError as error:
        raise BadInput(source, [_yaml_problem(error, number)], remedy=template_remedy(text)) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError) as error:
        # an invalid date, a key that is not a string, a number that is empty, too long or too large
        raise BadInput.of(source, f"document {number}", shown(str(error)), "YAML") from error


def compose_all(text: bytes | str, source: str) -> list[yaml.Node]:
    """The nodes of all documents, with offsets into the text. BadInput as for `load_all`."""
    nodes: list[yaml.Node] = []
    try:
        for node in yaml.compose_all(_encode_checked_utf8(text, is_suspect=True).decode(), yaml.SafeLoader):
            reject_unsafe_yaml(node)
            nodes.append(node)
    except (yaml.YAMLError, RecursionError) as error:
        raise BadInput(
            source, [_yaml_problem(error, len(nodes) + 1)], remedy=template_remedy(text)
        ) from error
    except ValueError as error:
        raise BadInput(source, [Problem("", shown(str(error)), "YAML")]) from error
    return nodes


def template_remedy(text: bytes | str) -> str:
    """What to do about invalid YAML that is a template of Helm or Jinja; empty without the marks of one."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if b"{{" in data or b"{%" in data:
        return "the file has {{ }} or {% %} of a template: render the template first"
    return ""


def _yaml_problem(error: yaml.YAMLError | RecursionError, number: int) -> Problem:
    """The problem of a document, with its place. PyYAML's own text names the input "<byte string>"."""
    field, seen = f"document {number}", " ".join(str(error).split())
    if isinstance(error, yaml.MarkedYAMLError):
        mark, begin = error.problem_mark, error.context_mark
        seen = str(error.problem)
        if error.context:
            # an unclosed quote or bracket is found at the end of the file
            where = f" of line {begin.line + 1}" if begin and mark and begin.line != mark.line else ""
            seen = f"{error.context}{where}, {seen}"
        if mark:
            field = f"{field}, line {mark.line + 1}, column {mark.column + 1}"
    elif isinstance(error, yaml.reader.ReaderError):
        field, seen = (
            f"{field}, position {error.position}",
            f"character #x{error.character:04x}: {error.reason}",
        )
    return Problem(field, seen, "YAML")


def _encode_checked_utf8(text: bytes | str, *, is_suspect: bool = False) -> bytes:
    """The text in UTF-8. ValueError if it is not UTF-8, or nested too deeply.

    libyaml composes recursively in C, and a stack overflow ends the process without an exception. Parsing events is not
    recursive but takes half as long again, so only texts that may be deeply nested (`is_suspect`) are parsed first.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        data.decode()  # PyYAML also reads UTF-16, whose nesting the next lines would not detect
    except UnicodeError as error:
        raise ValueError("found bytes that are not UTF-8") from error
    if is_suspect or data.count(b"[") + data.count(b"{") > _MANY or _STAIRS.search(data):
        _check_depth(yaml.parse(data, Loader=_SAFE))
    return data


def _check_depth(events: Iterable[yaml.Event]) -> None:
    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"found values nested deeper than {DEEPEST} levels")
