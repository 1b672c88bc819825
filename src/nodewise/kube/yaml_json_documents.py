"""Converts JSON or YAML text to JSON documents, with the YAML semantics of Kubernetes. Independent of kinds.

Kubernetes converts YAML to JSON (sigs.k8s.io/yaml v1.6 on go.yaml.in/yaml v2). So `y` and `on` are true; times, base-60
numbers and keys are strings; and a duplicate key is an error.
"""

import json
import re
from collections.abc import Hashable, Iterator
from typing import Any, Final

import msgspec
import yaml

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, Problem, shown

_TYPES: Final = (
    ("null", r"(~|null|Null|NULL|)", "~nN\0"),
    (
        "bool",
        r"([yY]|yes|Yes|YES|true|True|TRUE|on|On|ON|[nN]|no|No|NO|false|False|FALSE|off|Off|OFF)",
        "yYnNtTfFoO",
    ),
    ("int", r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]*|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
)
"""Types of plain scalars that are not strings: pattern and first characters (yaml v2, resolve.go)."""

_SPACE: Final = re.compile(r"\s*")
_INDEX: Final = re.compile(r"\[(\d+)\]")
"""An item of a list, in a path of fields."""
_JSON_START: Final = (b"{", b"[")


class _Loader(safe_yaml_loader.Loader):
    """Loader with the YAML semantics of Kubernetes for plain scalars and keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's way; its own would be PyYAML's types

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key.start_mark)
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"  # JSON has no other keys
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made


for _name, _form, _starts in _TYPES:
    _starts_list = ["" if start == "\0" else start for start in _starts]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"{_form}\Z"), _starts_list)
_Loader.add_constructor(
    "tag:yaml.org,2002:bool", lambda _, node: node.value.lower() in ("y", "yes", "true", "on")
)


def split_documents(text: bytes, source: str) -> Iterator[tuple[int, bytes]]:
    """The documents of a text as JSON, each with its number from 1. Empty documents are left out.

    `BadInput` names `source`, and line and column.
    """
    if text.lstrip()[:1] not in _JSON_START or b"\n---" in text:
        yield from _split_yaml(text, source)
        return
    try:
        whole = bytes(msgspec.json.decode(text, type=msgspec.Raw))
    except (msgspec.MsgspecError, RecursionError):
        yield from _split_json(text, source)
    else:
        yield 1, whole


def _split_json(text: bytes, source: str) -> Iterator[tuple[int, bytes]]:
    """Concatenated JSON documents, for example of two runs of `kubectl get -o json`."""
    decoder = json.JSONDecoder()
    number = at = 0
    try:
        rest = text.decode().strip()
        while at < len(rest):
            number += 1
            _, end = decoder.raw_decode(rest, at)
            yield number, rest[at:end].encode()
            space = _SPACE.match(rest, end)
            at = space.end() if space else end
    except (ValueError, RecursionError) as error:
        problem = Problem(f"document {max(number, 1)}", str(error), "JSON or YAML")
        if number > 1 or isinstance(error, RecursionError):
            raise BadInput(source, [problem]) from error
        yield from _parse_flow_yaml(text, source, problem)


def _parse_flow_yaml(text: bytes, source: str, problem: Problem) -> Iterator[tuple[int, bytes]]:
    """YAML in flow style such as `{kind: Node}`. If it is invalid, the error is that of the JSON parser."""
    try:
        objects = list(_split_yaml(text, source))
    except BadInput as error:
        raise BadInput(source, [problem]) from error
    yield from objects


def _split_yaml(text: bytes, source: str) -> Iterator[tuple[int, bytes]]:
    for number, document in enumerate(safe_yaml_loader.load_all(text, source, _Loader), 1):
        if document is None:
            continue
        try:
            data = msgspec.json.encode(document)
        except (ValueError, TypeError, RecursionError) as error:
            problem = Problem(f"document {number}", shown(str(error)), "YAML that JSON can express")
            raise BadInput(source, [problem]) from error
        yield number, data


def line_of_field(node: Any, path: str) -> int:
    """The line, from 1, of a field such as `spec.rules[0].target` below a node, or of its closest existing parent."""
    mark, _, _ = _find_field(node, path)
    return int(mark.line) + 1


def node_of_field(node: Any, path: str) -> Any:
    """The node of a field below a node; None if it does not exist."""
    _, value, rest = _find_field(node, path)
    return None if rest else value


def _find_field(node: Any, path: str) -> tuple[Any, Any, str]:
    """The position of a field, or of its closest existing parent, the node of its value, and the rest of the path."""
    mark = node.start_mark
    while path:
        step = _first_path_step(node, path)
        if step is None:
            break
        consumed, mark, node = step
        path = path[consumed:].lstrip(".")
    return mark, node, path


def _first_path_step(node: Any, path: str) -> tuple[int, Any, Any] | None:
    """The length of the first step of a path, the position of its key or item, and its node; None if it is missing."""
    if isinstance(node, yaml.SequenceNode):
        match = _INDEX.match(path)
        if match and int(match[1]) < len(node.value):
            item = node.value[int(match[1])]
            return len(match[0]), item.start_mark, item
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if path == key.value or path.startswith((f"{key.value}.", f"{key.value}[")):
                return len(key.value), key.start_mark, value
    return None
