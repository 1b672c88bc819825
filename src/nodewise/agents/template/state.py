"""Reads the nodes into one array. This runs when nodes change, not for each request."""

from collections.abc import Generator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, StateBuilder


class NodeAnnotations(msgspec.Struct, frozen=True, rename={"template_value": "template/value"}):
    """The annotations that are read, one field each. All agents share one decoded object per node."""

    template_value: str | None = None


class NodeMetadata(msgspec.Struct, frozen=True):
    annotations: NodeAnnotations | None = None


class NodeFields(msgspec.Struct, frozen=True):
    """The fields of a Node that are read, with the names of its JSON. Other fields are dropped."""

    metadata: NodeMetadata = NodeMetadata()


class TemplateState(NamedTuple):
    """The state from which requests are answered. It must not change after `build` returned it."""

    values: NDArray[np.float64]
    """By node number, and one more for unknown nodes; NaN where there is no number."""


class TemplateStateBuilder(StateBuilder[TemplateState]):
    """Computes the state from the nodes."""

    inputs = Inputs(objects=frozenset(), node_objects=True, metrics=False)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, TemplateState]:
        values = np.full(len(cluster_state.nodes) + 1, np.nan)
        for number, node in enumerate(cluster_state.node_objects.values()):
            annotations = node.metadata.annotations
            values[number] = read_number(annotations.template_value if annotations else None)
            yield  # lets the event loop answer requests
        return TemplateState(values)


def read_number(text: str | None) -> float:
    """Parse a number; NaN if the text is not a finite number."""
    try:
        number = float(text or "nan")
    except ValueError:
        return np.nan
    return number if np.isfinite(number) else np.nan
