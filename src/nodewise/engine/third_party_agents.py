"""Third-party agents: agents that an installed package brings by an entry point, in nodewise's process and thread.

Their results are validated (`third_party_result_validation`). An exception or an invalid result is counted, logged and
raised as `AgentError`: the chain then rejects the pods that concern the agent, and leaves the agent's scores out. They
have no controller, no `bind` and no `GET /state`, because these run with nodewise's rights on the API server. A call
that does not return stops the process; the kubelet's liveness probe restarts it (docs/adr/0019).
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import (
    AgentKind,
    ClusterState,
    FilterPlugin,
    Names,
    Plugin,
    ScorePlugin,
    Scores,
    Snapshot,
    StateBuilder,
    Verdict,
    Victims,
    Watched,
)
from nodewise.base.clock import Clock, SystemClock
from nodewise.base.errors import BadInput, BadSettings, Problem
from nodewise.engine import third_party_result_validation as validation
from nodewise.engine.third_party_result_validation import InvalidResult
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T")
ResultT = TypeVar("ResultT", Verdict, Scores)

Failure = Literal["exception", "shape"]
"""The agent raised an exception, or returned an invalid result. A label value of `agent_failures_total`."""
_LOG_INTERVAL_S: Final = 60.0


class Origin(NamedTuple):
    """The package that an agent comes from."""

    agent: str
    package: str
    version: str


class AgentError(Exception):
    """A third-party agent raised an exception, which is the cause, or returned an invalid result."""

    def __init__(self, origin: Origin, failure: Failure, why: str, *, is_reported: bool = False) -> None:
        self.origin = origin
        self.failure: Failure = failure
        self.why = why
        self.is_reported = is_reported
        """Whether the failure is counted and logged."""
        super().__init__(why)


@contextmanager
def raise_as_agent_error(origin: Origin) -> Iterator[None]:
    """Raise `AgentError` instead of whatever the block raises.

    `SystemExit` is included: an agent cannot end the process that way. `KeyboardInterrupt` is the user's.
    """
    try:
        yield
    except (AgentError, KeyboardInterrupt, GeneratorExit):
        raise
    except InvalidResult as error:
        raise AgentError(origin, "shape", str(error)) from None
    except BaseException as error:
        raise AgentError(origin, "exception", type(error).__name__) from error


class NoState(NamedTuple):
    """Stands in the Snapshot in the place of a state that the agent could not compute. The failure is reported."""

    why: str


class FailureReporter:
    """Counts the failures of one third-party agent, and logs the first of each kind in a minute."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._clock: Clock = SystemClock()
        self._metrics_registry: MetricsRegistry | None = None
        self._logged_at: dict[Failure, float] = {}
        self._unlogged: dict[Failure, int] = {}

    def connect(self, clock: Clock, metrics_registry: MetricsRegistry) -> None:
        """Count into this registry from now on."""
        self._clock, self._metrics_registry = clock, metrics_registry

    @contextmanager
    def report_and_raise_agent_error(self, method: str) -> Iterator[None]:
        """Report whatever the block raises, and raise `AgentError` instead."""
        try:
            with raise_as_agent_error(self.origin):
                yield
        except AgentError as error:
            if not error.is_reported:
                error.is_reported = True
                self._report_agent_failure(error, method)
            raise

    def call(self, method: str, function: Callable[[], T], default: T) -> T:
        """The result of the function; the default if it fails, which is reported."""
        try:
            with self.report_and_raise_agent_error(method):
                return function()
        except AgentError:
            return default

    @contextmanager
    def starting(self, method: str) -> Iterator[None]:
        """The same at the start: `BadSettings` names the agent, and why it cannot be used."""
        try:
            with self.report_and_raise_agent_error(method):
                yield
        except AgentError as error:
            package = f"a package that works, not {self.origin.package} {self.origin.version}"
            problem = Problem("--agents", f"{self.origin.agent!r}, {method}: {error.why}", package)
            raise BadSettings("agents", [problem]) from error

    def _report_agent_failure(self, error: AgentError, method: str) -> None:
        failure = error.failure
        if self._metrics_registry is not None:
            self._metrics_registry.count("agent_failures_total", agent=self.origin.agent, kind=failure)
        now = self._clock.monotonic()
        if failure in self._logged_at and now - self._logged_at[failure] < _LOG_INTERVAL_S:
            self._unlogged[failure] = self._unlogged.get(failure, 0) + 1
            return
        self._logged_at[failure] = now
        fields = {**self.origin._asdict(), "failure": failure, "what": method, "why": error.why}
        unlogged = self._unlogged.pop(failure, 0)
        logs.emit("outside_agent_failed", **fields, unlogged=unlogged, exc_info=error.__cause__)


class ThirdPartyKind(AgentKind):
    def __init__(self, kind: Any, origin: Origin) -> None:
        """`kind` passed `third_party_result_validation.validate_kind`."""
        self.name = origin.agent
        self.origin = origin
        self.summary: str = validation.validate_text(kind.summary)
        self.options: type[msgspec.Struct] = kind.options
        self.pod_fields: type[msgspec.Struct] = kind.pod_fields
        self.node_fields: type[msgspec.Struct] = kind.node_fields
        self.load_scoring = kind.load_scoring
        self.keeps_memory = bool(kind.keeps_memory)
        self.needs_metrics = bool(kind.needs_metrics)
        self.entry_weight: int | None = kind.entry_weight
        self.reporter = FailureReporter(origin)
        self._kind = kind

    def watched(self, options: Any) -> Sequence[Watched]:
        with self.reporter.starting("watched"):
            return validation.validate_watched(self._kind.watched(options), self.name)

    def resources(self, options: Any) -> Mapping[str, bool]:
        with self.reporter.starting("resources"):
            return validation.validate_resources(self._kind.resources(options))

    def state(self, options: Any, sync_period_s: float) -> "ThirdPartyState":
        with self.reporter.starting("state"):
            return ThirdPartyState(
                validation.validate_state(self._kind.state(options, sync_period_s)), self.reporter
            )

    def agent(self, options: Any) -> "ThirdPartyAgent":
        with self.reporter.starting("agent"):
            return ThirdPartyAgent(
                validation.validate_agent(self._kind.agent(options), self.name), self.reporter
            )

    def concerns(self, options: Any, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:
        return self.reporter.call("concerns", lambda: bool(self._kind.concerns(options, nodes, pods)), False)


class ThirdPartyAgent(FilterPlugin[Any, Any], ScorePlugin[Any, Any]):
    """Validates the results of a third-party agent's plugin."""

    def __init__(self, agent: Plugin[Any, Any], reporter: FailureReporter) -> None:
        self.name = reporter.origin.agent
        self._agent: Any = agent
        self._reporter = reporter
        self.filter_enabled = self.score_enabled = False
        if isinstance(agent, FilterPlugin):
            self.filter_enabled = agent.filter_enabled
            self.predicates = {
                name: partial(self._call_for_verdict, function) for name, function in agent.predicates.items()
            }
        if isinstance(agent, ScorePlugin):
            self.score_enabled = agent.score_enabled
            self.priorities = {
                name: partial(self._call_for_scores, function) for name, function in agent.priorities.items()
            }

    def equivalence_key(self, pod: Any, snapshot: Snapshot) -> Hashable:
        """The agent's key. If it fails, the pod gets a key that is equal to no other."""

        def equivalence_key() -> Hashable:
            key: Hashable = self._agent.equivalence_key(pod, self._own_snapshot(snapshot))
            hash(key)
            return key

        return self._reporter.call("equivalence_key", equivalence_key, object())

    def equivalence_version(self, snapshot: Snapshot) -> object:
        """The agent's version. If it fails, keys are computed again in every snapshot."""
        return self._reporter.call(
            "equivalence_version",
            lambda: self._agent.equivalence_version(self._own_snapshot(snapshot)),
            object(),
        )

    def namespace_equivalence_version(self, snapshot: Snapshot, namespace: str) -> object:
        """The agent's version for a namespace, likewise."""
        return self._reporter.call(
            "namespace_equivalence_version",
            lambda: self._agent.namespace_equivalence_version(self._own_snapshot(snapshot), namespace),
            object(),
        )

    def _own_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with only the agent's own state, if it has one."""
        state = snapshot.agent_states.get(self.name)
        states = {} if state is None or isinstance(state, NoState) else {self.name: state}
        return Snapshot(snapshot.nodes, states, snapshot.at, snapshot.generation)

    def filter(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Raises `AgentError` if the agent fails. None for a pod whose key is None: the agent is not called."""
        return self._call_for_verdict(self._agent.filter, pod, candidates, snapshot)

    def preempt(self, pod: Any, candidates: Names, snapshot: Snapshot, victims: Victims) -> Verdict | None:
        return self._call_for_verdict(self._agent.preempt, pod, candidates, snapshot, victims)

    def score(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Scores | None:
        return self._call_for_scores(self._agent.score, pod, candidates, snapshot)

    def _call_for_verdict(self, function: Callable[..., Any], *arguments: Any) -> Verdict | None:
        return self._call_agent("filter", function, validation.validate_verdict, *arguments)

    def _call_for_scores(self, function: Callable[..., Any], *arguments: Any) -> Scores | None:
        return self._call_agent("score", function, validation.validate_scores, *arguments)

    def _call_agent(
        self,
        method: str,
        function: Callable[..., Any],
        validate: Callable[[Any, int], ResultT | None],
        pod: Any,
        candidates: Names,
        snapshot: Snapshot,
        *further: Victims,
    ) -> ResultT | None:
        state = snapshot.agent_states.get(self.name, NoState("its state is not computed yet"))
        own_snapshot = self._own_snapshot(snapshot)
        with self._reporter.report_and_raise_agent_error(method):
            if self._agent.equivalence_key(pod, own_snapshot) is None:
                return None
            if isinstance(state, NoState):
                raise AgentError(self._reporter.origin, "exception", state.why, is_reported=True)
            result = function(pod, candidates, own_snapshot, *further)
            valid = validate(result, len(candidates))
            if valid is None or result.details is None:
                return valid
            return replace(valid, details=ThirdPartyDetails(result.details, self._reporter, len(candidates)))


class ThirdPartyDetails:
    """Details of a third-party agent, validated when they are read (`agent.Details`)."""

    def __init__(self, details: Any, reporter: FailureReporter, size: int) -> None:
        self._details = details
        self._reporter = reporter
        self._size = size
        self.nbytes = max(int(details.nbytes), 0)

    def text(self, candidate: int) -> str:
        """Empty if the agent fails."""
        return self._reporter.call(
            "details", lambda: validation.validate_text(self._details.text(candidate)), ""
        )

    def distances(self) -> NDArray[np.float64]:
        """The largest distances if the agent fails."""
        return self._reporter.call(
            "details",
            lambda: validation.validate_numbers(self._details.distances(), self._size, "distances"),
            np.ones(self._size),
        )

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """Empty if the agent fails or has none."""
        if not hasattr(self._details, "numbers"):
            return {}
        return self._reporter.call(
            "details", lambda: validation.validate_json_object(self._details.numbers(candidate)), {}
        )


class ThirdPartyState(StateBuilder[Any]):
    def __init__(self, state: StateBuilder[Any], reporter: FailureReporter) -> None:
        self.inputs = state.inputs
        self.memory_scope = state.memory_scope
        self._state = state
        self._reporter = reporter
        self._metric_requests: frozenset[MetricRequest] = frozenset()
        self._has_failed = False
        """Whether the last build failed: the next one starts from nothing."""

    def metric_requests(self, objects: Mapping[str, Any]) -> frozenset[MetricRequest]:
        """The metrics that the agent names; if it fails, those of the previous call."""
        self._metric_requests = self._reporter.call(
            "metric_requests",
            lambda: validation.validate_metric_requests(self._state.metric_requests(objects)),
            self._metric_requests,
        )
        return self._metric_requests

    def problems(self, objects: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Empty if the agent fails."""
        return self._reporter.call(
            "problems", lambda: validation.validate_problems(self._state.problems(objects)), {}
        )

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        """The agent's state; a `NoState` if it fails."""
        if self._has_failed:
            cluster_state = replace(cluster_state, changes=None)
        self._has_failed = True
        try:
            with self._reporter.report_and_raise_agent_error("build"):
                agent_state = yield from self._state.build(cluster_state)
        except AgentError as error:
            return NoState(error.why)
        self._has_failed = False
        return agent_state

    def count_request(self, pod: Any) -> None:
        self._reporter.call("count_request", lambda: self._state.count_request(pod), None)

    def recall(self, kept: bytes) -> None:
        try:
            with self._reporter.report_and_raise_agent_error("recall"):
                self._state.recall(kept)
        except AgentError as error:
            raise BadInput("memory", [Problem(self._reporter.origin.agent, error.why, "")]) from error

    def keep(self, kept: bytes | None) -> bytes | None:
        return self._reporter.call("keep", lambda: validation.validate_memory(self._state.keep(kept)), None)


def connect(kinds: Iterable[Any], clock: Clock, metrics_registry: MetricsRegistry) -> None:
    """Count the failures of the third-party agents among these."""
    for kind in kinds:
        if isinstance(kind, ThirdPartyKind):
            kind.reporter.connect(clock, metrics_registry)
