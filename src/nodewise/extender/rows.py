"""Names with something to say about each, as JSON text: answers have thousands of such rows.

Where the index has a table of its names, all rows are made at once by numpy, each as wide as the others and filled up
with spaces; else one by one.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.metrics import nametable
from nodewise.metrics.index import Names
from nodewise.metrics.nametable import NameTable, Numbers

_HOST: Final = b'{"Host":'
_SCORES: Final = [b'"Score":%d}' % score for score in range(MAX_SCORE + 1)]
_WIDTH: Final = max(map(len, _SCORES)) + 1
_SCORE_ROWS: Final = np.array([score.ljust(_WIDTH - 1) + b"," for score in _SCORES]).view(f"V{_WIDTH}")
_COLON: Final = ord(":")


def _table(names: Names) -> NameTable | None:
    """What has all of the names, if there is such a table."""
    return None if names.strange or not len(names) else names.index.table


def _quoted(names: Names, positions: Numbers) -> list[bytes]:
    return [b'"%b"' % name for name in nametable.encoded(names[positions].tolist())]


def listed(names: Names, positions: Numbers) -> bytes:
    """`["a","b"]`, of the names at some positions."""
    table = _table(names)
    if table is None:
        return b"[" + b",".join(_quoted(names, positions)) + b"]"
    text = table.text(names.numbers[positions])
    return b"".join((b"[", text.view(np.uint8).data[:-1], b"]"))


def mapped(names: Names, positions: Numbers, said: bytes) -> bytes:
    """`"a":said,"b":said` without braces, `said` being JSON. At least one position."""
    table = _table(names)
    if table is None:
        return (b":" + said + b",").join(_quoted(names, positions)) + b":" + said
    text = table.text(names.numbers[positions])
    text.view(np.uint8).reshape(len(text), -1)[:, -1] = _COLON
    rows = np.empty(len(text), [("name", text.dtype), ("said", f"V{len(said) + 1}")])
    rows["name"] = text
    rows["said"] = np.void(said + b",")
    return bytes(rows.view(np.uint8).data[:-1])


def scored(names: Names, points: NDArray[np.int64]) -> bytes:
    """A HostPriorityList: `[{"Host":"a","Score":10},{"Host":"b","Score":0}]` and the end of the line."""
    table = _table(names)
    if table is None:
        quoted = _quoted(names, np.arange(len(names)))
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
