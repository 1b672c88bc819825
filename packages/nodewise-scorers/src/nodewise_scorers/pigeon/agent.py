"""Answers requests of the pigeon agent: the objective for the cluster with the pod on each candidate."""

from collections.abc import Generator, Mapping
from typing import Final

import msgspec
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
from nodewise_scorers.pigeon import placement_objectives, resource_units
from nodewise_scorers.pigeon import scored_pod_statistics as demands
from nodewise_scorers.pigeon.options import PigeonOptions
from nodewise_scorers.pigeon.pigeon_cfg_file import PigeonConfig
from nodewise_scorers.pigeon.placement_objectives import PigeonDetails, pack_resource_bits
from nodewise_scorers.pigeon.resource_units import NAMES, UNIT_NAMES, Row
from nodewise_scorers.pigeon.state import PigeonPod, PigeonState
from nodewise_scorers.statistics.missing_statistics import NoStatistics, StatisticsNotReady

PRIORITY: Final = "pigeon-holing"
"""The older system's name of the agent's scores."""


class PigeonAgent(
    FilterPlugin[PigeonPod, PigeonState],
    ScorePlugin[PigeonPod, PigeonState],
    StateExporter[PigeonPod, PigeonState],
):
    """The agent `pigeon`."""

    name = "pigeon"

    def __init__(self, options: PigeonOptions, config: PigeonConfig) -> None:
        self._options = options
        self._config = config
        self._to_scores = placement_objectives.SCALINGS[options.pigeon_scaling]
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PigeonPod, snapshot: Snapshot) -> tuple[()]:  # noqa: ARG002
        """The same nodes are rejected for all pods."""
        return ()

    def filter(self, pod: PigeonPod, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        """With `--when-missing reject`: rejects nodes whose requested resources are unknown."""
        state = self.state(snapshot)
        if state is None:
            return Verdict(
                np.ones(len(candidates), np.int16),
                (StatisticsNotReady(self.name, "the nodes are not read yet"),),
            )
        missing = state.missing[candidates.numbers] > 0
        return Verdict(missing.astype(np.int16), (NoStatistics(self.name),))

    def score(self, pod: PigeonPod, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Nodes that the pod does not fit get 0."""
        state = self.state(snapshot)
        if state is None:
            return None
        demand = resource_units.pod_demand(pod, self._options.pigeon_gpu_resource)
        details = self._build_details(
            state,
            demand[: self._config.resources],
            candidates,
            self._demand_variability_with_pod(state, pod, demand),
        )
        return Scores(self._objective_scores(details), details=details)

    def _demand_variability_with_pod(self, state: PigeonState, pod: PigeonPod, demand: Row) -> float | None:
        """The variability of what pods request, with this pod."""
        if not state.layout.follows_demand:
            return None
        return demands.demand_variability(state.memory.with_pod(pod.metadata.uid, demand), state.scale)

    def _build_details(
        self, state: PigeonState, demand: Row, candidates: Names, variability: float | None
    ) -> PigeonDetails:
        numbers = candidates.numbers
        lacking = state.room[:, numbers] < demand[:, None]
        fits = ~lacking.any(axis=0)
        measured = np.full(len(numbers), np.nan)
        if fits.any():
            measured[fits] = state.layout.evaluate(numbers[fits], demand)
        missing = state.missing[numbers]
        return PigeonDetails(
            self._config.objective,
            measured,
            variability,
            pack_resource_bits(lacking),
            missing if missing.any() else None,
        )

    def _objective_scores(self, details: PigeonDetails) -> placement_objectives.Points:
        values = details.values()
        default, missing = self._options.score_missing, details.missing
        if default is None or missing is None:
            return self._to_scores(values)
        unknown = (missing > 0) & ~np.isnan(values)
        return np.where(unknown, default, self._to_scores(np.where(unknown, np.nan, values)))

    def export(self, state: PigeonState, query: Mapping[str, str]) -> Generator[None, None, bytes]:  # noqa: ARG002
        """The requests of pods and the capacity of nodes for each resource that counts, in the agent's units."""
        statistics = state.memory.statistics
        deviations = statistics.covariance.diagonal() ** 0.5
        rows = zip(
            NAMES,
            UNIT_NAMES,
            state.scale.tolist(),
            statistics.mean.tolist(),
            deviations.tolist(),
            strict=False,
        )
        document = {
            "objective": self._config.objective,
            "demand_variability": demands.demand_variability(statistics, state.scale),
            "pods": statistics.samples,
            "resources": {
                name: {"unit": unit, "node_mean": node, "pod_mean": mean, "pod_deviation": deviation}
                for name, unit, node, mean, deviation in rows
            },
        }
        yield
        return msgspec.json.encode(document) + b"\n"
