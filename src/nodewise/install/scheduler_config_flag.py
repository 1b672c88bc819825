"""Edits the `--config` flag in the command line of kube-scheduler's container."""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodewise.base.errors import BadInput, Problem

_OBSOLETE: Final = {
    "policy-configmap": True,
    "policy-configmap-namespace": True,
    "policy-config-file": True,
    "use-legacy-policy-config": False,
}
"""Policy flags of Kubernetes before 1.23, with which newer versions do not start; whether a value may follow."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "busybox"})


def find_flags_field(container: Mapping[str, Any]) -> str:
    """The field with the flags: `args` if set, because it comes last, else `command`. `BadInput` without either."""
    _check_list_of_strings(container, "command")
    _check_list_of_strings(container, "args")
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not words:
        raise BadInput(
            "not found error",
            [Problem("command", "'command' missing from YAML spec container in manifest file", "")],
        )
    if posixpath.basename(words[0]) in _SHELLS or "-c" in words:
        expected = "kube-scheduler with its flags: what follows a shell's command is not kube-scheduler's"
        remedy = "list kube-scheduler and each flag as an entry of `command`, without a shell"
        raise BadInput("not supported error", [Problem("command", repr(words[0]), expected)], remedy=remedy)
    return "args" if container.get("args") else "command"


def flag_value(container: Mapping[str, Any], name: str) -> str | None:
    """The value of a flag; None if it is not set. The last occurrence counts."""
    value = None
    for words in (container.get("command") or [], container.get("args") or []):
        for at, word in enumerate(words):
            own, equals, text = word.lstrip("-").partition("=")
            if word.startswith("-") and own == name:
                value = text if equals else _flag_argument(words, at)
    return value


def set_config_flag(container: Mapping[str, Any], config: str | None) -> dict[str, list[str]]:
    """`command` and `args` with one `--config`, at the place of the first one, and without policy flags.

    None removes `--config`.
    """
    place = find_flags_field(container)
    lists = {name: list(container[name]) for name in ("command", "args") if container.get(name) is not None}
    edited = {name: _set_config_in_words(words, config) for name, words in lists.items()}
    placed = [name for name, words in edited.items() if f"--config={config}" in words]
    if config is not None and not placed:
        edited[place].append(f"--config={config}")
    for name in placed[1:]:
        edited[name].remove(f"--config={config}")
    return edited


def _set_config_in_words(words: Sequence[str], config: str | None) -> list[str]:
    edited: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.lstrip("-").partition("=")
        is_flag = word.startswith("-") and len(word) - len(word.lstrip("-")) <= 2  # noqa: PLR2004 - dashes
        if not is_flag or (name != "config" and name not in _OBSOLETE):
            edited.append(word)
            continue
        if not equals and _OBSOLETE.get(name, True):
            _flag_argument([word, *left], 0)
            left.pop(0)
        if name == "config" and config is not None and f"--config={config}" not in edited:
            edited.append(f"--config={config}")
    return edited


def _flag_argument(words: Sequence[str], at: int) -> str:
    following = words[at + 1] if at + 1 < len(words) else None
    if following is None or following.startswith("-"):
        raise BadInput("manifest", [Problem("command", f"{words[at]} without a value", f"{words[at]}=VALUE")])
    return following


def _check_list_of_strings(container: Mapping[str, Any], name: str) -> None:
    if name not in container or (name == "args" and container[name] is None):
        return
    words = container[name]
    if not isinstance(words, list):
        actual = f"{name} is not an array type in manifest file"
        raise BadInput("type assertion error", [Problem("", actual, "")])
    if not all(isinstance(word, str) for word in words):
        actual = f"{name} array item is not a string type in manifest file"
        raise BadInput("type assertion error", [Problem("", actual, "")])
