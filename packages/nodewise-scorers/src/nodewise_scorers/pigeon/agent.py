"""Answers requests of the pigeon agent: the objective for the cluster with the pod on each candidate."""

from collections.abc import Generator, Mapping
from typing import Final

import msgspec
import numpy as np

from nodewise.agent import FilterPlugin, Names, ScorePlugin, Scores, Snapshot, StateExporter, Verdict
from nodewise_scorers.pigeon.options import NAMES, PigeonConfig, PigeonOptions, load_config
from nodewise_scorers.pigeon.placement_objectives import SCALINGS, PigeonDetails, pack_resource_bits
from nodewise_scorers.pigeon.scored_pod_statistics import demand_variability
from nodewise_scorers.pigeon.state import (
    UNIT_NAMES,
    NodeFields,
    PigeonState,
    PigeonStateBuilder,
    PodFields,
    pod_demand,
)
from nodewise_scorers.scoring_agent import NoStatistics, StatisticsNotReady

__all__ = ["NodeFields", "PigeonAgent", "PodFields", "create_agent", "create_state_builder"]

PRIORITY: Final = "pigeon-holing"
"""The older system's name of the agent's scores."""


class PigeonAgent(
    FilterPlugin[PodFields, PigeonState],
    ScorePlugin[PodFields, PigeonState],
    StateExporter[PodFields, PigeonState],
):
    """The agent `pigeon`."""

    name = "pigeon"

    def __init__(self, options: PigeonOptions, config: PigeonConfig) -> None:
        self._options = options
        self._config = config
        self._to_scores = SCALINGS[options.pigeon_scaling]
        self.filter_enabled = options.rejects_missing
        self.predicates = {PRIORITY: self.filter} if options.rejects_missing else {}
        self.priorities = {PRIORITY: self.score}

    def equivalence_key(self, pod: PodFields, snapshot: Snapshot) -> tuple[()]:  # noqa: ARG002
        """The same nodes are rejected for all pods."""
        return ()

    def filter(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Verdict | None:  # noqa: ARG002
        """With `--when-missing reject`: rejects nodes whose requested resources are unknown."""
        state = self.state(snapshot)
        if state is None:
            reason = StatisticsNotReady(self.name, "the nodes are not read yet")
            return Verdict(np.ones(len(candidates), np.int16), (reason,))
        missing = state.missing[candidates.numbers] > 0
        return Verdict(missing.astype(np.int16), (NoStatistics(self.name),))

    def score(self, pod: PodFields, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Nodes that the pod does not fit get 0."""
        state = self.state(snapshot)
        if state is None:
            return None
        numbers = candidates.numbers
        requests = pod_demand(pod, self._options.pigeon_gpu_resource)
        demand = requests[: self._config.resources]
        lacking = state.room[:, numbers] < demand[:, None]
        fits = ~lacking.any(axis=0)
        measured = np.full(len(numbers), np.nan)
        if fits.any():
            measured[fits] = state.layout.evaluate(numbers[fits], demand)
        variability = None
        if state.layout.follows_demand:
            statistics = state.memory.with_pod(pod.metadata.uid, requests)
            variability = demand_variability(statistics, state.scale)
        missing = state.missing[numbers] if state.missing[numbers].any() else None
        objective, bits = self._config.objective, pack_resource_bits(lacking)
        details = PigeonDetails(objective, measured, variability, bits, missing)
        values, default = details.values(), self._options.score_missing
        if default is None or missing is None:
            return Scores(self._to_scores(values), details=details)
        unknown = (missing > 0) & ~np.isnan(values)
        scores = self._to_scores(np.where(unknown, np.nan, values))
        return Scores(np.where(unknown, default, scores), details=details)

    def export(self, state: PigeonState, query: Mapping[str, str]) -> Generator[None, None, bytes]:  # noqa: ARG002
        """The requests of pods and the capacity of nodes for each resource that counts, in the agent's units."""
        statistics = state.memory.statistics
        deviations = statistics.covariance.diagonal() ** 0.5
        columns = (state.scale.tolist(), statistics.mean.tolist(), deviations.tolist())
        rows = zip(NAMES, UNIT_NAMES, *columns, strict=False)  # the scale has `num_resources` rows
        document = {
            "objective": self._config.objective,
            "demand_variability": demand_variability(statistics, state.scale),
            "pods": statistics.samples,
            "resources": {
                name: {"unit": unit, "node_mean": node, "pod_mean": mean, "pod_deviation": deviation}
                for name, unit, node, mean, deviation in rows
            },
        }
        yield
        return msgspec.json.encode(document) + b"\n"


def create_state_builder(options: PigeonOptions) -> PigeonStateBuilder:
    """`BadSettings` for an invalid file, or one that differs from the settings."""
    from_pods = options.pigeon_usage == "pods"
    return PigeonStateBuilder(
        load_config(options),
        options.pigeon_gpu_resource,
        from_pods=from_pods,
        in_flight=options.in_flight,
    )


def create_agent(options: PigeonOptions) -> PigeonAgent:
    """`BadSettings` as `create_state_builder`."""
    return PigeonAgent(options, load_config(options))
