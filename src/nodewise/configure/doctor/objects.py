"""What objects hold, whatever their shape: what is not there, or is no text where a text is wanted, is empty."""

import re
from collections.abc import Mapping
from typing import Any, Final

_LONGEST: Final = 300
_ODD: Final = re.compile(
    r"[^\S ]|[^\x20-\x7e\u00a1-\u1fff\u2010-\u2027\u2030-\u205e\u2070-\ud7ff\uf900-\ufffd]"
)
"""What a terminal may obey instead of showing it, and what turns the direction of writing."""


def at(value: Any, *path: str | int) -> Any:
    """What stands at a path of keys and numbers; None where nothing does."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def text(value: Any, *path: str | int) -> str:
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def items(value: Any, *path: str | int) -> list[Any]:
    found = at(value, *path)
    return found if isinstance(found, list) else []


def texts(value: Any, *path: str | int) -> list[str]:
    """The texts of a list; what is none is left out."""
    return [one for one in items(value, *path) if isinstance(one, str)]


def fields(value: Any, *path: str | int) -> dict[str, Any]:
    found = at(value, *path)
    return {key: one for key, one in found.items() if isinstance(key, str)} if isinstance(found, dict) else {}


def labels(value: Any, *path: str | int) -> dict[str, str]:
    """Texts by texts, such as labels and annotations."""
    return {key: one for key, one in fields(value, *path).items() if isinstance(one, str)}


def number(value: Any, *path: str | int) -> int | None:
    found = at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def named(value: Any, key: str) -> Any:
    """A field by its name in any case: /configz gives kube-scheduler's internal form, whose names are Go's."""
    if not isinstance(value, Mapping):
        return None
    if key in value:
        return value[key]
    low = key.lower()
    return next((one for name, one in value.items() if isinstance(name, str) and name.lower() == low), None)


def short(seen: str, longest: int = _LONGEST) -> str:
    """As much of a text of somebody else's as people read, in one line and without what a terminal obeys."""
    line = _ODD.sub("�", " ".join(seen[: 4 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
