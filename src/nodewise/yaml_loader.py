"""Reads YAML of any origin. No other module calls the functions of PyYAML that read (`tests/unit/test_yaml_loader.py`).

Four kinds of text are refused that PyYAML accepts or that end the process: aliases that expand to many times what is
written ("billion laughs", in which a few lines keep whoever walks through the value busy for hours), values nested so
deeply that a recursion ends, numbers of very many digits, and a key given twice, of which PyYAML keeps the last one
without a word.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import yaml

from nodewise.errors import BadInput, Problem, shown

MOST_FROM_ALIASES: Final = 100_000
"""Values that aliases may add to the values that are written."""
DEEPEST: Final = 200
"""Levels of nesting."""
LONGEST_NUMBER: Final = 4300
"""Characters of a number, as for Python's `int`: for one in base 60 (`1:59:59`) PyYAML takes the square of the time."""
_SAFE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MANY: Final = 5000
_STAIRS: Final = re.compile(rb"(?:[-?][ \t]+){500}|\n {2000}")
_MERGE: Final = "tag:yaml.org,2002:merge"


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def check(root: yaml.Node) -> None:
    """Refuse a composed document, in which an alias is the very node that it refers to, before anything expands it.

    YAMLError names the line. Lists and mappings are visited once, in an order in which inner ones come first.
    """
    order: list[tuple[yaml.Node, list[yaml.Node]]] = []
    sizes: dict[int, int] = {}
    path: set[int] = set()
    stack: list[tuple[yaml.Node, list[yaml.Node], Iterator[yaml.Node]]] = []

    def enter(node: yaml.Node) -> None:
        if id(node) in path:
            raise _error("an alias inside of what it refers to", node)
        if len(stack) > DEEPEST:
            raise _error(f"values nested deeper than {DEEPEST} levels", node)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        path.add(id(node))
        children = _children(node)
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
            raise _error(
                f"aliases expand {written} values to more than {limit}, expected at most {MOST_FROM_ALIASES} more",
                node,
            )


def _check_keys(mapping: yaml.MappingNode) -> None:
    keys = set()
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            if key.value in keys:
                raise _error(f"the key {shown(key.value)} twice, expected once", key)
            keys.add(key.value)


def _error(message: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, f"found {message}", node.start_mark)


class Loader(_SAFE):  # type: ignore[misc]  # the base is chosen when the program starts
    """PyYAML's safe loader, which checks a document before it makes values of it."""

    def construct_document(self, node: yaml.Node) -> Any:
        check(node)
        return super().construct_document(node)


def _bounded(construct: Callable[[Any, yaml.Node], Any]) -> Callable[[Any, yaml.Node], Any]:
    def constructed(loader: Any, node: yaml.Node) -> Any:
        length = len(loader.construct_scalar(node))
        if length > LONGEST_NUMBER:
            raise _error(f"a number of {length} characters, expected at most {LONGEST_NUMBER}", node)
        return construct(loader, node)

    return constructed


for _kind in ("int", "float"):
    _tag = f"tag:yaml.org,2002:{_kind}"
    Loader.add_constructor(_tag, _bounded(Loader.yaml_constructors[_tag]))


def load(text: bytes | str, source: str) -> Any:
    """The value of a text with one document, None for an empty one. BadInput names `source` and the place in it."""
    values = list(load_all(text, source))
    if len(values) > 1:
        raise BadInput(source, [Problem("", f"{len(values)} documents", "one")])
    return values[0] if values else None


def load_all(text: bytes | str, source: str, loader: Any = Loader) -> Iterator[Any]:
    """The values of all documents. BadInput names `source`, the document, and line and column."""
    number = 1
    try:
        for value in yaml.load_all(_checked(text), Loader=loader):
            yield value
            number += 1
    except yaml.YAMLError as error:
        seen = " ".join(str(error).split())
        raise BadInput(source, [Problem(f"document {number}", seen, "YAML")]) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError) as error:
        # a date that there is not, a key that is no text, a number that is empty, too long or too large
        problem = Problem(f"document {number}", shown(str(error)), "YAML")
        raise BadInput(source, [problem]) from error


def compose_all(text: bytes | str, source: str) -> list[yaml.Node]:
    """The nodes of all documents, with offsets into the text. BadInput as for `load_all`."""
    nodes: list[yaml.Node] = []
    try:
        for node in yaml.compose_all(_checked(text, is_suspect=True).decode(), yaml.SafeLoader):
            check(node)
            nodes.append(node)
    except (yaml.YAMLError, RecursionError) as error:
        seen = " ".join(str(error).split())
        raise BadInput(source, [Problem(f"document {len(nodes) + 1}", seen, "YAML")]) from error
    except ValueError as error:
        raise BadInput(source, [Problem("", shown(str(error)), "YAML")]) from error
    return nodes


def _checked(text: bytes | str, *, is_suspect: bool = False) -> bytes:
    """The text in UTF-8. ValueError if it is not, or nested deeper than a recursion allows.

    libyaml composes with a recursion in C, which ends the process without an exception. Reading by events needs no
    recursion but half as much time again, so only texts that may be nested deeply (`is_suspect`) are read so first.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        data.decode()  # PyYAML would read UTF-16 too, in which the next line would not see the nesting
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
