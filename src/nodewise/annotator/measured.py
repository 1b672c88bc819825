"""What comes of measuring, and who measures."""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from nodewise.annotator.usage import Usage

MILLI: Final = 1000.0
"""Of a core."""


class Left(NamedTuple):
    """What the requests of a node's pods leave of its memory, for `--annotate-use-requests`."""

    allocatable_bytes: float
    requested_bytes: float


class Measured(NamedTuple):
    """What came of measuring."""

    usage: Mapping[str, Usage]
    """By node name; a node that is not here is not measured."""
    failures: tuple[str, ...] = ()
    """What could not be measured, and why."""


class Measure(Protocol):
    """Somebody who knows what nodes use."""

    async def look(self) -> None:
        """Take a sample, where it is time for one."""
        ...

    async def measured(self, lefts: Mapping[str, Left]) -> Measured:
        """Statistics as of now."""
        ...
