"""A third-party agent whose methods tests can replace."""

from collections.abc import Callable, Generator
from typing import Any, ClassVar

import msgspec
import numpy as np

from nodewise.agent import (
    AgentKind,
    ClusterState,
    FilterPlugin,
    Inputs,
    NodeIndex,
    ScorePlugin,
    Scores,
    Snapshot,
    StateBuilder,
    Verdict,
)
from nodewise.engine import third_party_agents
from nodewise.engine.third_party_agents import Origin, ThirdPartyKind
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock

NAMES = ["a", "b", "c"]
ORIGIN = Origin("odd", "nodewise-odd", "1.2")


class OddOptions(msgspec.Struct, frozen=True, kw_only=True):
    odd_level: int = 1
    """A level."""


class OddMetadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None


class OddFields(msgspec.Struct, frozen=True):
    metadata: OddMetadata = OddMetadata()


def pod(**labels: str) -> Any:
    return OddFields(OddMetadata("d", "p", "u", {"odd": "yes", **labels}))


STRANGER: Any = OddFields(OddMetadata("d", "q", "v"))
"""A pod that does not concern the agent."""


class No(msgspec.Struct, frozen=True):
    words: Any = "odd says no"
    is_failure: ClassVar[bool] = False

    def text(self) -> Any:
        return self.words() if callable(self.words) else self.words

    def remedy(self) -> str:
        return ""


def passes(size: int) -> Verdict:
    return Verdict(np.zeros(size, np.int16), ())


class OddAgent(FilterPlugin[Any, Any], ScorePlugin[Any, Any]):
    """An agent that rejects no node and gives each the score 3."""

    def __init__(self, kind: "OddKind") -> None:
        self.name = "odd"
        self._kind = kind
        self.predicates = {"odd-filter": self.filter}
        self.priorities = {"odd-score": self.score}

    def equivalence_key(self, pod: Any, snapshot: Any) -> Any:
        self._kind.does("equivalence_key")
        return (pod.metadata.labels or {}).get("odd")

    def equivalence_version(self, snapshot: Any) -> Any:
        return self._kind.does("equivalence_version")

    def filter(self, _pod: Any, candidates: Any, _view: Snapshot) -> Any:
        return self._kind.does("filter", passes(len(candidates)))

    def score(self, _pod: Any, candidates: Any, _view: Snapshot) -> Any:
        return self._kind.does("score", Scores(np.full(len(candidates), 3)))

    def preempt(self, pod: Any, candidates: Any, snapshot: Snapshot, _victims: Any) -> Any:
        return self.filter(pod, candidates, snapshot)


class OddState(StateBuilder[Any]):
    inputs = Inputs(frozenset(), node_objects=True)

    def __init__(self, kind: "OddKind") -> None:
        self._kind = kind

    def metric_requests(self, _objects: Any) -> Any:
        return self._kind.does("metric_requests", frozenset())

    def problems(self, _objects: Any) -> Any:
        return self._kind.does("problems", {})

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        yield
        return self._kind.does("build", ("slot of", cluster_state.now))


class OddKind(AgentKind):
    name = "odd"
    summary = "for tests"
    options = OddOptions
    pod_fields = OddFields
    node_fields = OddFields

    def __init__(self, **replacements: Callable[[], Any]) -> None:
        self.replacements: dict[str, Callable[[], Any]] = replacements
        """Functions that are called in place of methods. If one returns None, the method has its usual result."""

    def does(self, method: str, answer: Any = None) -> Any:
        result = self.replacements[method]() if method in self.replacements else None
        return answer if result is None else result

    def watched(self, _options: Any) -> Any:
        return self.does("watched", ())

    def state(self, _options: Any, _sync_period_s: float) -> Any:
        return self.does("state", OddState(self))

    def agent(self, _options: Any) -> Any:
        return self.does("agent", OddAgent(self))


class OddSetup:
    """The validated kind of an odd agent, and the metrics registry that counts its failures."""

    def __init__(self, **replacements: Callable[[], Any]) -> None:
        self.odd = OddKind(**replacements)
        self.kind = ThirdPartyKind(self.odd, ORIGIN)
        self.metrics_registry = MetricsRegistry()
        self.clock = ManualClock()
        third_party_agents.connect([self.kind], self.clock, self.metrics_registry)
        self.agent: Any = self.kind.agent(OddOptions())
        self.state: Any = self.kind.state(OddOptions(), 5.0)
        self.index = NodeIndex(NAMES)
        self.names = self.index.named(NAMES)
        self.snapshot = Snapshot(self.index, {"odd": "build", "other": "of another"}, 1.0, 7)

    def cluster_state(self, now: float = 1.0) -> ClusterState:
        return ClusterState(self.index, {}, MetricsSnapshot(), now)

    def failures(self) -> dict[str, float]:
        """The counted failures, by kind."""
        lines = [
            line
            for line in self.metrics_registry.exposition().decode().splitlines()
            if "agent_failures_total{" in line
        ]
        return {line.split('kind="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}
