"""Splits a stream of bytes into lines, independent of its chunks. A watch sends one JSON document per line."""

from collections.abc import Iterator

from nodewise.errors import Problem, Unavailable

LONGEST_BYTES = 64 << 20
"""Limit of a line, against exhaustion of memory by a broken server. Objects are smaller: etcd accepts 1.5 MiB by
default."""


class LineSplitter:
    """Splits chunks of bytes into complete lines, and scans each byte once."""

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self._longest = longest_bytes
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes, without line ends. Empty lines are left out."""
        head, *rest = piece.split(b"\n")
        self._hold(head)
        for part in rest:
            line = self._taken()
            if line:
                yield line
            self._hold(part)

    def rest(self) -> bytes:
        """The bytes after the last line end: empty or a document, unless the stream was truncated."""
        return self._taken()

    def _hold(self, part: bytes) -> None:
        self._held += len(part)
        if self._held > self._longest:
            seen = f"a line of more than {self._longest} bytes"
            raise Unavailable("the watch", [Problem("", seen, "one JSON document a line")])
        self._parts.append(part)

    def _taken(self) -> bytes:
        line = b"".join(self._parts).strip(b"\r")
        self._parts.clear()
        self._held = 0
        return line
