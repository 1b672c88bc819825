"""A queue of Kubernetes events in which namespaces take turns, so that the events of one do not displace others."""

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairEventQueue(Generic[T]):
    """Items by namespace, each with the time at which it is due."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heaps: OrderedDict[str, list[tuple[float, int, T]]] = OrderedDict()
        """By namespace, never empty: time, number and item. First the namespace whose turn was longest ago."""
        self._length = 0
        self._number = 0

    def __len__(self) -> int:
        return self._length

    def has_room(self, namespace: str) -> bool:
        """Whether `push` would keep an item of the namespace, in place of one of the longest if the queue is full."""
        longest = max(map(len, self._heaps.values()), default=0)
        return self._length < self._limit or len(self._heaps.get(namespace, ())) + 1 < longest

    def push(self, namespace: str, due_s: float, item: T) -> T | None:
        """Add an item. If there are too many, returns the last one of the namespace with the most, which is removed."""
        self._number += 1
        heapq.heappush(self._heaps.setdefault(namespace, []), (due_s, self._number, item))
        self._length += 1
        if self._length <= self._limit:
            return None
        longest = max(self._heaps, key=lambda name: len(self._heaps[name]))
        heap = self._heaps[longest]
        last = heap.index(max(heap, key=lambda entry: entry[:2]))
        heap[last], heap[-1] = heap[-1], heap[last]
        removed = heap.pop()[2]
        heapq.heapify(heap)
        self._length -= 1
        if not heap:
            del self._heaps[longest]
        return removed

    def next_due_s(self) -> float:
        """The time at which the next item is due; infinite without items."""
        return min((heap[0][0] for heap in self._heaps.values()), default=float("inf"))

    def pop(self, now_s: float) -> T | None:
        """The next item that is due, of the namespace whose turn was longest ago; None if none is due."""
        for namespace, heap in self._heaps.items():
            if heap[0][0] <= now_s:
                item = heapq.heappop(heap)[2]
                self._length -= 1
                if heap:
                    self._heaps.move_to_end(namespace)
                else:
                    del self._heaps[namespace]
                return item
        return None
