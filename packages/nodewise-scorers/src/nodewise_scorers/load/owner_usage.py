"""The owners of pods, and the usage of their pods per requested unit, at an age, as the statistics of pods show it.

The number of owners is bounded: namespaces share it fairly, so that a tenant with many owners takes numbers from its
own. Pods of an owner without a number count with the mean of the cluster.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.load.bound_pods import OwnerKey, PodAmounts
from nodewise_scorers.load.projected_load import OTHERS

Floats = NDArray[np.float64]

MAX_OWNERS: Final = 4096
AGES_S: Final = (60.0, 300.0)
"""Limits of the ages between which usage is told apart: during the start, shortly after it, and later."""
_HALF_LIFE: Final = 12.0
"""Samples after which a sample weighs half."""
_DECAY: Final = 0.5 ** (1 / _HALF_LIFE)
_RESOURCES: Final = 2


class Owner(msgspec.Struct, gc=False):
    """An owner; its number is `OTHERS` if it has none, or lost it."""

    key: OwnerKey
    number: int
    pods: int = 0


class OwnerUsage:
    """Numbers of owners, and means of usage per requested unit by resource, age and number."""

    def __init__(self, most: int = MAX_OWNERS) -> None:
        self.most: Final = most
        self._owners: dict[OwnerKey, Owner] = {}
        """Those with pods, and those with a number that had some, in the order of their first pod."""
        self._numbered: dict[str, dict[OwnerKey, Owner]] = {}
        """By namespace, those with a number."""
        self._free = list(reversed(range(most)))
        shape = (_RESOURCES, len(AGES_S) + 1, most)
        self._weights = np.zeros(shape)
        self._sums = np.zeros(shape)
        self.cluster_means: Floats = np.array([0.5, 0.5])
        """Usage per requested unit of all pods; half of the requests before any statistics."""

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, key: OwnerKey) -> Owner | None:
        return self._owners.get(key)

    def add_pod(self, key: OwnerKey, on_lost: Callable[[int], None]) -> Owner:
        """The owner of a pod that was bound. `on_lost` is called with a number that another owner lost to it.

        An owner that is new, or has no pods, gets a number.
        """
        owner = self._owners.setdefault(key, Owner(key, OTHERS))
        if owner.number == OTHERS and not owner.pods:
            owned = self._numbered.setdefault(key[0], {})
            if not self._free and self._may_take(owned):
                on_lost(self._take_number())
            if self._free:
                owner.number = self._free.pop()
                owned[key] = owner
            if not owned:
                del self._numbered[key[0]]
        owner.pods += 1
        return owner

    def remove_pod(self, key: OwnerKey) -> Owner:
        """The owner of a pod that left its node. With a number it is remembered until another owner needs that."""
        owner = self._owners.get(key) or Owner(key, OTHERS, 1)
        owner.pods -= 1
        if not owner.pods and owner.number == OTHERS:
            self._owners.pop(key, None)
        return owner

    def forget_pods(self) -> None:
        """All pods are counted anew."""
        for owner in list(self._owners.values()):
            owner.pods = 0
            if owner.number == OTHERS:
                del self._owners[owner.key]

    def _may_take(self, owned: dict[OwnerKey, Owner]) -> bool:
        """Whether a namespace may take a number: its owners are fewer than others', or one of its own has no pods."""
        return len(owned) < max(map(len, self._numbered.values())) or any(
            not owner.pods for owner in owned.values()
        )

    def _take_number(self) -> int:
        """Free the number of an owner of the largest namespace: one without pods, or else the oldest."""
        largest = max(self._numbered.values(), key=len)
        lost = next((owner for owner in largest.values() if not owner.pods), next(iter(largest.values())))
        del largest[lost.key]
        if not lost.pods:
            del self._owners[lost.key]
        number, lost.number = lost.number, OTHERS
        self._weights[:, :, number] = self._sums[:, :, number] = 0.0
        self._free.append(number)
        return number

    def observe(self, numbers: NDArray[np.intp], ages_s: Floats, usage: Floats) -> None:
        """Take one sample of pods: by pod, the owner's number, the age, and by resource the usage per requested unit.

        NaN for an unknown usage.
        """
        has_number = numbers != OTHERS
        numbers, usage = numbers[has_number], usage[:, has_number]
        ages = np.searchsorted(AGES_S, ages_s[has_number], side="right")
        places = ages * self.most + numbers
        size = self._weights[0].size
        for resource in range(_RESOURCES):
            known = ~np.isnan(usage[resource])
            counts = np.bincount(places[known], minlength=size)
            seen = np.flatnonzero(counts)
            means = np.bincount(places[known], usage[resource][known], size)[seen] / counts[seen]
            weights, sums = self._weights[resource].reshape(-1), self._sums[resource].reshape(-1)
            weights[seen] = weights[seen] * _DECAY + 1.0
            sums[seen] = sums[seen] * _DECAY + means

    def estimate(self, owner: Owner | None, amounts: PodAmounts, age_s: float) -> tuple[float, float]:
        """The usage of a pod at an age, in milli-CPU and bytes: never above its limits.

        That of its owner's pods at this age, else of its owner's pods at any age, else the mean of the cluster.
        """
        age = int(np.searchsorted(AGES_S, age_s, side="right"))
        estimates = []
        for resource in range(_RESOURCES):
            share = float(self.cluster_means[resource])
            if owner is not None and owner.number != OTHERS:
                weights, sums = (
                    self._weights[resource, :, owner.number],
                    self._sums[resource, :, owner.number],
                )
                if weights[age]:
                    share = float(sums[age] / weights[age])
                elif weights.any():
                    share = float(sums.sum() / weights.sum())
            estimates.append(min(share * amounts.counted[resource], amounts.limits[resource]))
        return estimates[0], estimates[1]
