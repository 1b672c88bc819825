"""How much is requested of each node, summed up from the pods that are there: known as soon as a pod is bound."""

from collections.abc import Callable, Generator, Mapping
from functools import lru_cache, partial
from sys import intern
from typing import Final

import msgspec

from nodewise import changes
from nodewise.agent import ObjectKey
from nodewise.agents.pigeon import resources
from nodewise.agents.pigeon.resources import Amounts
from nodewise.statistics.amounts import Quantity
from nodewise.statistics.holding import HoldingSpec, HoldingStatus, is_holding
from nodewise.statistics.requests import (
    RequestedResources,
    RequestingContainer,
    RequestingPod,
)

_STRIDE: Final = 64
"""Pods that are taken in between two pauses."""


class HeldMetadata(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""


class HeldPod(RequestingPod, frozen=True, gc=False, kw_only=True):
    """What is read of a pod to know what it takes of which node."""

    metadata: HeldMetadata
    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


Pods = Mapping[ObjectKey, HeldPod]


def keeper(gpu: str) -> Callable[[HeldPod], HeldPod | None]:
    """Keeps of a pod where it is and what it takes there, in one container; of any other nothing."""
    return partial(_kept, gpu)


def _kept(gpu: str, pod: HeldPod) -> HeldPod | None:
    if not is_holding(pod):
        return None
    metadata = HeldMetadata(name=pod.metadata.name, namespace=intern(pod.metadata.namespace))
    spec = HoldingSpec(
        containers=_containers(gpu, resources.taken(pod, gpu)), nodeName=intern(pod.spec.nodeName)
    )
    return HeldPod(metadata=metadata, spec=spec)


@lru_cache(4096)
def _containers(gpu: str, amounts: Amounts) -> tuple[RequestingContainer, ...]:
    """The same for all pods that take as much."""
    cpu, memory, _, cards, storage = (int(amount) for amount in amounts)
    given: dict[str, Quantity] = {
        "cpu": f"{cpu}m",
        "memory": memory,
        gpu: cards,
        "ephemeral-storage": storage,
    }
    return (
        RequestingContainer(RequestedResources({name: amount for name, amount in given.items() if amount})),
    )


class Holdings:
    """By node what its pods take together, kept up to date one pod by one."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._pods: Pods = {}
        self._sums: dict[str, Amounts] = {}
        self._is_whole = True
        """Whether what was begun last came to its end."""

    def follow(self, pods: Pods) -> Generator[None, None, None]:
        """Take in what is different now. After one that was given up half-way all is summed up again."""
        if not self._is_whole:
            self._pods, self._sums = {}, {}
        self._is_whole = False
        for number, key in enumerate((yield from changes.between(self._pods, pods))):
            self._add(self._pods.get(key), -1)
            self._add(pods.get(key), 1)
            if not number % _STRIDE:
                yield
        self._pods, self._is_whole = pods, True

    def __len__(self) -> int:
        """Nodes that have pods. Who may make pods may give them any node's name."""
        return len(self._sums)

    def of(self, node: str) -> Amounts:
        """What the pods of a node take together."""
        return self._sums.get(node, _NOTHING)

    def _add(self, pod: HeldPod | None, sign: int) -> None:
        if pod is not None:
            node, amounts = pod.spec.nodeName, resources.taken(pod, self._gpu)
            # whole numbers of Python: what is taken away is exactly what was added
            found = tuple(a + sign * b for a, b in zip(self.of(node), amounts, strict=True))
            if any(found):
                self._sums[node] = found
            else:
                del self._sums[node]


_NOTHING: Final[Amounts] = (0,) * len(resources.NAMES)
