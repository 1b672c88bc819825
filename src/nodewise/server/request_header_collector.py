"""Collects the header of the request that comes in on a connection, and counts bytes that are not part of a body."""

import urllib.parse
from typing import Final, NamedTuple

import httptools

from nodewise.base.errors import Problem
from nodewise.server.application import RequestHeader
from nodewise.server.connection_deadlines import Phase

_OVERHEAD_BYTES: Final = 65536
"""Of chunk extensions and trailers without any body among them; a header in front of them counts, too."""


class InputViolation(NamedTuple):
    """Why a connection ends because of what its client sent."""

    reason: str
    """One of `connection_close_reasons`."""
    status: int
    """Of the response, if one can be sent."""
    problem: Problem


class RequestHeaderCollector:
    """The header of one request after another. `on_url` and `on_header` are callbacks of the parser."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self.received_bytes = 0
        """Bytes of the header that came in so far."""
        self._overhead_bytes = 0
        self.had_body = False
        """Whether the read that is being parsed contains a part of a body."""

    def begin(self) -> None:
        """A new request begins."""
        self.received_bytes = 0
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def complete(self) -> InputViolation | None:
        """The header is complete; returns a violation if it is too large."""
        self._overhead_bytes = 0
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        return self._oversized(size) if size > self._max_bytes else None

    def build(self, parser: httptools.HttpRequestParser) -> RequestHeader:
        """The collected header. `parser` has just parsed its end."""
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        fields = dict(self._fields)
        length, content_type = fields.get(b"content-length"), fields.get(b"content-type")
        return RequestHeader(
            parser.get_method().decode("ascii"),
            urllib.parse.unquote(path) if "%" in path else path,
            url.query or b"",
            None if length is None else int(length),
            None if content_type is None else content_type.decode("latin-1"),
            fields.get(b"content-encoding", b"").decode("latin-1"),
            keep_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
            expects_continue=fields.get(b"expect", b"").lower() == b"100-continue",
            traceparent=fields.get(b"traceparent", b"").decode("latin-1"),
        )

    def count(self, before: Phase, now: Phase, size: int) -> InputViolation | None:
        """Count a read of `size` bytes, with the phases before and after it.

        A header that began within this read is counted when it is complete.
        """
        if now is Phase.HEADER and before is not Phase.BODY:
            self.received_bytes += size
            if self.received_bytes > self._max_bytes:
                return self._oversized(self.received_bytes)
        elif now is Phase.BODY:
            self._overhead_bytes = 0 if self.had_body else self._overhead_bytes + size
            self.had_body = False
            if self._overhead_bytes > _OVERHEAD_BYTES:
                problem = Problem("body", "chunk extensions or trailers without end", "a body")
                return InputViolation("bad_request", 400, problem)
        return None

    def _oversized(self, size: int) -> InputViolation:
        problem = Problem("header", f"{size} bytes or more", f"at most {self._max_bytes}")
        return InputViolation("header_size", 431, problem)
