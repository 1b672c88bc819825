"""The history of metric values of nodes, and checks that a decision rests on values that are not outdated.

Each change is kept with its time, so that an answer can be held against what was true when: it must be one truth as a
whole, and none older than what was known before.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

POLICY = "web"
HOT, BUSY = 80, 50
"""Above `HOT` a node takes no pods and is to be drained; above `BUSY` it is labelled."""
VIOLATING = (POLICY, "violating")
SURGE = (f"telemetry.aware.scheduling.{POLICY}/surge", "yes")
OURS = (VIOLATING[0], SURGE[0])
"""The label keys that nodewise writes here."""

T = TypeVar("T")


class MetricValues(NamedTuple):
    """What the nodes measure."""

    heat: Mapping[str, int]
    load: Mapping[str, int]

    def rejected(self) -> frozenset[str]:
        """The nodes that take no pods of the policy."""
        return frozenset(node for node, value in self.heat.items() if value > HOT)

    def scores(self) -> dict[str, int]:
        """Points of each node: the least load is best."""
        order = sorted(self.load.values())
        places = {value: order.index(value) for value in set(order)}
        last = len(order) - 1
        return {node: round(10 * (last - places[value]) / last) for node, value in self.load.items()}

    def labels(self, node: str) -> dict[str, str]:
        """What nodewise should write on a node."""
        wanted = [VIOLATING] if self.heat[node] > HOT else []
        return dict([*wanted, SURGE] if self.load[node] > BUSY else wanted)

    def exposition(self) -> str:
        """As a node exporter's text file says it."""
        named = {"node_heat": self.heat, "node_load": self.load}
        lines = [
            f'{series}{{instance="{node}"}} {value}\n'
            for series, values in named.items()
            for node, value in values.items()
        ]
        return "# TYPE node_heat gauge\n# TYPE node_load gauge\n" + "".join(lines)

    def changed(self, chance: random.Random, most: int) -> "MetricValues":
        """Another truth, in which some nodes, at most so many, cross a threshold."""
        nodes = chance.sample(sorted(self.heat), chance.randint(1, most))
        heat = {
            node: chance.randrange(HOT) if self.heat[node] > HOT else HOT + 1 + chance.randrange(20)
            for node in nodes
        }
        load = {node: chance.randrange(100) for node in nodes}
        return MetricValues({**self.heat, **heat}, {**self.load, **load})


def initial_values(nodes: Sequence[str], chance: random.Random) -> MetricValues:
    """A third of the nodes is hot, half of them are busy, or so."""
    heat = {node: chance.choice((20, 40, 95)) for node in nodes}
    return MetricValues(heat, {node: chance.randrange(100) for node in nodes})


class MetricHistory:
    """All values so far; a decision may rest on those since `floor`, the last that every component has read."""

    def __init__(self, first: MetricValues) -> None:
        self.truths = [first]
        self.began_s = [time.monotonic()]
        self.floor = 0

    @property
    def newest(self) -> MetricValues:
        return self.truths[-1]

    def add(self, truth: MetricValues) -> None:
        """Add values, before any component can read them."""
        self.began_s.append(time.monotonic())
        self.truths.append(truth)

    def settled(self) -> None:
        """Every component has read the newest values; responses from older ones are wrong from now on."""
        self.floor = len(self.truths) - 1

    def age_s(self, number: int, now_s: float) -> float:
        """For how long these values have been outdated."""
        return max(0.0, now_s - self.began_s[number + 1]) if number + 1 < len(self.truths) else 0.0


class FreshnessCheck(Generic[T]):
    """Compares responses of one kind with the history, and checks that none rests on older values than one before."""

    def __init__(self, history: MetricHistory, meant: Callable[[MetricValues], T]) -> None:
        self._history = history
        self._meant = meant
        self._at_least = 0
        self.oldest_s = 0.0
        """The largest age of outdated values in a response, in seconds."""

    def match(self, answer: T, floor: int, answered_s: float) -> int | None:
        """The index of the values that the response rests on; None if no acceptable values give this response.

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
        """Accept values of any age again."""
        self._at_least = 0

    def meanings(self) -> str:
        """The acceptable responses, for an error message."""
        meant = [self._meant(truth) for truth in self._history.truths[self._at_least :]]
        return f"acceptable since values {self._at_least} were observed: {meant}"
