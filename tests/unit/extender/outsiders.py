"""An agent of another package that misbehaves as it is told to, through its kind as through its entry point."""

import threading
from collections.abc import Callable, Generator
from typing import Any, ClassVar

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Inputs, NodeIndex, Scores, Snapshot, Verdict
from nodewise.clock import ManualClock
from nodewise.extender import containing
from nodewise.extender.containing import ContainedKind
from nodewise.extender.warden import Limits, Origin
from nodewise.metrics.snapshot import MetricsSnapshot
from nodewise.observe.metrics_registry import MetricsRegistry

NAMES = ["a", "b", "c"]
ORIGIN = Origin("odd", "nodewise-odd", "1.2")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    odd_level: int = 1
    """A level."""


class Metadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class Fields(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


def pod(**labels: str) -> Any:
    return Fields(Metadata("d", "p", "u", {"odd": "yes", **labels}))


STRANGER: Any = Fields(Metadata("d", "q", "v"))
"""A pod that the agent has nothing to say about."""


class No(msgspec.Struct, frozen=True):
    words: Any = "odd says no"
    is_failure: ClassVar[bool] = False

    def text(self) -> Any:
        return self.words() if callable(self.words) else self.words

    def remedy(self) -> str:
        return ""


def passes(size: int) -> Verdict:
    return Verdict(np.zeros(size, np.int16), ())


class OddAgent:
    """Rejects nobody and scores 3, but for what it is told to do instead."""

    def __init__(self, kind: "OddKind") -> None:
        self.name = "odd"
        self._kind = kind
        self.predicates = {"odd-filter": self.filter}
        self.priorities = {"odd-score": self.score}

    def equivalence_key(self, pod: Any) -> Any:
        self._kind.does("equivalence_key")
        return (pod.metadata.labels or {}).get("odd")

    def filter(self, _pod: Any, candidates: Any, _view: Snapshot) -> Any:
        return self._kind.does("filter", passes(len(candidates)))

    def score(self, _pod: Any, candidates: Any, _view: Snapshot) -> Any:
        return self._kind.does("score", Scores(np.full(len(candidates), 3)))

    def preempt(self, pod: Any, candidates: Any, snapshot: Snapshot, _victims: Any) -> Any:
        return self.filter(pod, candidates, snapshot)


class OddState:
    inputs = Inputs(frozenset(), node_objects=True)

    def __init__(self, kind: "OddKind") -> None:
        self._kind = kind

    def wants(self, _objects: Any) -> Any:
        return self._kind.does("wants", frozenset())

    def problems(self, _objects: Any) -> Any:
        return self._kind.does("problems", {})

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        yield
        return self._kind.does("build", ("slot of", cluster_state.now))


class OddKind:
    name = "odd"
    summary = "for tests"
    options = Options
    pod_fields = Fields
    node_fields = Fields

    def __init__(self, **instead: Callable[[], Any]) -> None:
        self.instead: dict[str, Callable[[], Any]] = instead
        """By method, what it does first; what that gives is its answer, if it gives anything."""

    def does(self, method: str, answer: Any = None) -> Any:
        given = self.instead[method]() if method in self.instead else None
        return answer if given is None else given

    def watched(self, _options: Any) -> Any:
        return self.does("watched", ())

    def state(self, _options: Any, _sync_period_s: float) -> Any:
        return self.does("state", OddState(self))

    def agent(self, _options: Any) -> Any:
        return self.does("agent", OddAgent(self))

    def controller(self, _options: Any, _hands: Any) -> Any:
        raise AssertionError("no agent of another package acts on the API server")


class Hang:
    """Something that does not come back before it is let go."""

    def __init__(self) -> None:
        self._gone = threading.Event()
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        self._gone.wait()

    def let_go(self) -> None:
        self._gone.set()


class Held:
    """The contained kind of an odd agent, with what is counted of it."""

    def __init__(
        self, answer_s: float = 30.0, patience_s: float = 30.0, **instead: Callable[[], Any]
    ) -> None:
        self.odd = OddKind(**instead)
        self.kind: ContainedKind = containing.contained(self.odd, ORIGIN)
        self.meters = MetricsRegistry()
        self.clock = ManualClock()
        containing.serve([self.kind], Limits(answer_s, 30.0, patience_s), self.clock, self.meters)
        self.agent: Any = self.kind.agent(Options())
        self.state: Any = self.kind.state(Options(), 5.0)
        self.index = NodeIndex(NAMES)
        self.names = self.index.named(NAMES)
        self.snapshot = Snapshot(self.index, {"odd": "slot", "other": "of another"}, 1.0, 7)

    def cluster_state(self, now: float = 1.0, index: NodeIndex | None = None) -> ClusterState:
        return ClusterState(index or self.index, {}, MetricsSnapshot(), now)

    def failures(self) -> dict[str, float]:
        """By kind, how many are counted."""
        lines = [
            line for line in self.meters.exposition().decode().splitlines() if "agent_failures_total{" in line
        ]
        return {line.split('kind="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}
