"""Answers requests of the agent load: scores by the chosen placement. It rejects no node."""

from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Names, ScorePlugin, Scores, Snapshot, StateExporter
from nodewise_scorers.load import LoadAgentOptions, bound_pods, placements
from nodewise_scorers.load.bound_pods import RESOURCES, OwnedPod
from nodewise_scorers.load.node_forecasts import METHODS
from nodewise_scorers.load.placements import PLACEMENTS, ScoredPod
from nodewise_scorers.load.state import CPU, LoadState, LoadStateBuilder, NodeFields

__all__ = ["LoadAgent", "NodeFields", "PodFields", "create_agent", "create_state_builder"]

PodFields = OwnedPod
PRIORITY: Final = "load"
_NODES_PER_PART: Final = 64
"""Nodes that are exported between two yields."""


class LoadAgent(ScorePlugin[PodFields, LoadState], StateExporter[PodFields, LoadState]):
    """The agent `load`."""

    name = "load"

    def __init__(self, options: LoadAgentOptions) -> None:
        self._scores = PLACEMENTS[options.load_placement].scores
        self._missing = options.score_missing or 0
        self.priorities = {PRIORITY: self.score}

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Scores by the placement; nodes without statistics of CPU get the score of the options."""
        state = self.state(snapshot)
        if state is None or not len(candidates):
            return None
        numbers = candidates.numbers
        owner = state.bound.owners.find(bound_pods.owner_key(pod))
        scored = ScoredPod(bound_pods.pod_amounts(pod.spec), owner)
        # also where the capacity is unknown
        is_missing = np.isnan(state.predicted[CPU].take(numbers))
        details = LoadDetails(state.shares, state.methods, numbers)
        if not is_missing.any():
            return Scores(placements.points(self._scores(scored, state, numbers)), details=details)
        points = np.full(len(numbers), self._missing)
        known = np.flatnonzero(~is_missing)
        if len(known):
            points[known] = placements.points(self._scores(scored, state, numbers[known]))
        return Scores(points, details=details)

    def export(self, state: LoadState, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """`{"nodes": {node: …}}` in parts, as in the details; `?node=NAME` for one node."""
        names = state.nodes.known
        selected = query.get("node")
        rows = ((number, name) for number, name in enumerate(names) if selected in (None, name))
        details = LoadDetails(state.shares, state.methods, np.arange(len(names)))
        parts = []
        while part := list(islice(rows, _NODES_PER_PART)):
            parts += [
                msgspec.json.encode(name) + b": " + msgspec.json.encode(details.numbers(number))
                for number, name in part
            ]
            yield
        return b'{"nodes": {' + b",\n".join(parts) + b"}}\n"


class LoadDetails(NamedTuple):
    """What is known of each candidate (`agent.Details`)."""

    shares: NDArray[np.float32]
    """`LoadState.shares`."""
    methods: NDArray[np.int8]
    """`LoadState.methods`."""
    candidates: NDArray[np.intp]
    """By candidate: the node's number."""

    @property
    def nbytes(self) -> int:
        """The shares are those of all decisions with the same state."""
        return self.candidates.nbytes + self.shares.nbytes + self.methods.nbytes

    def text(self, candidate: int) -> str:
        """`cpu 62 % expected, of it 10 % in flight; memory 40 % expected`."""
        texts = []
        for resource, numbers in self.numbers(candidate).items():
            if numbers["predicted_share"] is None:
                texts.append(f"{resource}: no statistics")
                continue
            in_flight = (
                f", of it {numbers['in_flight_share']:.1%} in flight" if numbers["in_flight_share"] else ""
            )
            texts.append(f"{resource} {numbers['predicted_share']:.0%} expected{in_flight}")
        return "; ".join(texts).replace("%", " %")

    def distances(self) -> NDArray[np.float64]:
        """0: no candidate is rejected."""
        return np.zeros(len(self.candidates))

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """By resource: `predicted_share`, the expected peak with pods in flight; `used_share`; `in_flight_share`.

        For CPU also the `forecast` method. Null without statistics.
        """
        node = self.candidates[candidate]
        result: dict[str, Any] = {}
        for number, resource in enumerate(RESOURCES):
            shares = zip(
                ("predicted_share", "used_share", "in_flight_share"),
                self.shares[:, number, node],
                strict=True,
            )
            result[resource] = {
                name: None if np.isnan(share) else round(float(share), 6) for name, share in shares
            }
        if result["cpu"]["predicted_share"] is not None:
            result["cpu"]["forecast"] = METHODS[self.methods[node]]
        return result


def create_state_builder(options: LoadAgentOptions) -> LoadStateBuilder:
    return LoadStateBuilder(PLACEMENTS[options.load_placement].estimate)


create_agent = LoadAgent
