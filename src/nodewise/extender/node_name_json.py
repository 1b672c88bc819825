"""Lists and maps of node names as JSON: responses have thousands of entries.

If the index has a table of its names, numpy writes all entries at once, padded with spaces to one width; else they are
written one by one.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.metrics import node_index
from nodewise.metrics.node_index import Names, NameTable, Numbers

_HOST: Final = b'{"Host":'
_SCORES: Final = [b'"Score":%d}' % score for score in range(MAX_SCORE + 1)]
_WIDTH: Final = max(map(len, _SCORES)) + 1
_SCORE_ROWS: Final = np.array([score.ljust(_WIDTH - 1) + b"," for score in _SCORES]).view(f"V{_WIDTH}")
_COLON: Final = ord(":")


def _encoded_name_table(names: Names) -> NameTable | None:
    """The table of the index; None if it lacks one, or one of the names."""
    return None if names.strange or not len(names) else names.index.table


def _quote_names_at_positions(names: Names, positions: Numbers) -> list[bytes]:
    return [b'"%b"' % name for name in node_index.encode_names(names[positions].tolist())]


def encode_name_list(names: Names, positions: Numbers) -> bytes:
    """`["a","b"]` for the names at these positions."""
    table = _encoded_name_table(names)
    if table is None:
        return b"[" + b",".join(_quote_names_at_positions(names, positions)) + b"]"
    text = table.text(names.numbers[positions])
    return b"".join((b"[", text.view(np.uint8).data[:-1], b"]"))


def encode_name_map(names: Names, positions: Numbers, value: bytes) -> bytes:
    """`"a":value,"b":value` without braces; `value` is JSON. At least one position."""
    table = _encoded_name_table(names)
    if table is None:
        return (b":" + value + b",").join(_quote_names_at_positions(names, positions)) + b":" + value
    text = table.text(names.numbers[positions])
    text.view(np.uint8).reshape(len(text), -1)[:, -1] = _COLON
    rows = np.empty(len(text), [("name", text.dtype), ("value", f"V{len(value) + 1}")])
    rows["name"] = text
    rows["value"] = np.void(value + b",")
    return bytes(rows.view(np.uint8).data[:-1])


def encode_host_priority_list(names: Names, points: NDArray[np.int64]) -> bytes:
    """A HostPriorityList: `[{"Host":"a","Score":10},{"Host":"b","Score":0}]` with a newline."""
    table = _encoded_name_table(names)
    if table is None:
        quoted = _quote_names_at_positions(names, np.arange(len(names)))
        parts = [
            _HOST + name + b"," + _SCORES[score] for name, score in zip(quoted, points.tolist(), strict=True)
        ]
        return b"[" + b",".join(parts) + b"]\n"
    text = table.text(names.numbers)
    rows = np.empty(
        len(text), [("host", f"V{len(_HOST)}"), ("name", text.dtype), ("score", _SCORE_ROWS.dtype)]
    )
    rows["host"] = np.void(_HOST)
    rows["name"] = text
    rows["score"] = _SCORE_ROWS.take(points)
    return b"".join((b"[", rows.view(np.uint8).data[:-1], b"]\n"))
