"""Reads the annotation `congestion-factor` of nodes into scores: 10 for no congestion, 0 from the maximum on.

The factor is a whole number in whatever unit its writer chooses: load, or network traffic of the node. Any other text
counts as missing; the older agent took it for no congestion.
"""

import re
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE, ClusterState, Inputs, StateBuilder
from nodewise_scorers.congestion.options import CongestionOptions
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import CONGESTION_FACTOR, CongestionAnnotations

_NODES_PER_PART: Final = 512
"""Nodes that are read between two yields: half a millisecond."""
_MAX_TEXT_LENGTH: Final = 40
"""Characters of an invalid text that are shown."""
_DIGITS: Final = re.compile(r"[+-]?[0-9]+")

Factors = NDArray[np.float64]
"""Whole numbers; NaN where there is none."""


class NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: CongestionAnnotations | None = None


class CongestionNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node that are read."""

    metadata: NodeMetadata = NodeMetadata()


class CongestionState(NamedTuple):
    """All nodes by number; the unknown node has no factor."""

    points: NDArray[np.int64]
    factors: Factors
    invalid_texts: Mapping[int, str]
    """By node number: the beginning of an annotation that is not a whole number."""


class CongestionStateBuilder(StateBuilder[CongestionState]):
    """Reads every node at every change of one: 5,000 annotations take some milliseconds."""

    inputs = Inputs(frozenset(), node_objects=True, metrics=False)

    def __init__(self, options: CongestionOptions) -> None:
        self._max = options.congestion_factor_max
        self._missing = options.score_without_statistics(MAX_SCORE)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, CongestionState]:
        factors = np.full(len(cluster_state.nodes) + 1, np.nan)
        invalid_texts: dict[int, str] = {}
        nodes = iter(cluster_state.node_objects.items())
        while part := list(islice(nodes, _NODES_PER_PART)):
            numbers = cluster_state.nodes.numbers([name for (_, name), _ in part])
            texts = [annotation(node) for _, node in part]
            factors[numbers] = load_annotations.integers(texts)
            for at in np.flatnonzero(np.isnan(factors[numbers])).tolist():
                if text := texts[at]:
                    # one character more than is shown tells that there are more
                    invalid_texts[int(numbers[at])] = text[: _MAX_TEXT_LENGTH + 1]
            yield
        factors[-1] = np.nan  # a node that is not in the index has the number of the unknown node
        return CongestionState(points(factors, self._max, self._missing), factors, invalid_texts)


def annotation(node: Any) -> str | None:
    """The text of the annotation of a node."""
    node_annotations: CongestionAnnotations | None = node.metadata.annotations
    return node_annotations.congestion_factor if node_annotations else None


def points(factors: Factors, max_factor: int, missing: int) -> NDArray[np.int64]:
    """The score of each factor; `missing` is the score without one. A negative factor counts as 0."""
    share = np.clip(np.nan_to_num(factors), 0, max_factor) / max_factor
    scores = np.trunc(MAX_SCORE * (1 - share) + 0.5).astype(np.int64)
    result: NDArray[np.int64] = np.where(np.isnan(factors), missing, scores)
    return result


def invalid_factor_reason(text: str | None) -> str:
    """Why an annotation holds no factor."""
    if not text:
        return f"no {CONGESTION_FACTOR}"
    shown = text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"
    quoted = msgspec.json.encode(shown).decode()
    problem = "more than 64 bits hold" if _DIGITS.fullmatch(text) else "not a whole number"
    return f"{CONGESTION_FACTOR} {quoted} is {problem}"
