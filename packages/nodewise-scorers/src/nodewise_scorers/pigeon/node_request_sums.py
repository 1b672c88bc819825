"""The sum of pod requests on each node, updated as soon as a pod is bound."""

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Final

import msgspec

from nodewise.agent import ObjectKey
from nodewise.agent.state import Change
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus
from nodewise_scorers.pigeon import resource_units
from nodewise_scorers.pigeon.resource_units import Amounts

_STRIDE: Final = 64
"""Pods between two yields."""


class HoldingMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""


class HoldingPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The fields of a pod that say what it requests of which node."""

    metadata: HoldingMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


def make_pod_request_reducer(gpu: str) -> Callable[[HoldingPod], HoldingPod | None]:
    """Return a function that reduces a bound pod to its node and its requests, and drops any other pod."""
    return partial(_reduce_pod_to_requests, gpu)


def _reduce_pod_to_requests(gpu: str, pod: HoldingPod) -> HoldingPod | None:
    if not pod_requests.holds_requests(pod):
        return None
    reduced = pod_requests.reduce_to_requests(pod, resource_units.requested_resources(gpu))
    metadata = HoldingMetadata(name=pod.metadata.name, namespace=reduced.metadata.namespace)
    return HoldingPod(metadata=metadata, spec=reduced.spec)


class NodeRequests:
    """The sum of what the pods of each node request, kept up to date by changes."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._sums: dict[str, Amounts] = {}

    def reset(self) -> None:
        """Remove all sums."""
        self._sums = {}

    def apply(
        self, changes: Iterable[tuple[ObjectKey, Change[HoldingPod]]]
    ) -> Generator[None, None, set[str]]:
        """Apply changes of pods. Returns the nodes of these pods."""
        nodes: set[str] = set()
        for number, (_, change) in enumerate(changes):
            for pod, sign in ((change.old, -1), (change.new, 1)):
                if pod is not None:
                    self._add_pod_requests(pod, sign)
                    nodes.add(pod.spec.nodeName)
            if not number % _STRIDE:
                yield
        return nodes

    def __len__(self) -> int:
        """Nodes that have pods. A pod can name any node, also one that does not exist."""
        return len(self._sums)

    def of(self, node: str) -> Amounts:
        """What the pods of a node request together."""
        return self._sums.get(node, _NOTHING)

    def _add_pod_requests(self, pod: HoldingPod, sign: int) -> None:
        node, amounts = pod.spec.nodeName, resource_units.raw_pod_requests(pod.spec, self._gpu)
        # whole numbers of Python: what is subtracted is exactly what was added
        total = tuple(a + sign * b for a, b in zip(self.of(node), amounts, strict=True))
        if any(total):
            self._sums[node] = total
        else:
            self._sums.pop(node, None)


_NOTHING: Final[Amounts] = (0,) * len(resource_units.NAMES)
