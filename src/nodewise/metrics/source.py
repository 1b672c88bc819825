"""What a source of node metrics is, and what one is asked for."""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from nodewise.errors import Unavailable
from nodewise.metrics.series import Series


class Want(NamedTuple):
    """A metric that somebody needs."""

    metric: str
    query: str = ""
    """An expression to ask instead of the name, for sources that understand one."""
    max_age_s: float = 0.0
    """How old a value may be and still be of use; 0: the source decides how far back it looks."""

    @property
    def key(self) -> str:
        """What the answer is kept under. A name that is asked for by a query is another thing than the name alone,
        or than by another query: any tenant can write any query, and none may stand in another's way.
        """
        return f"{self.metric} by {self.query}" if self.query else self.metric


class NotThere(Unavailable):
    """The whole source is not installed here, which is no fault: another one may have the metric."""


class Source(Protocol):
    """Somebody who measures nodes."""

    name: str

    def takes(self, want: Want) -> bool:
        """Whether this source could have such a metric at all; if not, it is not asked."""
        ...

    async def fetch(self, want: Want, now: float) -> Series:
        """All nodes' values of one metric. Errors say why there are none, each of a kind of `NodewiseError`."""
        ...


def merged(wants: Iterable[Want]) -> frozenset[Want]:
    """One want a key, with the longest of the ages."""
    by_key: dict[str, Want] = {}
    for want in wants:
        known = by_key.get(want.key)
        if known is None or known.max_age_s < want.max_age_s:
            by_key[want.key] = want
    return frozenset(by_key.values())
