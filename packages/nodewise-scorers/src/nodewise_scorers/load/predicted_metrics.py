"""The predicted load of nodes as metrics of policies: `predicted_cpu_share` and `predicted_memory_share`.

They are computed by the state of the agent load, so that native mode, which has no scoring agents, can use it.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import StateBuilder, Watched
from nodewise.engine.computed_metrics import ComputedMetrics
from nodewise_scorers.load import bound_pods
from nodewise_scorers.load.state import CPU, MEMORY, LoadState, LoadStateBuilder, NodeFields

_RESOURCES: Final = {"predicted_cpu_share": CPU, "predicted_memory_share": MEMORY}


class PredictedLoad(ComputedMetrics):
    """The forecast of the peak of each node over the next minutes with its pods in flight, as a share (0 to 1) of what
    is allocatable.
    """

    def state(self) -> StateBuilder[LoadState]:
        return LoadStateBuilder()

    def node_fields(self) -> type[msgspec.Struct]:
        return NodeFields

    def watched(self) -> Sequence[Watched]:
        return [bound_pods.WATCHED]

    def values(self, state: LoadState, metric: str) -> NDArray[np.float64]:
        values: NDArray[np.float64] = state.predicted[_RESOURCES[metric]]
        return values


METRICS: Final = PredictedLoad()
