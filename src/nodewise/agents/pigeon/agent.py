"""Answers requests: what the cluster would be like with the pod on each candidate, all other nodes counted in."""

from collections.abc import Generator, Mapping
from typing import Final

import numpy as np

from nodewise.agent import (
    FilterPlugin,
    Names,
    ScorePlugin,
    Scores,
    Snapshot,
    StateExporter,
    Verdict,
)
from nodewise.agents.pigeon import demand as demands
from nodewise.agents.pigeon import ranks, resources, showing
from nodewise.agents.pigeon.config import Aim
from nodewise.agents.pigeon.details import PigeonDetails, bits
from nodewise.agents.pigeon.options import PigeonOptions
from nodewise.agents.pigeon.resources import Row
from nodewise.agents.pigeon.state import PigeonPod, Slot
from nodewise.statistics.missing import NoStatistics, NotReady

PRIORITY: Final = "pigeon-holing"
"""What the older system calls the agent's scores."""


class PigeonAgent(
    FilterPlugin[PigeonPod, Slot], ScorePlugin[PigeonPod, Slot], StateExporter[PigeonPod, Slot]
):
    """The agent `pigeon`."""

    name = "pigeon"

    def __init__(self, options: PigeonOptions, aim: Aim) -> None:
        self._options = options
        self._aim = aim
        self._rank = ranks.RANKS[options.pigeon_scaling]
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PigeonPod) -> tuple[()]:  # noqa: ARG002
        """Which nodes are rejected is the same for all pods."""
        return ()

    def filter(self, pod: PigeonPod, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        """With --when-missing reject, nodes of which nobody says how much is requested there."""
        agent_state = self.state(snapshot)
        if agent_state is None:
            return Verdict(
                np.ones(len(candidates), np.int16), (NotReady(self.name, "the nodes are not read yet"),)
            )
        missing = agent_state.missing[candidates.numbers] > 0
        return Verdict(missing.astype(np.int16), (NoStatistics(self.name),))

    def score(self, pod: PigeonPod, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Nodes that the pod does not fit get 0."""
        agent_state = self.state(snapshot)
        if agent_state is None:
            return None
        wanted = resources.demand(pod, self._options.pigeon_gpu_resource)
        details = self._details(
            agent_state,
            wanted[: self._aim.resources],
            candidates,
            self._variability(agent_state, pod, wanted),
        )
        return Scores(self._points(details), details=details)

    def _variability(self, agent_state: Slot, pod: PigeonPod, wanted: Row) -> float | None:
        """Of what pods ask for, this one among them."""
        if not agent_state.layout.follows_demand:
            return None
        return demands.variability(agent_state.memory.with_pod(pod.metadata.uid, wanted), agent_state.scale)

    def _details(
        self, agent_state: Slot, wanted: Row, candidates: Names, variability: float | None
    ) -> PigeonDetails:
        numbers = candidates.numbers
        lacking = agent_state.room[:, numbers] < wanted[:, None]
        fits = ~lacking.any(axis=0)
        measured = np.full(len(numbers), np.nan)
        if fits.any():
            measured[fits] = agent_state.layout.measured(numbers[fits], wanted)
        missing = agent_state.missing[numbers]
        return PigeonDetails(
            self._aim.objective, measured, variability, bits(lacking), missing if missing.any() else None
        )

    def _points(self, details: PigeonDetails) -> ranks.Points:
        values = details.values()
        given, missing = self._options.score_missing, details.missing
        if given is None or missing is None:
            return self._rank(values)
        unknown = (missing > 0) & ~np.isnan(values)
        return np.where(unknown, given, self._rank(np.where(unknown, np.nan, values)))

    def export(self, state: Slot, query: Mapping[str, str]) -> Generator[None, None, bytes]:  # noqa: ARG002
        """What pods ask for and what nodes have."""
        return showing.state(state, self._aim)
