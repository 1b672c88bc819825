"""Why a node has no GPUs: what was looked for, what the node has, and the remedy.

The texts become reasons of rejections, so there are few different ones. They contain names of resources and labels of
known vendors, and never values of the node.
"""

import re
from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import NodeIndex
from nodewise.agents.gpu.gpu_node_labels import LONGEST_NAME
from nodewise.agents.gpu.vendor_resource_names import PROFILES, ResourceProfile
from nodewise.base.errors import truncate

ANNOTATION: Final = "nodewise.io/gpu-cards"
_VENDORS: Final = re.compile(
    r"(gpu\.intel\.com/(i915|xe|dxg)|nvidia\.com/(gpu(\.shared)?|mig-[0-9a-z.]{1,16}(\.shared)?)"
    r"|amd\.com/(gpu|[sdtqc]px_nps[0-9]))"
)
"""Resources of GPUs that device plugins advertise."""
_NAMED: Final = 2
_MOST_REASONS: Final = 64
"""The most different reasons of all nodes; further nodes have the reason without words."""
_STRIDE: Final = 512
"""Nodes or slices between two yields."""


class MissingGpus(NamedTuple):
    """Why a node has no GPUs."""

    words: str = ""
    """What was found and what was expected; empty if nothing of the node is known."""
    remedy: str = ""
    is_labelled: bool = False
    """Whether labels say that the node has GPUs."""


def describe_missing_gpus(  # complexity: one branch for each reason
    profile: ResourceProfile,
    tags: frozenset[str],
    resources: Mapping[str, object],
    limit: str,
    unclear: str,
) -> MissingGpus:
    """Describe a node without GPUs by its labels and its allocatable resources.

    `limit` is the limit that the node exceeds, and `unclear` the label or annotation that is invalid or contradicts
    what is allocatable; empty if there is none.
    """
    if limit:
        return MissingGpus(
            f"found more than are supported, {limit}",
            "use larger GPUs or MIG slices, or fewer shares of a GPU",
        )
    if unclear:
        return MissingGpus(
            f"{unclear} does not say how many; correct it, or set annotation {ANNOTATION}",
            f"GET /state/gpu and `nodewise doctor` name the problem; the annotation {ANNOTATION} overrides all others",
        )
    offered = frozenset(resource for resource, amount in resources.items() if str(amount) not in ("", "0"))
    counting = [resource for resource in profile.counts if resource in offered]
    labels = " or ".join(profile.gpu_labels)
    if counting and profile.labelled:
        return MissingGpus(
            f"found {counting[0]}, but neither label {labels} nor annotation {ANNOTATION}; or use --gpu-profile FILE",
            "set one of them; a --gpu-profile FILE with `cards: count` counts what is allocatable",
        )
    others = ", ".join(sorted(filter(_VENDORS.fullmatch, offered))[:_NAMED])
    is_labelled = not tags.isdisjoint(profile.gpu_labels)
    despite = f" despite label {labels}" if is_labelled else ""
    actual = others or f"no resource of GPUs{despite}"
    wanted = " or ".join(truncate(resource, LONGEST_NAME) for resource in profile.counts[:_NAMED])
    remedy = _remedy_for_resources(offered, others)
    return MissingGpus(f"found {actual}, expected {wanted}; {remedy}", remedy, is_labelled)


def _remedy_for_resources(offered: frozenset[str], others: str) -> str:
    """The remedy for a node with other resources than expected; `others` are those of known vendors."""
    profiles = [name for name, other in PROFILES.items() if not offered.isdisjoint(other.counts)]
    if profiles:
        return f"use --gpu-profile {profiles[0]}"
    if others:
        return f"pods have to request {others}, or set annotation {ANNOTATION}"
    return "check the node's device plugin"


class MissingGpusOfNodes(NamedTuple):
    """Why nodes have no GPUs."""

    codes: NDArray[np.int16]
    """(N+1), by node number: an index into `reasons`; 0 for unknown nodes and with GPUs."""
    reasons: tuple[MissingGpus, ...]
    """Without words, then the different ones."""

    def of(self, index: NodeIndex, node: str) -> MissingGpus:
        """The reason of one node."""
        return self.reasons[int(self.codes[index.numbers([node])[0]])]


NO_NODES: Final = MissingGpusOfNodes(np.zeros(1, np.int16), (MissingGpus(),))


class MissingGpusTable:
    """Follows the nodes. An update without changes costs nothing."""

    def __init__(self) -> None:
        self._by_node: dict[str, MissingGpus] = {}
        self._texts: dict[MissingGpus, MissingGpus] = {}
        self._index = NodeIndex()
        self._table = NO_NODES
        self._is_changed = False

    def put(self, node: str, missing: MissingGpus | None) -> None:
        """Add, replace or (with None, or without words) remove a node."""
        if missing is None or not missing.words:
            self._is_changed |= self._by_node.pop(node, None) is not None
        elif self._by_node.get(node) != missing:
            self._by_node[node] = self._texts.setdefault(missing, missing)
            self._is_changed = True

    def by_number(self, index: NodeIndex) -> Generator[None, None, MissingGpusOfNodes]:
        """The reasons by node number."""
        if index is self._index and not self._is_changed:
            return self._table
        known, codes = list(index.known), np.zeros(len(index.known) + 1, np.int16)
        reasons: dict[MissingGpus, int] = {MissingGpus(): 0}
        for start in range(0, len(known), _STRIDE):
            yield
            for number, name in enumerate(known[start : start + _STRIDE], start):
                missing = self._by_node.get(name, MissingGpus())
                if missing in reasons or len(reasons) < _MOST_REASONS:
                    codes[number] = reasons.setdefault(missing, len(reasons))
        self._texts = {missing: missing for missing in self._by_node.values()}
        self._table, self._index, self._is_changed = MissingGpusOfNodes(codes, tuple(reasons)), index, False
        return self._table
