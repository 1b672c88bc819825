"""Reads objects from files, folders and standard input, for commands without a cluster and for serving from files:
JSON or YAML with the YAML semantics of Kubernetes.

They are stored like those of a reflector: `StoreWriter.replace(objects.of(NODES, Node))`.

Kubernetes converts YAML to JSON (sigs.k8s.io/yaml v1.6 on go.yaml.in/yaml v2). So `y` and `on` are true; times, base-60
numbers and keys are strings; and a duplicate key is an error.
"""

import json
import math
import os.path
import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import msgspec
import yaml

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, NodewiseError, Problem, shown
from nodewise.kube.resource_kinds import Resource
from nodewise.kube.store import Key, KubernetesObject

_TYPES: Final = (
    ("null", r"(~|null|Null|NULL|)", "~nN\0"),
    (
        "bool",
        r"([yY]|yes|Yes|YES|true|True|TRUE|on|On|ON|[nN]|no|No|NO|false|False|FALSE|off|Off|OFF)",
        "yYnNtTfFoO",
    ),
    ("int", r"[-+]?(0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
)
"""Types of plain scalars that are not strings: pattern and first characters (yaml v2, resolve.go)."""

_SPACE: Final = re.compile(r"\s*")
_INDEX: Final = re.compile(r"\[(\d+)\]")
"""An item of a list, in a path of fields."""
_JSON_START: Final = (b"{", b"[")


class KubernetesLoader(safe_yaml_loader.Loader):
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


class _ScalarPattern(NamedTuple):
    """Ignores underscores of numbers, except of those that start with a point."""

    pattern: re.Pattern[str]

    def match(self, text: str) -> re.Match[str] | None:
        is_number = text.startswith(tuple("-+0123456789"))
        return self.pattern.fullmatch(text.replace("_", "") if is_number else text)


def _construct_number(loader: KubernetesLoader, node: yaml.ScalarNode) -> int | float | str:
    # PyYAML does not know 0X1F
    lower_case = yaml.ScalarNode(node.tag, node.value.lower(), node.start_mark, node.end_mark)
    value: int | float = safe_yaml_loader.Loader.yaml_constructors[node.tag](loader, lower_case)
    return node.value if value in (math.inf, -math.inf) else value  # 7e1280 is too large for a number


for _name, _form, _starts in _TYPES:
    _starts_list = ["" if start == "\0" else start for start in _starts]
    KubernetesLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", _ScalarPattern(re.compile(_form)), _starts_list
    )
KubernetesLoader.add_constructor(
    "tag:yaml.org,2002:bool", lambda _, node: node.value.lower() in ("y", "yes", "true", "on")
)
KubernetesLoader.add_constructor("tag:yaml.org,2002:int", _construct_number)
KubernetesLoader.add_constructor("tag:yaml.org,2002:float", _construct_number)
KubernetesLoader.add_constructor("tag:yaml.org,2002:merge", lambda _, node: node.value)


class _LoaderOfDuplicates(KubernetesLoader):
    """Loader of documents as pairs of a value, in which the last of duplicate keys counts, and the paths of these."""

    def construct_document(self, node: Any) -> tuple[Any, list[str]]:
        duplicates: list[str] = []
        stack, visited = [(node, "")], set()
        while stack:
            inner, path = stack.pop()
            if isinstance(inner, yaml.SequenceNode) and id(inner) not in visited:
                stack += [(item, f"{path}[{number}]") for number, item in enumerate(inner.value)]
            elif isinstance(inner, yaml.MappingNode) and id(inner) not in visited:
                pairs = {}
                for key, item in inner.value:
                    name = f"{path}.{key.value}".removeprefix(".")
                    duplicates += [name] if name in pairs else []
                    pairs[name] = key, item
                inner.value = list(pairs.values())
                stack += [(item, name) for name, (_, item) in pairs.items()]
            visited.add(id(inner))
        return super().construct_document(node), duplicates


def load_with_duplicate_keys(text: bytes, source: str) -> list[tuple[Any, list[str]]]:
    """The documents of a text in YAML or JSON, each with the paths of its duplicate keys, of which the last one counts.

    `BadInput` as for `split_documents`.
    """
    is_json = text.lstrip()[:1] in _JSON_START
    # YAML does not allow all tabs that JSON does, where they are between values only
    documents = safe_yaml_loader.load_all(
        text.replace(b"\t", b" ") if is_json else text, source, _LoaderOfDuplicates
    )
    return [(value, duplicates) for value, duplicates in documents if value is not None]


def split_documents(text: bytes, source: str) -> Iterator[tuple[int, bytes]]:
    """The documents of a text as JSON, each with its number from 1. Empty documents are left out.

    `BadInput` names `source`, and line and column.
    """
    if text.lstrip()[:1] not in _JSON_START or b"\n---" in text:
        yield from _split_yaml(text, source)
        return
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        yield from _split_json(text, source)
    else:
        yield 1, text


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
        try:  # YAML in flow style such as `{kind: Node}`; if it is invalid, the error is that of the JSON parser
            objects = list(_split_yaml(text, source))
        except BadInput as no_yaml:
            raise BadInput(source, [problem], remedy=no_yaml.remedy) from no_yaml
        yield from objects


def _split_yaml(text: bytes, source: str) -> Iterator[tuple[int, bytes]]:
    for number, document in enumerate(safe_yaml_loader.load_all(text, source, KubernetesLoader), 1):
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


T = TypeVar("T", bound=KubernetesObject)

Kind = tuple[str, str]
"""API group, without the version, and kind: `("", "Node")`, `("telemetry.intel.com", "TASPolicy")`."""

SUFFIXES: Final = (".yaml", ".yml", ".json")
DEFAULT_NAMESPACE: Final = "default"


STDIN: Final = "standard input"
"""The source of objects that come from standard input."""


class ObjectLocation(NamedTuple):
    """The location of an object: `nodes.yaml, document 2, items[3]`."""

    source: str
    document: int
    """The number of the document in the source, from 1."""
    items: tuple[int, ...] = ()
    """The position in each List around the object, from 0, the outermost List first."""

    @property
    def location_within_source(self) -> str:
        """The location without the source."""
        return ", ".join([f"document {self.document}", *(f"items[{position}]" for position in self.items)])

    def __str__(self) -> str:
        return f"{self.source}, {self.location_within_source}"


class FileObject(NamedTuple):
    """An object as JSON, and its location."""

    location: ObjectLocation
    data: bytes

    @property
    def where(self) -> str:
        return str(self.location)


class _TypeMeta(msgspec.Struct, frozen=True, rename={"api_version": "apiVersion"}):
    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_TYPE_META: Final = msgspec.json.Decoder(_TypeMeta)


class FileObjects:
    """Objects by kind, in the order of the files."""

    def __init__(self, entries: Mapping[Kind, list[FileObject]]) -> None:
        self._entries = entries

    def kinds(self) -> list[Kind]:
        return list(self._entries)

    def entries(self, group: str, kind: str) -> list[FileObject]:
        """All objects of a kind as JSON; an empty list if there are none."""
        return list(self._entries.get((group, kind), ()))

    def of(self, resource: Resource, type_: type[T]) -> list[T]:
        """All objects of a kind, decoded. `BadInput` names every invalid and every duplicate object.

        A namespaced object without a namespace is in `default`, as with kubectl.
        """
        decoder = msgspec.json.Decoder(type_)
        objects: dict[Key, T] = {}
        problems = []
        for entry in self._entries.get((resource.group, resource.kind), ()):
            try:
                item = _with_default_namespace(decoder.decode(entry.data), resource)
            except msgspec.MsgspecError as error:
                problems.append(_problem_of_msgspec_error(entry.where, error))
                continue
            key = (item.metadata.namespace, item.metadata.name)
            if key in objects:
                problems.append(Problem(entry.where, f"{resource.kind} {key[1]} occurs twice", "one of each"))
            objects[key] = item
        if problems:
            raise BadInput(f"objects of kind {resource.kind}", problems)
        return list(objects.values())


def read(paths: Iterable[str | Path], stdin: BinaryIO | None = None) -> FileObjects:
    """All objects in these files and folders (*.yaml, *.yml and *.json) and, for `-`, in standard input.

    `BadInput` names all files and documents that cannot be read.
    """
    entries: dict[Kind, list[FileObject]] = {}
    problems: list[Problem] = []
    remedy = ""
    for source, text in _read_texts(paths, stdin, problems):
        try:
            for number, data in split_documents(text, source):
                document = FileObject(ObjectLocation(source, number), data)
                for kind, entry in _expand_list_object(document, _TypeMeta()):
                    entries.setdefault(kind, []).append(entry)
        except NodewiseError as error:
            problems += [
                Problem(f"{source}, {problem.field}".rstrip(", "), problem.found, problem.expected)
                for problem in error.problems
            ]
            remedy = remedy or error.remedy
    if problems:
        raise BadInput("objects from files", problems, remedy=remedy)
    return FileObjects(entries)


def _read_texts(
    paths: Iterable[str | Path], stdin: BinaryIO | None, problems: list[Problem]
) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if str(path) == "-":
            yield STDIN, (stdin or sys.stdin.buffer).read()
            continue
        for file in list_files(Path(path), problems):
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                problems.append(Problem(str(file), error.strerror or str(error), "a file that can be read"))


def list_files(path: Path, problems: list[Problem]) -> list[Path]:
    """The file, or the files of a folder that `read` reads."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises OSError if a name is too long
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not files:
        problems.append(Problem(str(path), "a folder without such files", f"files in {', '.join(SUFFIXES)}"))
    return files


def _expand_list_object(entry: FileObject, around: _TypeMeta) -> Iterator[tuple[Kind, FileObject]]:
    """The object, or the objects of a list. Items of a `NodeList` need no apiVersion and kind."""
    try:
        head = _TYPE_META.decode(entry.data)
    except (msgspec.MsgspecError, RecursionError) as error:
        where = entry.location.location_within_source
        problem = (
            Problem(where, "a list", "an object: a document for each, or one of the kind List with `items`")
            if entry.data.startswith(b"[")
            else _problem_of_msgspec_error(where, error)
        )
        raise BadInput(entry.location.source, [problem]) from error
    api_version = head.api_version or around.api_version
    kind = head.kind or around.kind.removesuffix("List")
    if not api_version or not kind:
        actual = shown(entry.data[:60].decode(errors="replace"))
        problem = Problem(entry.location.location_within_source, actual, "an object with apiVersion and kind")
        raise BadInput(entry.location.source, [problem])
    if kind.endswith("List") and head.items is not None:
        whole = msgspec.structs.replace(head, api_version=api_version, kind=kind)
        for position, item in enumerate(head.items):
            location = entry.location._replace(items=(*entry.location.items, position))
            yield from _expand_list_object(FileObject(location, bytes(item)), whole)
        return
    group = api_version.rpartition("/")[0]
    yield (group, kind), entry


def _with_default_namespace(item: T, resource: Resource) -> T:
    if not resource.namespaced or item.metadata.namespace:
        return item
    inside: Any = msgspec.structs.replace(item.metadata, namespace=DEFAULT_NAMESPACE)  # type: ignore[type-var]
    return msgspec.structs.replace(item, metadata=inside)  # type: ignore[type-var]


def _problem_of_msgspec_error(where: str, error: Exception) -> Problem:
    """The problem of an error of msgspec, `Expected X, got Y - at $.path`."""
    text, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    expected, _, value = text.removeprefix("Expected ").partition(", got ")
    at = f"{where}: {field}" if field else where
    return Problem(at, value, expected) if value else Problem(at, text, "")


class ObjectLineFinder:
    """Finds the lines of fields in files, which it reads again for that."""

    def __init__(self, stdin: bytes = b"") -> None:
        self._stdin = stdin
        self._documents: dict[str, list[Any]] = {}

    def line(self, location: ObjectLocation, field: str) -> int:
        """The line of an object's field; 0 if it is not known."""
        source, document, items = location
        if source not in self._documents:
            text = self._stdin if source == STDIN else Path(source).read_bytes()
            try:
                self._documents[source] = safe_yaml_loader.compose_all(text, source)
            except BadInput:  # several JSON documents in a row, for example, which are no YAML together
                self._documents[source] = []
        if document > len(self._documents[source]):
            return 0
        path = ".".join([*(f"items[{position}]" for position in items), field])
        return line_of_field(self._documents[source][document - 1], path)
