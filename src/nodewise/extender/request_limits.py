"""Limits of what a request holds, checked before it is decoded.

A byte of JSON can cost a hundred bytes of objects: 256 MiB of `0,` would take 10 GB and block the event loop for half a
minute. Requests of kube-scheduler stay far below the limits; a request over a limit is refused after one pass over its
bytes.
"""

import random
import re
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.base.errors import UNREADABLE, BadInput, Problem

MOST_CANDIDATES: Final = 2**18
"""Nodes of one request. Kubernetes supports 5,000."""
_SMALL_BYTES: Final = 2**20
_MOST_POD_BYTES: Final = 2**22
"""Of the pod; etcd accepts 1.5 MiB."""
MOST_VALUES: Final = 3 * 2**19
"""Commas in a body, about as many as values, up to which the body is decoded without further checks. 5,000 whole nodes
of 10 kB have little more than half of it.
"""
_MOST_VICTIMS: Final = 2**22
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)").search
_COMMA, _QUOTE = b',"'
_PIECE_BYTES: Final = 2**18
_SAMPLED: Final = 8
"""An estimate counts one of this many parts of each piece."""


class _Metadata(msgspec.Struct, gc=False):
    name: str


class NamedNode(msgspec.Struct, gc=False):
    """The field of a whole node that is used."""

    metadata: _Metadata


class _NodeList(msgspec.Struct):
    items: list[NamedNode] | None = None


class _Outline(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw = msgspec.Raw()
    nodes: _NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw()


_outline: Final = msgspec.json.Decoder(_Outline).decode


def check_candidate_count_and_pod_size(body: bytes) -> None:
    """`BadInput` for a filter or prioritize request of more than `MOST_CANDIDATES`, or with a pod that is too large."""
    if len(body) <= _SMALL_BYTES or _estimate_byte_count(body, _COMMA) <= MOST_VALUES:
        return
    try:
        outline = _decode_outline(body)
    except UNREADABLE as error:
        text, _, path = str(error).partition(" - at `$.")
        raise _request_limit_error(path.rstrip("`") or "body", text, "an ExtenderArgs object") from error
    check_node_count(len(outline.nodes.items or ()) if outline.nodes else 0)
    check_name_count(bytes(outline.node_names))
    if len(outline.pod) > _MOST_POD_BYTES:
        raise _request_limit_error("Pod", f"{len(outline.pod)} bytes", f"at most {_MOST_POD_BYTES}")


def _decode_outline(body: bytes) -> _Outline:
    """The outline of the first JSON value; Go ignores what follows it."""
    try:
        return _outline(body)
    except UNREADABLE as error:
        end = find_end_of_value(error, body)
        if end is None:
            raise
        return _outline(body[:end])


def find_end_of_value(error: Exception, body: bytes) -> int | None:
    """The end of the first JSON value of the body, if the error is about bytes after it; else None."""
    match = _TRAILING(str(error))
    # msgspec counts the byte that it did not expect
    return int(match[1]) - 1 if match and 0 < int(match[1]) <= len(body) else None


def check_lenient_decoding_size(body: bytes, most_bytes: int) -> None:
    """`BadInput` for a body that is too large for lenient decoding, which costs a pass over it and a copy for each
    level of keys, and an object for each key.
    """
    hint = "a smaller body, or all keys spelt as kube-scheduler spells them"
    if len(body) > most_bytes:
        raise _request_limit_error(
            "body", f"{len(body)} bytes and a key that is missing or in other case", hint
        )
    if len(body) > _SMALL_BYTES and (values := _count_byte(body, _COMMA)) > MOST_VALUES:
        raise _request_limit_error(
            "body", f"{values} values and a key that is missing or in other case", hint
        )


def check_node_count(count: int) -> None:
    """`BadInput` for too many whole nodes."""
    if count > MOST_CANDIDATES:
        raise _request_limit_error("Nodes.items", f"{count} nodes", f"at most {MOST_CANDIDATES}")


def check_name_count(listed: bytes) -> None:
    """`BadInput` for a JSON list of too many names, or of as many other values."""
    if len(listed) <= 2 * MOST_CANDIDATES:
        return
    count = max(_count_byte(listed, _QUOTE) // 2, _count_byte(listed, _COMMA) + 1)
    if count > MOST_CANDIDATES:
        raise _request_limit_error("NodeNames", f"{count} names", f"at most {MOST_CANDIDATES}")


def check_victim_count(body: bytes) -> None:
    """`BadInput` for a preempt request of too many values."""
    if len(body) > _SMALL_BYTES and (values := _count_byte(body, _COMMA)) > _MOST_VICTIMS:
        raise _request_limit_error("body", f"{values} values", f"at most {_MOST_VICTIMS}")


def _request_limit_error(field: str, seen: str, wanted: str) -> BadInput:
    return BadInput("request", [Problem(field, seen, wanted)])


def _count_byte(data: bytes, byte: int) -> int:
    """Number of occurrences of a byte, counted in pieces that fit into the CPU's cache: a third of the time."""
    values: Any = np.frombuffer(data, np.uint8)
    pieces = range(0, len(values), _PIECE_BYTES)
    return sum(int(np.count_nonzero(values[start : start + _PIECE_BYTES] == byte)) for start in pieces)


def _estimate_byte_count(data: bytes, byte: int) -> int:
    """Number of occurrences of a byte, estimated from a random eighth of the data, which a client cannot predict."""
    values: Any = np.frombuffer(data, np.uint8)
    size = _PIECE_BYTES // _SAMPLED
    starts = range(0, len(values), _PIECE_BYTES)
    sampled = (start + size * random.randrange(_SAMPLED) for start in starts)  # noqa: S311 - no secret
    return _SAMPLED * sum(int(np.count_nonzero(values[at : at + size] == byte)) for at in sampled)
