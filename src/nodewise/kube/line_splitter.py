"""Cuts a stream of bytes into lines, whatever its pieces. A watch answers one JSON document a line."""

from collections.abc import Iterator

from nodewise.errors import Problem, Unavailable

LONGEST_BYTES = 64 << 20
"""No object is longer: etcd takes 1.5 MiB by default. Keeps a broken server from filling our memory."""


class LineSplitter:
    """Bytes in, whole lines out. Nothing is scanned twice."""

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self._longest = longest_bytes
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes, without their ends; empty lines are none."""
        head, *rest = piece.split(b"\n")
        self._hold(head)
        for part in rest:
            line = self._taken()
            if line:
                yield line
            self._hold(part)

    def rest(self) -> bytes:
        """What came after the last line's end: nothing or a document, unless the stream was cut off."""
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
