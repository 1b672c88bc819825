"""Every answer and its words: what went well, what was wrong with a request, and how either goes out.

Whatever is refused is refused in one form: `{"error": text, "problems": [{"field", "seen", "wanted"}]}`.
"""

import http
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.errors import BadInput, BadSettings, Conflict, NodewiseError, Problem, Refused, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

PINNED_ONLY_REFUSAL: Final = "nodewise.pinned_only_refusal"
"""The key of a scope's `state` with the answer of routes for pinned clients only; None or absent: they are served."""

# Large bodies go out in pieces, so that the buffer stays small.
PIECE_BYTES: Final = 128 * 2**10


class Response(NamedTuple):
    """An answer. `body` may be many pieces; they are joined as far as that is cheap, never encoded again."""

    status: int
    body: bytes | Sequence[bytes] = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


class TooLarge(BadInput):
    """A body longer than we take."""


STATUS: Final[dict[type[NodewiseError], int]] = {
    TooLarge: 413,
    BadInput: 400,
    Refused: 403,
    Conflict: 409,
    Unavailable: 503,
    BadSettings: 500,  # a defect of ours if a request meets it: settings are checked at start
    NodewiseError: 500,
}


def problem(error: NodewiseError) -> Response:
    """The answer to an error: its kind gives the status, its problems the body."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = []
    if isinstance(error, Unavailable):
        # whole seconds, and never 0, which would mean at once
        headers.append(("Retry-After", str(max(1, round(error.retry_after_s)))))
    return _told(status, str(error), error.problems, headers)


def refusal(status: int, found: Problem, headers: Sequence[tuple[str, str]] = ()) -> Response:
    """The answer to a request that is wrong before anybody reads its body."""
    return _told(status, f"{http.HTTPStatus(status).phrase}: {found}", (found,), headers)


def _told(
    status: int, text: str, problems: Sequence[Problem], headers: Sequence[tuple[str, str]]
) -> Response:
    body = {"error": text, "problems": [found._asdict() for found in problems]}
    return Response(status, msgspec.json.encode(body) + b"\n", headers=headers)


def _header(response: Response, length: int) -> list[tuple[bytes, bytes]]:
    lines = [
        (b"content-type", response.content_type.encode("latin-1")),
        (b"content-length", b"%d" % length),
    ]
    lines.extend(
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers
    )
    return lines


def wire(response: Response) -> bytes:
    """The answer as HTTP/1.1, closing the connection: for what is refused before there is a request."""
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    lines = [b"HTTP/1.1 %d %s" % (response.status, http.HTTPStatus(response.status).phrase.encode())]
    lines.extend(b"%s: %s" % pair for pair in _header(response, len(body)))
    lines.extend((b"connection: close", b"", body))
    return b"\r\n".join(lines)


def _cut(part: bytes) -> Iterator[bytes]:
    snapshot = memoryview(part)  # a part may be a `msgspec.Raw`, which cannot be cut
    for start in range(0, len(part), PIECE_BYTES):
        yield bytes(snapshot[start : start + PIECE_BYTES])


def _pieces(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of about PIECE_BYTES."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        for cut in (part,) if len(part) <= PIECE_BYTES else _cut(part):
            held.append(cut)
            size += len(cut)
            if size >= PIECE_BYTES:
                yield b"".join(held)
                held, size = [], 0
    yield b"".join(held)


async def send(response: Response, to: Send) -> None:
    """Send an answer through ASGI: a small one in one piece, a large one as fast as the client takes it."""
    body = response.body
    length = len(body) if isinstance(body, bytes) else sum(map(len, body))
    await to({"type": "http.response.start", "status": response.status, "headers": _header(response, length)})
    if length > PIECE_BYTES:
        for piece in _pieces((body,) if isinstance(body, bytes) else body):
            await to({"type": "http.response.body", "body": piece, "more_body": True})
        body = b""
    whole = body if isinstance(body, bytes) else b"".join(body)
    await to({"type": "http.response.body", "body": whole})


def always(response: Response) -> Asgi:
    """An ASGI callable that gives everybody the same answer and closes the connection."""
    closing = response._replace(headers=(*response.headers, ("Connection", "close")))

    async def app(_scope: Scope, _receive: Receive, to: Send) -> None:
        await send(closing, to)

    return app
