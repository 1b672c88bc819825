"""What the scoring agents have in common: their kind, and the treatment of nodes without statistics."""

from abc import ABC
from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from nodewise.agent import AgentKind, Watched

When = Literal["accept", "pass", "reject"]
Score = Annotated[int, msgspec.Meta(ge=0, le=10)] | None


class ScoringAgentKind(AgentKind, ABC):
    """A kind whose agent is in the module `agent` of its folder.

    The module is imported when the kind is used, because commands declare the options of all agents. It contains
    `PodFields`, `NodeFields`, `create_state_builder(options)` and `create_agent(options)`.
    """

    @cached_property
    def module(self) -> Any:
        return import_module(f"nodewise_scorers.{self.name}.agent")

    @cached_property
    def pod_fields(self) -> type[msgspec.Struct]:  # type: ignore[override]
        fields: type[msgspec.Struct] = self.module.PodFields
        return fields

    @cached_property
    def node_fields(self) -> type[msgspec.Struct]:  # type: ignore[override]
        fields: type[msgspec.Struct] = self.module.NodeFields
        return fields

    def watched(self, options: Any) -> Sequence[Watched]:
        """The pods on nodes, if those in flight are counted."""
        from nodewise_scorers.load.bound_pods import WATCHED

        return (WATCHED,) if options.in_flight else ()

    def state(self, options: Any, sync_period_s: float) -> Any:  # noqa: ARG002
        return self.module.create_state_builder(options)

    def agent(self, options: Any) -> Any:
        return self.module.create_agent(options)


class MissingRules:
    """Methods for structs with the settings `when_missing` and `score_missing`."""

    __slots__ = ()
    when_missing: When
    score_missing: Score

    @property
    def rejects_missing(self) -> bool:
        return self.when_missing == "reject"

    def score_without_statistics(self, own: int) -> int:
        """The score of a node without statistics; `own` is the default of the agent."""
        return own if self.score_missing is None else self.score_missing


class MissingOptions(MissingRules, msgspec.Struct, frozen=True, kw_only=True):
    """Settings for nodes without statistics."""

    when_missing: When = "accept"
    """Treatment of a node without fresh statistics. `accept` (also called `pass`): it is not rejected for it.
    `reject`: it gets no pods until it has statistics."""

    score_missing: Score = None
    """Score of such a node, from 0 to 10. Default: 0 for safe, 10 for congestion and learned."""


class StatisticStatus(IntEnum):
    """Whether a statistic exists, and why it is missing."""

    PRESENT = 0
    ABSENT = 1
    """There is none, or it is not a number."""
    STALE = 2
    """It is older than --statistics-max-age."""
    NO_CAPACITY = 3
    """The resource is absent from the node's allocatable resources."""
    NO_DEVIATION = 4
    """There is a mean without a valid deviation."""

    @property
    def words(self) -> str:
        texts = ("", "no statistics", "statistics are too old", "nothing is allocatable", "no deviation")
        return texts[self]


class StatisticsNotReady(msgspec.Struct, frozen=True):
    """The nodes' statistics are not read yet (`agent.Reason`)."""

    prefix: str
    """The agent's name, or `nodewise`."""
    unknown: str
    """The rest of a sentence that tells what is not known yet."""
    is_failure: ClassVar[bool] = True
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"{self.prefix}: starting, {self.unknown}"

    def remedy(self) -> str:
        return "wait; /readyz on the admin port names what is missing, the log's kube_lost why"


class NoStatistics(msgspec.Struct, frozen=True):
    """The node has no fresh statistics, and --when-missing says that such nodes are rejected (`agent.Reason`)."""

    agent: str
    is_failure: ClassVar[bool] = False
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"{self.agent}: no fresh statistics"

    def remedy(self) -> str:
        return "see why there are none: the node's annotations, or the source of --metrics; or --when-missing accept"
