"""Operations on JSON objects: merging a partial object into a whole one, and the JSON patch between two (RFC 6902).

Merging is idempotent. Parts that do not change are the same Python objects afterwards, so that a patch can be found
without comparing them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodewise.base.errors import BadSettings, Problem, shown

Operation = dict[str, Any]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
}
"""The fields that identify the entries of a list, by the list's field; entries of other lists have a name."""


def merge_json(whole: Any, partial: Any, path: str = "") -> Any:
    """`whole` with the content of `partial`.

    Mappings are merged key by key. Entries that a list lacks are appended: an entry with the same name stays as it is,
    and an entry without a name is not appended twice. Any other value is replaced; null has no effect. BadSettings,
    which names the `path`, if `partial` has another value in the place of a mapping.
    """
    if partial is None:
        return whole
    if isinstance(whole, dict):
        return _merge_mapping(whole, partial, path)
    if isinstance(whole, list):
        return _merge_list(whole, partial if isinstance(partial, list) else [partial], path)
    if isinstance(partial, dict):
        return _merge_mapping({}, partial, path)
    if isinstance(partial, list):
        return _merge_list([], partial, path)
    return whole if type(whole) is type(partial) and whole == partial else partial


def _merge_mapping(whole: dict[str, Any], partial: Any, path: str) -> dict[str, Any]:
    if not isinstance(partial, dict):
        raise BadSettings("mutations cannot be merged", [Problem(path, shown(partial), "a mapping")])
    merged = {
        key: merge_json(whole.get(key), value, f"{path}.{key}" if path else key)
        for key, value in partial.items()
        if value is not None
    }
    if all(key in whole and whole[key] is value for key, value in merged.items()):
        return whole
    return whole | merged


def _merge_list(whole: list[Any], partial: list[Any], path: str) -> list[Any]:
    keys = _KEYS.get(path.rpartition(".")[2], ("name",))
    merged = whole
    for entry in partial:
        identity = _merge_key_values(entry, keys)
        if not any(_merge_key_values(other, keys) == identity for other in merged):
            merged = [*merged, entry]
    return merged


def _merge_key_values(entry: Any, keys: tuple[str, ...]) -> tuple[bool, Any]:
    if isinstance(entry, dict) and keys[0] in entry:
        return True, tuple(entry.get(key) for key in keys)
    return False, entry


def json_patch(before: Any, after: Any, at: str = "") -> Iterator[Operation]:
    """The operations that change `before` into `after`, in their order. `at` is a JSON pointer.

    A value that is the same Python object in both is not compared.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _patch_mapping(before, after, at)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _patch_list(before, after, at)
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": at, "value": after}


def _patch_mapping(before: dict[str, Any], after: dict[str, Any], at: str) -> Iterator[Operation]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": f"{at}/{_escape_pointer_token(key)}"}
    for key, value in after.items():
        path = f"{at}/{_escape_pointer_token(key)}"
        if key in before:
            yield from json_patch(before[key], value, path)
        else:
            yield {"op": "add", "path": path, "value": value}


def _patch_list(before: list[Any], after: list[Any], at: str) -> Iterator[Operation]:
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from json_patch(old, new, f"{at}/{index}")
    # from the end, so that no index changes before it is used
    for index in reversed(range(len(after), len(before))):
        yield {"op": "remove", "path": f"{at}/{index}"}
    for value in after[len(before) :]:
        yield {"op": "add", "path": f"{at}/-", "value": value}


def _escape_pointer_token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
