"""Node statistics in, the slot of the snapshot out; the same code online and offline."""

from collections.abc import Generator, Mapping
from typing import Any

from nodewise.agent import ClusterState, Inputs, ObjectKey, StateBuilder, Want
from nodewise.agents.safe import shares
from nodewise.agents.safe.options import SafeOptions
from nodewise.agents.safe.shares import Base
from nodewise.statistics.load import LoadReader


class SafeState(StateBuilder[Base | None]):
    """What does not depend on the pod is computed here, for all nodes."""

    def __init__(self, options: SafeOptions) -> None:
        self.inputs = Inputs(frozenset(), node_objects=True, metrics=options.statistics == "metrics")
        self._forecast_weight = options.safe_forecast_weight / 100
        self._reader = LoadReader(options)

    def wants(self, objects: Mapping[str, Mapping[ObjectKey, Any]]) -> frozenset[Want]:  # noqa: ARG002
        """The metrics of the nodes' load, whatever objects there are."""
        return self._reader.wants

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Base | None]:
        """The load of all nodes; None before its metrics were asked for, as then nothing says that it is missing."""
        if not all(cluster_state.metrics.was_asked(want.key) for want in self._reader.wants):
            return None
        load = yield from self._reader.read(cluster_state)
        yield
        return shares.base(load, self._forecast_weight)
