"""The nodes in, one array out. This runs when nodes change, not when kube-scheduler asks."""

from collections.abc import Generator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import ClusterState, Inputs, StateBuilder


class NodeAnnotations(msgspec.Struct, frozen=True, rename={"template_value": "template/value"}):
    """The annotations that are read, one field each: agents share what is kept of a node."""

    template_value: str | None = None


class NodeMetadata(msgspec.Struct, frozen=True):
    annotations: NodeAnnotations | None = None


class NodeFields(msgspec.Struct, frozen=True):
    """What is read of a Node; names are those of its JSON. Whatever is not declared here is not kept."""

    metadata: NodeMetadata = NodeMetadata()


class Slot(NamedTuple):
    """What requests are answered from. Never change one that was given away: requests may be reading it."""

    values: NDArray[np.float64]
    """By node number, and one more for the node that is not known; NaN where there is no number."""


class TemplateState(StateBuilder[Slot]):
    """Makes the slot."""

    inputs = Inputs(objects=frozenset(), node_objects=True, metrics=False)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Slot]:
        values = np.full(len(cluster_state.nodes) + 1, np.nan)
        for number, node in enumerate(cluster_state.node_objects.values()):
            annotations = node.metadata.annotations
            values[number] = read_number(annotations.template_value if annotations else None)
            yield  # whoever waits for an answer goes first
        return Slot(values)


def read_number(text: str | None) -> float:
    """A number as somebody wrote it; NaN where there is none."""
    try:
        number = float(text or "nan")
    except ValueError:
        return np.nan
    return number if np.isfinite(number) else np.nan
