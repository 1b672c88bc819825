"""Prints policies as YAML with comments."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nodewise.base.errors import visible

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_STRINGS: Final = frozenset({"y", "yes", "n", "no", "true", "false", "on", "off", "null", "nan", "inf"})
"""Plain scalars, in lower case, that parsers of YAML 1.1 or 1.2 do not read as strings."""
_WIDTH: Final = 100
"""Of the text of a comment."""


def format_policy(document: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """One YAML document, with its comments at the top and without `---`."""
    written = (
        line
        for comment in comments
        for line in textwrap.wrap(visible(comment), _WIDTH, break_on_hyphens=False)
    )
    return "\n".join([*(f"# {line}" for line in written), *_lines(document)]) + "\n"


def _lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """The lines of an object or a list. A list is not indented further than its key, as kubectl prints it."""
    if isinstance(value, Mapping):
        for key, field in value.items():
            if _is_nested(field):
                yield f"{scalar(key)}:"
                indent = "" if isinstance(field, list) else "  "
                yield from (f"{indent}{line}" for line in _lines(field))
            else:
                yield f"{scalar(key)}: {scalar(field)}"
    else:
        for entry in value:
            first, *rest = _lines(entry) if _is_nested(entry) else [scalar(entry)]
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def scalar(value: Any) -> str:
    """A number or an empty object as it is; a text in quotes unless every parser reads it as a string."""
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_STRINGS:
        return value
    return f'"{"".join(map(_escape, value))}"'


def _escape(character: str) -> str:
    """A character in a double-quoted scalar (YAML 1.2.2, section 5.7)."""
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 2**16 else f"\\U{ord(character):08x}"
