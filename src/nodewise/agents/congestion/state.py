"""Annotations of nodes in, the congestion slot of the snapshot out; the same code online and offline."""

from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, ClusterState, Inputs, StateBuilder
from nodewise.agents.congestion import factors as reading
from nodewise.agents.congestion.factors import Factors
from nodewise.agents.congestion.options import CongestionOptions
from nodewise.statistics import annotations
from nodewise.statistics.annotations import CongestionAnnotations

_NODES: Final = 512
"""Nodes that are read between two pauses: half a millisecond."""


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: CongestionAnnotations | None = None


class CongestionNode(msgspec.Struct, frozen=True, gc=False):
    """What is read of a node."""

    metadata: NodeMetadata = NodeMetadata()


class Slot(NamedTuple):
    """All nodes by number; the unknown node has no factor."""

    points: NDArray[np.int64]
    factors: Factors
    unread: Mapping[int, str]
    """What stands in the annotation of nodes where it is no whole number, as much of it as is shown."""


def given(node: Any) -> str | None:
    """The annotation of a node as it stands there."""
    found: CongestionAnnotations | None = node.metadata.annotations
    return found.congestion_factor if found else None


class CongestionState(StateBuilder[Slot]):
    """Reads every node at every change of one: 5,000 annotations take some milliseconds, in parts."""

    inputs = Inputs(frozenset(), node_objects=True, metrics=False)

    def __init__(self, options: CongestionOptions) -> None:
        self._most = options.congestion_factor_max
        self._missing = options.points_missing(MAX_SCORE)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Slot]:
        """Judge all nodes."""
        factors = np.full(len(cluster_state.nodes) + 1, np.nan)
        unread: dict[int, str] = {}
        nodes = iter(cluster_state.node_objects.items())
        while part := list(islice(nodes, _NODES)):
            numbers = cluster_state.nodes.numbers([name for (_, name), _ in part])
            texts = [given(node) for _, node in part]
            factors[numbers] = annotations.integers(texts)
            none = np.flatnonzero(np.isnan(factors[numbers])).tolist()
            unread.update((int(numbers[at]), text[: reading.KEPT]) for at in none if (text := texts[at]))
            yield
        factors[-1] = np.nan  # where a node that the index does not have would stand
        return Slot(reading.points(factors, self._most, self._missing), factors, unread)
