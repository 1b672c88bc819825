"""JSON patches (RFC 6902): the fewest operations that make one value of another, as far as that is easy to tell."""

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def difference(before: Any, after: Any, at: str = "") -> Iterator[Operation]:
    """What makes `after` of `before`, in the order in which it is to be done. `at` is a JSON pointer.

    What is the very same value in both is not looked into.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_mappings(before, after, at)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, at)
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": at, "value": after}


def _of_mappings(before: dict[str, Any], after: dict[str, Any], at: str) -> Iterator[Operation]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": f"{at}/{_escaped(key)}"}
    for key, value in after.items():
        path = f"{at}/{_escaped(key)}"
        if key in before:
            yield from difference(before[key], value, path)
        else:
            yield {"op": "add", "path": path, "value": value}


def _of_lists(before: list[Any], after: list[Any], at: str) -> Iterator[Operation]:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        yield from difference(one, other, f"{at}/{index}")
    for index in reversed(range(len(after), len(before))):
        yield {"op": "remove", "path": f"{at}/{index}"}
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{at}/-", "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
