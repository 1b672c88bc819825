"""The history of the nodes' metric values, and checks that decisions follow from values that are not outdated.

Each change is kept with its time. A response must follow from one set of values as a whole, and not from values older
than those of an earlier response.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

POLICY = "web"
HOT, BUSY = 80, 50
"""Thresholds. A node whose heat is above `HOT` is rejected and is to be drained; if its load is above `BUSY`, it is
labelled.
"""
VIOLATING = (POLICY, "violating")
SURGE = (f"telemetry.aware.scheduling.{POLICY}/surge", "yes")
OURS = (VIOLATING[0], SURGE[0])
"""The label keys that nodewise writes in these tests."""

T = TypeVar("T")


class MetricValues(NamedTuple):
    """The metric values of all nodes at one time."""

    heat: Mapping[str, int]
    load: Mapping[str, int]

    def rejected(self) -> frozenset[str]:
        """The nodes that the policy rejects."""
        return frozenset(node for node, value in self.heat.items() if value > HOT)

    def labelled(self) -> frozenset[str]:
        """The nodes that should have a label, which the policy's status counts as violating."""
        return frozenset(node for node in self.heat if self.labels(node))

    def scores(self) -> dict[str, int]:
        """The score of each node; the lowest load gets the highest score."""
        order = sorted(self.load.values())
        places = {value: order.index(value) for value in set(order)}
        last = len(order) - 1
        return {node: round(10 * (last - places[value]) / last) for node, value in self.load.items()}

    def labels(self, node: str) -> dict[str, str]:
        """The labels that nodewise should set on a node."""
        wanted = [VIOLATING] if self.heat[node] > HOT else []
        return dict([*wanted, SURGE] if self.load[node] > BUSY else wanted)

    def exposition(self) -> str:
        """The values in the text format that the node exporter reads."""
        named = {"node_heat": self.heat, "node_load": self.load}
        lines = [
            f'{series}{{instance="{node}"}} {value}\n'
            for series, values in named.items()
            for node, value in values.items()
        ]
        return "# TYPE node_heat gauge\n# TYPE node_load gauge\n" + "".join(lines)

    def changed(self, chance: random.Random, most: int) -> "MetricValues":
        """New values, in which from one to `most` nodes cross the threshold `HOT` and get a new load."""
        nodes = chance.sample(sorted(self.heat), chance.randint(1, most))
        heat = {
            node: chance.randrange(HOT) if self.heat[node] > HOT else HOT + 1 + chance.randrange(20)
            for node in nodes
        }
        load = {node: chance.randrange(100) for node in nodes}
        return MetricValues({**self.heat, **heat}, {**self.load, **load})


def initial_values(nodes: Sequence[str], chance: random.Random) -> MetricValues:
    """Random values: on average, a third of the nodes is hot and half of them are busy."""
    heat = {node: chance.choice((20, 40, 95)) for node in nodes}
    return MetricValues(heat, {node: chance.randrange(100) for node in nodes})


class MetricHistory:
    """All values so far. A decision may follow from those since `floor`, the index of the last values that every
    component has read.
    """

    def __init__(self, first: MetricValues) -> None:
        self.truths = [first]
        self.began_s = [time.monotonic()]
        self.floor = 0

    @property
    def newest(self) -> MetricValues:
        return self.truths[-1]

    def add(self, truth: MetricValues) -> None:
        """Adds values, before any component can read them."""
        self.began_s.append(time.monotonic())
        self.truths.append(truth)

    def settled(self) -> None:
        """Records that every component has read the newest values. From now on, older values are not acceptable."""
        self.floor = len(self.truths) - 1

    def age_s(self, number: int, now_s: float) -> float:
        """The seconds for which these values have been outdated."""
        return max(0.0, now_s - self.began_s[number + 1]) if number + 1 < len(self.truths) else 0.0


class FreshnessCheck(Generic[T]):
    """Compares responses of one kind with the history, and checks that none follows from older values than an earlier
    one.
    """

    def __init__(self, history: MetricHistory, meant: Callable[[MetricValues], T]) -> None:
        self._history = history
        self._meant = meant
        self._at_least = 0
        self.oldest_s = 0.0
        """The largest age of outdated values in a response, in seconds."""

    def match(self, answer: T, floor: int, answered_s: float) -> int | None:
        """The index of the values from which the response follows; None if it follows from no acceptable values.

        `floor` is the history's floor at the time of the request.
        """
        at_least = max(self._at_least, floor)
        for number in range(at_least, len(self._history.truths)):
            if self._meant(self._history.truths[number]) == answer:
                self._at_least = number
                self.oldest_s = max(self.oldest_s, self._history.age_s(number, answered_s))
                return number
        return None

    def forget(self) -> None:
        """Accepts values of any age again."""
        self._at_least = 0

    def meanings(self) -> str:
        """The acceptable responses, for an error message."""
        meant = [self._meant(truth) for truth in self._history.truths[self._at_least :]]
        return f"acceptable since values {self._at_least} were observed: {meant}"
