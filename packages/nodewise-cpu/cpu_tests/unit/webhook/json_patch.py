"""Applies a JSON patch (RFC 6902) with the operations that the webhook uses. An invalid patch is an error."""

import copy
from collections.abc import Sequence
from typing import Any


def applied(operations: Sequence[dict[str, Any]], to: Any) -> Any:
    root = {"": copy.deepcopy(to)}
    for operation in operations:
        *way, last = ["", *map(_plain, operation["path"].split("/")[1:])]
        holder = root
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        _apply(operation, holder, last)
    return root[""]


def _plain(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _apply(operation: dict[str, Any], holder: Any, last: str) -> None:
    kind = operation["op"]
    key = last if isinstance(holder, dict) else len(holder) if last == "-" else int(last)
    if kind != "add":
        holder[key]  # the target must exist
    if kind == "remove":
        del holder[key]
    elif kind == "add" and isinstance(holder, list):
        assert key <= len(holder)
        holder.insert(key, copy.deepcopy(operation["value"]))
    else:
        assert kind in ("add", "replace")
        holder[key] = copy.deepcopy(operation["value"])
