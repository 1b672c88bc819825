"""A partial object merged into a whole one, so that merging it once more changes nothing.

What is unchanged is the very same value afterwards, so that nobody has to look for the difference in all of it.
"""

from collections.abc import Mapping
from typing import Any, Final

from nodewise.errors import BadSettings, Problem, shown

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
}
"""What tells the entries of a list apart, by the list's field; of all others it is their name."""


def merge(held: Any, given: Any, path: str = "") -> Any:
    """`held` with what `given` says besides.

    Mappings are merged key by key. To a list what it lacks is appended: an entry of the same name stays as it is, and
    one without a name is not appended twice. Any other value is replaced; a null says nothing. BadSettings, which
    names the `path`, where `given` has something else for a mapping.
    """
    if given is None:
        return held
    if isinstance(held, dict):
        return _merge_mapping(held, given, path)
    if isinstance(held, list):
        return _merge_list(held, given if isinstance(given, list) else [given], path)
    if isinstance(given, dict):
        return _merge_mapping({}, given, path)
    if isinstance(given, list):
        return _merge_list([], given, path)
    return held if type(held) is type(given) and held == given else given


def _merge_mapping(held: dict[str, Any], given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadSettings("mutations cannot be merged", [Problem(path, shown(given), "a mapping")])
    merged = {
        key: merge(held.get(key), value, f"{path}.{key}" if path else key)
        for key, value in given.items()
        if value is not None
    }
    if all(key in held and held[key] is value for key, value in merged.items()):
        return held
    return held | merged


def _merge_list(held: list[Any], given: list[Any], path: str) -> list[Any]:
    keys = _KEYS.get(path.rpartition(".")[2], ("name",))
    merged = held
    for entry in given:
        wanted = _identity(entry, keys)
        if not any(_identity(one, keys) == wanted for one in merged):
            merged = [*merged, entry]
    return merged


def _identity(entry: Any, keys: tuple[str, ...]) -> tuple[bool, Any]:
    if isinstance(entry, dict) and keys[0] in entry:
        return True, tuple(entry.get(key) for key in keys)
    return False, entry
