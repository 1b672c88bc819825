"""What objects hold, whatever their shape: what is not there, or is no text where a text is wanted, is empty."""

from collections.abc import Mapping
from typing import Any


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
