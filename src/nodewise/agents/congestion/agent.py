"""Answers requests by look-up in the congestion slot. Pods make no difference."""

from typing import Final

import msgspec
import numpy as np

from nodewise.agent import FilterPlugin, Names, ScorePlugin, Scores, Snapshot, Verdict
from nodewise.agents.congestion import details
from nodewise.agents.congestion.options import CongestionOptions
from nodewise.agents.congestion.state import Slot
from nodewise.statistics.missing import NoStatistics, NotReady

PRIORITY: Final = "congestion"
"""Its name in kube-scheduler's configuration, as in the older system, which had no predicate."""


class PodFields(msgspec.Struct, frozen=True, gc=False):
    """Nothing is read of a pod."""


class CongestionAgent(FilterPlugin[PodFields, Slot], ScorePlugin[PodFields, Slot]):
    """The agent `congestion`. It rejects nodes only with --when-missing reject."""

    name = "congestion"

    def __init__(self, options: CongestionOptions) -> None:
        self._options = options
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PodFields) -> tuple[()]:  # noqa: ARG002
        """All pods get the same answers."""
        return ()

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        agent_state = self.state(snapshot)
        if agent_state is None:
            return Verdict(
                np.ones(len(candidates), np.int16), (NotReady("nodewise", "nodes are not read yet"),)
            )
        told = details.of(agent_state, candidates, self._options.congestion_factor_max)
        codes = np.isnan(told.factors).astype(np.int16)
        return Verdict(codes, (NoStatistics(self.name),), details=told)

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:  # noqa: ARG002
        agent_state = self.state(snapshot)
        if agent_state is None:
            return None
        told = details.of(agent_state, candidates, self._options.congestion_factor_max)
        return Scores(agent_state.points[candidates.numbers], details=told)
