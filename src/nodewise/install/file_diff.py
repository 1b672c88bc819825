"""Shows the changes of a file."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodewise.base.errors import visible

_COLOURS: Final = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_END: Final = "\x1b[0m"


def unified_diff(path: str, before: bytes | None, after: bytes | None, *, colour: bool = False) -> str:
    """A unified diff; empty if nothing changes."""
    old, new = (_split_text_lines(data) for data in (before, after))
    names = (path if before is not None else "/dev/null", path if after is not None else "/dev/null")
    if before != after and old == new:
        return f"--- {names[0]}\n+++ {names[1]}\nbytes that are no text differ\n"
    lines = difflib.unified_diff(old, new, *names, lineterm="")
    return "".join(f"{line}\n" for line in (_colour_diff_lines(lines) if colour else lines))


def _split_text_lines(data: bytes | None) -> list[str]:
    lines = (data or b"").decode(errors="replace").split("\n")
    last = lines.pop()
    if last:
        lines += [last, "\\ No newline at end of file"]
    return [visible(line) for line in lines]


def _colour_diff_lines(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        colour = _COLOURS.get(line[:1])
        yield f"{colour}{line}{_END}" if colour else line


def describe_pod_changes(old: Mapping[str, Any], new: Mapping[str, Any], at: int) -> list[str]:
    """The changes of a pod, one line each."""

    def parts(root: Mapping[str, Any]) -> dict[str, Any]:
        spec = root["spec"]
        container = spec["containers"][at]
        lists = {name: container.get(name) or [] for name in ("command", "args", "volumeMounts")}
        return {
            **lists,
            "volumes": spec.get("volumes") or [],
            "dnsPolicy": [spec["dnsPolicy"]] if "dnsPolicy" in spec else [],
            "annotations": [
                f"{key}: {value}"
                for key, value in ((root.get("metadata") or {}).get("annotations") or {}).items()
            ],
        }

    before, after = parts(old), parts(new)
    return [
        f"{name}: {sign} {_shorten_value(item)}"
        for name in before
        for sign, these, others in (("-", before[name], after[name]), ("+", after[name], before[name]))
        for item in these
        if item not in others
    ]


def _shorten_value(item: Any) -> str:
    return str(item.get("name")) if isinstance(item, dict) else str(item)
