"""Reads fields of JSON objects of any shape: a missing value, or one of another type, is empty."""

from collections.abc import Mapping
from typing import Any


def get(value: Any, *path: str | int) -> Any:
    """The value at a path of keys and numbers; None if there is none."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def get_text(value: Any, *path: str | int) -> str:
    text = get(value, *path)
    return text if isinstance(text, str) else ""


def get_list(value: Any, *path: str | int) -> list[Any]:
    items = get(value, *path)
    return items if isinstance(items, list) else []


def get_text_list(value: Any, *path: str | int) -> list[str]:
    """The texts of a list; other elements are left out."""
    return [item for item in get_list(value, *path) if isinstance(item, str)]


def get_mapping(value: Any, *path: str | int) -> dict[str, Any]:
    mapping = get(value, *path)
    if not isinstance(mapping, dict):
        return {}
    return {key: item for key, item in mapping.items() if isinstance(key, str)}


def get_text_mapping(value: Any, *path: str | int) -> dict[str, str]:
    """Texts by texts, such as labels and annotations."""
    return {key: item for key, item in get_mapping(value, *path).items() if isinstance(item, str)}


def get_number(value: Any, *path: str | int) -> int | None:
    number = get(value, *path)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def get_condition(value: Any, kind: str) -> Any:
    """A condition of an object's status; None if there is none."""
    conditions = get_list(value, "status", "conditions")
    return next((condition for condition in conditions if get_text(condition, "type") == kind), None)


def get_field_ignoring_case(value: Any, key: str) -> Any:
    """A field by its name in any case: /configz prints kube-scheduler's internal type with the names of Go's fields."""
    if not isinstance(value, Mapping):
        return None
    if key in value:
        return value[key]
    low = key.lower()
    return next((item for name, item in value.items() if isinstance(name, str) and name.lower() == low), None)
