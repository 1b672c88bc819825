"""HTTP responses: errors and refusals as JSON, and responses as bytes of HTTP/1.1.

An error or a refusal has one form: `{"error": text, "problems": [{"field", "seen", "wanted"}]}`.
"""

import http
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.base.errors import BadInput, BadSettings, Conflict, NodewiseError, Problem, Refused, Unavailable

PIECE_BYTES: Final = 128 * 2**10
"""A large body is written in pieces of this size, each when the one before has left: OpenSSL's buffer grows to the
size of the largest write that it could not pass on, and keeps that size for as long as the connection is open."""
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus
}


class Response(NamedTuple):
    """A response. `body` may have many parts; they are joined only as far as needed."""

    status: int
    body: bytes | Sequence[bytes] = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


class TooLarge(BadInput):
    """A body longer than the limit."""


STATUS: Final[dict[type[NodewiseError], int]] = {
    TooLarge: 413,
    BadInput: 400,
    Refused: 403,
    Conflict: 409,
    Unavailable: 503,
    BadSettings: 500,  # settings are checked at start; only the webhook's mutations can become invalid later
    NodewiseError: 500,
}


def response_from_error(error: NodewiseError) -> Response:
    """The response to an error: its kind determines the status, its problems the body."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = []
    if isinstance(error, Unavailable):
        # whole seconds, and never 0, which would mean at once
        headers.append(("Retry-After", str(max(1, round(error.retry_after_s)))))
    return _json_response(status, str(error), error.problems, headers)


def refusal_response(status: int, problem: Problem, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """The response to a request that is refused before its body is read."""
    return _json_response(status, f"{http.HTTPStatus(status).phrase}: {problem}", (problem,), headers)


def _json_response(
    status: int, text: str, problems: Sequence[Problem], headers: Sequence[tuple[str, str]]
) -> Response:
    body = {"error": text, "problems": [problem.to_dict() for problem in problems]}
    return Response(status, msgspec.json.encode(body) + b"\n", headers=headers)


def encode_header(response: Response, *, close: bool, date: bytes = b"") -> bytes:
    """Status line and header fields with the empty line after them. TypeError if the body is not made of bytes.

    `close` announces that the connection ends with this response; `date` is the value of the field Date.
    """
    length = len(response.body) if isinstance(response.body, bytes) else sum(map(len, response.body))
    lines = [_STATUS_LINES[response.status]]
    if date:
        lines.append(b"date: %s\r\n" % date)
    lines.append(b"content-type: %s\r\n" % response.content_type.encode("latin-1"))
    lines.append(b"content-length: %d\r\n" % length)
    lines.extend(f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in response.headers)
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(lines)


def encode_response(
    response: Response, *, close: bool, date: bytes = b"", with_body: bool = True
) -> Iterator[bytes]:
    """The response in pieces. The header comes with the first piece of the body: one TLS record, one packet."""
    head = encode_header(response, close=close, date=date)
    rest = split_body(response.body) if with_body else iter(())
    return itertools.chain([head + next(rest, b"")], rest)


def encode_connection_close_response(response: Response) -> bytes:
    """The whole response, which announces the end of the connection: for what is refused before there is a request."""
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    return encode_header(response, close=True) + body


def split_body(body: bytes | Sequence[bytes]) -> Iterator[bytes]:
    """The body in pieces of about `PIECE_BYTES`. Nothing for an empty body."""
    pending: list[bytes] = []
    size = 0
    for part in (body,) if isinstance(body, bytes) else body:
        for piece in (part,) if len(part) <= PIECE_BYTES else _split_body_part(part):
            pending.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
    if size:
        yield b"".join(pending)


def _split_body_part(part: bytes) -> Iterator[bytes]:
    view = memoryview(part)  # a part may be a `msgspec.Raw`, which does not support slices
    for start in range(0, len(part), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])
