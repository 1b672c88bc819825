"""Edits YAML text with minimal changes: comments, quotes, order and line ends are preserved.

A text is parsed into a plain value, as Kubernetes reads it. The caller creates the expected value. `rewrite_document`
replaces the few pieces of text that differ, parses the result again and compares it with the expected value. Edits
that are not possible in this way are refused.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

import yaml

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, Problem
from nodewise.kube.object_files import KubernetesLoader

MAX_BYTES: Final = 2**20
"""The manifests of static pods that the kubelet reads are much smaller."""
_SYSTEMD_UNIT: Final = re.compile(rb"^\[(?:Unit|Service)\]\s*$", re.MULTILINE)
_SYSTEMD_REMEDY: Final = (
    "the file is a unit of systemd: name in its ExecStart, with --config, a file with what "
    "`nodewise configure render-scheduler` prints"
)
_BYTE_ORDER_MARK: Final = "\ufeff"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./=@:+-]+")


class _Loader(KubernetesLoader):
    """Reads values as Kubernetes does. Keys have the types of values, so a key that is no text is not overlooked."""

    construct_mapping = safe_yaml_loader.Loader.construct_mapping


class Document(NamedTuple):
    """A text with exactly one YAML document."""

    name: str
    text: str
    node: yaml.Node
    value: Any

    @property
    def line_ending(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"


class Edit(NamedTuple):
    """A piece of text, by its offsets, and its replacement."""

    start: int
    end: int
    text: str


def parse_document(data: bytes, name: str) -> Document:
    """The only document of a file. `BadInput` for none or several documents, duplicate keys, or invalid YAML."""
    if len(data) > MAX_BYTES:
        raise _parse_error(name, f"{len(data)} bytes", f"at most {MAX_BYTES}")
    try:
        nodes = safe_yaml_loader.compose_all(data, name)
        # parsed twice, because the construction of values expands merge keys in its nodes
        values = list(safe_yaml_loader.load_all(data, name, _Loader))
    except BadInput as error:
        problem = error.problems[0]
        place = problem.field.removeprefix("document 1").removeprefix(", ")
        remedy = safe_yaml_loader.template_remedy(data)
        if _SYSTEMD_UNIT.search(data):
            remedy = _SYSTEMD_REMEDY
        place_and_problem = f"{place}: {problem.found}" if place else problem.found
        raise _parse_error(name, place_and_problem, "", remedy) from error
    if len(values) != 1:
        if not values:
            raise _parse_error(name, "an empty file", "one document")
        raise _parse_error(name, f"{len(values)} documents", "one", "put each object into a file of its own")
    return Document(name, data.decode(), nodes[0], _copy_without_aliases(values[0]))


def rewrite_document(document: Document, expected: Any) -> bytes:
    """The text with the expected value, with as few changes as possible. `BadInput` if that is not possible."""
    edits = sorted(_node_edits(document, document.node, document.value, expected))
    text, at, pieces = document.text, 0, []
    for edit in edits:
        if edit.start < at:
            _raise_yaml_edit_error(document)
        pieces += [text[at : edit.start], edit.text]
        at = edit.end
    text_after = "".join([*pieces, text[at:]]).encode()
    try:
        same = exact_comparison_text(
            parse_document(text_after, document.name).value
        ) == exact_comparison_text(expected)
    except BadInput:
        same = False
    return text_after if same else _raise_yaml_edit_error(document)


def exact_comparison_text(value: Any) -> str:
    """A text that is equal for equal values only: 1 differs from true, and the order of keys does not count."""
    if isinstance(value, dict):
        pairs = sorted(f"{key!r}:{exact_comparison_text(item)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    return f"[{','.join(map(exact_comparison_text, value))}]" if isinstance(value, list) else repr(value)


def _is_equal(first: Any, second: Any) -> bool:
    return exact_comparison_text(first) == exact_comparison_text(second)


def _node_edits(document: Document, node: yaml.Node, old: Any, new: Any) -> Iterator[Edit]:
    if _is_equal(old, new):
        return
    if isinstance(node, yaml.MappingNode) and isinstance(old, dict) and isinstance(new, dict) and new:
        yield from _mapping_edits(document, node, old, new)
    elif isinstance(node, yaml.SequenceNode) and isinstance(old, list) and isinstance(new, list) and new:
        yield from _sequence_edits(document, node, old, new)
    else:
        start, end = node.start_mark.index, _node_end(document.text, node)
        yield Edit(start, end, (" " if start == end else "") + _format_flow(new, plain=True))


def _mapping_edits(  # complexity: block and flow style in one order
    document: Document, node: yaml.MappingNode, old: dict[Any, Any], new: dict[Any, Any]
) -> Iterator[Edit]:
    entries = {key.value: (key, value) for key, value in node.value}
    names = list(entries)
    spans = [(key.start_mark.index, _entry_end(document.text, key, value)) for key, value in entries.values()]
    deleted = [at for at, name in enumerate(names) if name in old.keys() - new.keys()]
    added = {name: item for name, item in new.items() if name not in old}
    for name in new.keys() - added.keys():
        if not _is_equal(old[name], new[name]):
            _, value = entries.get(name) or _raise_yaml_edit_error(document)
            yield from _node_edits(document, value, old[name], new[name])
    if not entries:
        yield Edit(node.start_mark.index, node.end_mark.index, _format_flow(new))
    elif node.flow_style:
        yield from _flow_deletions(spans, deleted)
        text = "".join(f", {json.dumps(name)}: {_format_flow(item)}" for name, item in added.items())
        yield Edit(spans[-1][1], spans[-1][1], text)
    else:
        yield from _block_deletions(document, spans, deleted)
        column = node.value[0][0].start_mark.column
        for name, item in sorted(added.items()):
            lines = _entry_lines(name, item, column)
            yield _line_insertion(document, spans, _key_position(names, name), lines)


def _block_deletions(
    document: Document, spans: Sequence[tuple[int, int]], deleted: Sequence[int]
) -> Iterator[Edit]:
    """Delete lines of entries. The first entry of a list item is beside the dash, where the next one replaces it."""
    kept = [at for at in range(len(spans)) if at not in deleted]
    is_beside_dash = _line_start(document, spans[0][0]) is None
    for at in deleted:
        start, end = spans[at]
        is_replaced = is_beside_dash and bool(kept) and at < kept[0]
        if is_replaced and "#" not in document.text[end : spans[at + 1][0]]:
            yield Edit(start, spans[at + 1][0], "")
        else:
            yield _line_deletion(document, start, end)


def _key_position(names: list[str], name: str) -> int:
    """The index for a new key: in order if the keys are sorted, else at the end."""
    return sum(other < name for other in names) if names == sorted(names) else len(names)


def _sequence_edits(
    document: Document, node: yaml.SequenceNode, old: list[Any], new: list[Any]
) -> Iterator[Edit]:
    spans = _sequence_item_spans(document, node)
    old_texts, new_texts = ([exact_comparison_text(item) for item in items] for items in (old, new))
    matcher = difflib.SequenceMatcher(None, old_texts, new_texts, False)
    for what, start, end, first, last in matcher.get_opcodes():
        if what == "equal":
            continue
        kept = min(end - start, last - first)
        for at in range(kept):
            yield from _node_edits(document, node.value[start + at], old[start + at], new[first + at])
        deleted, added = range(start + kept, end), new[first + kept : last]
        if node.flow_style or not spans:
            yield from _flow_deletions(spans, deleted)
            yield from _flow_item_insertion(node, spans, end, added)
        else:
            yield from (_line_deletion(document, *spans[at]) for at in deleted)
            if lines := [line for item in added for line in _item_lines(item, node.start_mark.column)]:
                yield _line_insertion(document, spans, end, lines)


def _flow_item_insertion(
    node: yaml.SequenceNode, spans: Sequence[tuple[int, int]], at: int, added: Sequence[Any]
) -> Iterator[Edit]:
    text = ", ".join(map(_format_flow, added))
    if not text:
        return
    if not spans:
        yield Edit(node.start_mark.index, node.end_mark.index, f"[{text}]")
    elif at:
        yield Edit(spans[at - 1][1], spans[at - 1][1], f", {text}")
    else:
        yield Edit(spans[0][0], spans[0][0], f"{text}, ")


def _sequence_item_spans(document: Document, node: yaml.SequenceNode) -> list[tuple[int, int]]:
    ends = [_node_end(document.text, item) for item in node.value]
    if node.flow_style:
        return [(item.start_mark.index, end) for item, end in zip(node.value, ends, strict=True)]
    starts, column = [], node.start_mark.column
    dash = re.compile(rf"^ {{{column}}}-(?=\s|$)", re.MULTILINE)
    for at, item in enumerate(node.value):
        if at == 0:
            starts.append(node.start_mark.index)
            continue
        dashes = list(dash.finditer(document.text, ends[at - 1], item.start_mark.index + 1))
        if not dashes:
            _raise_yaml_edit_error(document)
        starts.append(dashes[-1].end() - 1)
    if document.text[node.start_mark.index : node.start_mark.index + 1] != "-":
        _raise_yaml_edit_error(document)
    return list(zip(starts, ends, strict=True))


def _line_deletion(document: Document, start: int, end: int) -> Edit:
    """Delete whole lines, including a comment at the end of the last one."""
    first = _line_start(document, start)
    if first is None:
        _raise_yaml_edit_error(document)
    return Edit(first, _line_end(document.text, end), "")


def _line_insertion(
    document: Document, spans: Sequence[tuple[int, int]], at: int, lines: Sequence[str]
) -> Edit:
    text = "".join(line + document.line_ending for line in lines)
    before = _line_start(document, spans[0][0]) if at == 0 else None
    if before is not None:
        return Edit(before, before, text)
    place = _line_end(document.text, spans[max(at, 1) - 1][1])
    if not document.text[:place].endswith("\n"):
        text = document.line_ending + text.removesuffix(document.line_ending)
    return Edit(place, place, text)


def _line_start(document: Document, index: int) -> int | None:
    start = document.text.rfind("\n", 0, index) + 1
    return None if document.text[start:index].strip(" " + _BYTE_ORDER_MARK) else start


def _line_end(text: str, index: int) -> int:
    line_feed = text.find("\n", index)
    return len(text) if line_feed < 0 else line_feed + 1


def _flow_deletions(spans: Sequence[tuple[int, int]], deleted: Sequence[int]) -> Iterator[Edit]:
    kept = [at for at in range(len(spans)) if at not in deleted]
    for at in deleted:
        if kept and at < kept[0]:
            yield Edit(spans[at][0], spans[at + 1][0], "")
        else:
            yield Edit(spans[at - 1][1] if at else spans[at][0], spans[at][1], "")


def _entry_end(text: str, key: yaml.Node, value: yaml.Node) -> int:
    """The end of an entry. The position of an alias is unknown; it is beside its key."""
    return _node_end(text, value) if value.start_mark.index >= key.end_mark.index else key.end_mark.index


def _node_end(text: str, node: yaml.Node) -> int:
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _entry_end(text, *node.value[-1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return max(_node_end(text, node.value[-1]), node.start_mark.index)
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip())


def _entry_lines(name: str, value: Any, column: int) -> list[str]:
    head = " " * column + _format_flow(name, plain=True) + ":"
    if isinstance(value, dict) and value:
        return [head, *(line for key, item in value.items() for line in _entry_lines(key, item, column + 2))]
    if isinstance(value, list) and value:
        return [head, *(line for item in value for line in _item_lines(item, column))]
    return [f"{head} {_format_flow(value, plain=True)}"]


def _item_lines(value: Any, column: int) -> list[str]:
    lines = [_format_flow(value, plain=True)]
    if isinstance(value, dict) and value:
        lines = [line for key, item in value.items() for line in _entry_lines(key, item, column + 2)]
    return [" " * column + "- " + lines[0].lstrip(), *lines[1:]]


def _format_flow(value: Any, *, plain: bool = False) -> str:
    """A value as JSON, which is valid YAML everywhere; strings without quotes if `plain` and if the value stays the
    same.
    """
    if plain and isinstance(value, str) and _PLAIN.fullmatch(value) and not value.endswith(":"):
        with suppress(BadInput):
            if [*safe_yaml_loader.load_all(f"- {value}", "", _Loader)] == [[value]]:
                return value
    return json.dumps(value, default=str)


def _copy_without_aliases(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy_without_aliases(item) for key, item in value.items()}
    return [_copy_without_aliases(item) for item in value] if isinstance(value, list) else value


def _raise_yaml_edit_error(document: Document) -> NoReturn:
    raise BadInput(
        f"{document.name} cannot be changed without changing what it says elsewhere",
        remedy="write it without anchors, merge keys and several entries on a line",
    )


def _parse_error(name: str, actual: str, expected: str, remedy: str = "") -> BadInput:
    problems = [Problem("yaml", actual, expected)]
    return BadInput(f'unmarshaling of "{name}" failed', problems, remedy=remedy)
