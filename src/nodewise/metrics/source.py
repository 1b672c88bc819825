"""What a source of node metrics is, and what one is asked for."""

from typing import NamedTuple, Protocol

from nodewise.metrics.series import Series


class Want(NamedTuple):
    """A metric that somebody needs."""

    metric: str
    query: str = ""
    """An expression to ask instead of the name, for sources that understand one."""


class Source(Protocol):
    """Somebody who measures nodes."""

    name: str

    async def fetch(self, want: Want, now: float) -> Series:
        """All nodes' values of one metric. `Unavailable` or `BadInput` say why there are none."""
        ...
