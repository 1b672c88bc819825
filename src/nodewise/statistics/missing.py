"""What is done with a node without statistics, the same for all agents that go by them."""

from enum import IntEnum
from typing import Annotated, ClassVar, Final, Literal

import msgspec

When = Literal["accept", "pass", "reject"]
Score = Annotated[int, msgspec.Meta(ge=0, le=10)] | None


class MissingRules:
    """What follows from the settings; beside a struct that has them."""

    __slots__ = ()
    when_missing: When
    score_missing: Score

    @property
    def rejects_missing(self) -> bool:
        return self.when_missing == "reject"

    def points_missing(self, own: int) -> int:
        """The score of a node without statistics; `own` is the agent's where the setting does not say."""
        return own if self.score_missing is None else self.score_missing


class MissingOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """What a node without statistics gets."""

    when_missing: When = "accept"
    """What a node gets that has no statistics, or none that are fresh. `accept` (also called `pass`): it is not
    rejected for it, as in the older system; a node is not lost to all pods because an exporter died. `reject`: it gets
    no pods until it has some."""

    score_missing: Score = None
    """The score of such a node, from 0 to 10. Not given: what each agent's page says, 0 for safe, 10 for congestion
    and learned."""


class Missing(IntEnum):
    """Whether there is a statistic, and why not."""

    PRESENT = 0
    ABSENT = 1
    """Nobody gave one, or what was given is no number."""
    STALE = 2
    """It is older than --statistics-max-age."""
    NO_CAPACITY = 3
    """The node does not say how much of the resource pods can have."""
    NO_DEVIATION = 4
    """There is a mean, and nobody said how much it varies, or what was said is no number."""

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS: Final = {
    Missing.PRESENT: "",
    Missing.ABSENT: "no statistics",
    Missing.STALE: "statistics are too old",
    Missing.NO_CAPACITY: "nothing is allocatable",
    Missing.NO_DEVIATION: "no deviation",
}


class NotReady(msgspec.Struct, frozen=True):
    """Nothing says yet which nodes have statistics (`agent.Reason`)."""

    speaker: str
    unknown: str
    """What is not known yet, as a sentence ends."""
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"{self.speaker}: starting, {self.unknown}"

    def remedy(self) -> str:
        return "wait; /readyz on the admin port names what is missing, the log's kube_lost why"


class NoStatistics(msgspec.Struct, frozen=True):
    """The node has no fresh statistics, and --when-missing says that such nodes are rejected (`agent.Reason`)."""

    agent: str
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        return f"{self.agent}: no fresh statistics"

    def remedy(self) -> str:
        return "see why there are none: the node's annotations, or the source of --metrics; or --when-missing accept"
