"""The chain of agents: each filters and scores the candidates for one pod, with one frozen snapshot and weights."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import (
    FilterFunction,
    FilterPlugin,
    Names,
    Plugin,
    ScoreFunction,
    ScorePlugin,
    Scores,
    Snapshot,
    StateBuilder,
    Verdict,
    Victims,
)
from nodewise.agent.verdicts import OWN_REASON
from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option
from nodewise.engine.decision import Decision, PodRef, Verb
from nodewise.engine.third_party_agents import AgentError
from nodewise.observe import logs, traces

_MOST: Final = 10**6
"""The largest weight; sums of weighted scores stay finite."""


class ChainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Combination of the scores of several agents."""

    weights: Annotated[str, Option(metavar="NAME=WEIGHT,…")] = ""
    """Weights of priorities, such as `safe-overload=1,safe-balance=10,congestion=2`: by the priority's own name, or by
    the agent's name for all of its priorities. The default is 1. A node's score is the weighted mean of the priorities
    that score the pod, rounded."""


class Priority(NamedTuple):
    """A score function that can have a weight."""

    agent: str
    label: str
    """Its own name; empty if it has only the agent's."""


Weights = Mapping[Priority, float]


def assign_weights(agents: Sequence["AnyPlugin"], options: ChainOptions) -> Weights:
    """The weight of each score function of these agents. `BadSettings` names each invalid part of the option.

    Unknown names are errors, because a misspelt name would silently leave the weight at 1.
    """
    functions = (function for agent in agents for function in score_functions(agent))
    priorities = [Priority(function.agent.name, function.label) for function in functions]
    labels = {priority.label for priority in priorities if priority.label}
    agent_names = {priority.agent for priority in priorities}
    named = _parse_weights(options.weights, sorted(labels | agent_names))
    weights = {}
    for priority in priorities:
        # a name that is both a priority's and an agent's is the priority's
        of_agent = 1.0 if priority.agent in labels else named.get(priority.agent, 1.0)
        weights[priority] = named.get(priority.label, of_agent)
    if named and not any(weights.values()):
        raise BadSettings.of("settings", "--weights", repr(options.weights), "at least one weight above 0")
    return weights


def _parse_weights(text: str, valid_names: Sequence[str]) -> dict[str, float]:
    """The weights by name. `BadSettings` names each invalid part."""
    weights: dict[str, float] = {}
    problems = []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    times = Counter(part.partition("=")[0].strip() for part in parts)
    for part in parts:
        name, _, number = (word.strip() for word in part.partition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not name or not 0 <= weight <= _MOST:
            problems.append(Problem("--weights", repr(part), f"name=number, from 0 to {_MOST}"))
        elif times[name] > 1:
            problems.append(Problem("--weights", repr(part), "each name once"))
        elif name not in valid_names:
            problems.append(Problem("--weights", repr(part), f"one of {', '.join(valid_names)}"))
        weights[name] = weight
    if problems:
        raise BadSettings("settings", problems)
    return weights


class AgentFailed(msgspec.Struct, frozen=True):
    """A defect of an agent. Its pods are rejected, because the filter fails closed; other pods are not affected."""

    agent: str
    why: str = ""
    """The failure of a third-party agent."""
    package: str = ""
    """The package of a third-party agent."""
    is_failure: ClassVar[bool] = True
    is_unresolvable: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}agent {self.agent} failed" + (
            f": {self.why}" if self.package else ", see the log of nodewise"
        )

    def remedy(self) -> str:
        if self.package:
            return f"a defect of the package {self.package}: see the event outside_agent_failed in nodewise's log"
        return "a defect of nodewise: please report it with the line agent_failed of the log"


AnyPlugin = Plugin[Any, Any]


class Filter(NamedTuple):
    agent: FilterPlugin[Any, Any]
    call: FilterFunction


class Scorer(NamedTuple):
    """A score function of an agent."""

    agent: ScorePlugin[Any, Any]
    label: str
    """As in `Scores`."""
    call: ScoreFunction


def filter_functions(agent: AnyPlugin) -> list[Filter]:
    """The filter function of an agent, if it has one."""
    return [Filter(agent, agent.filter)] if isinstance(agent, FilterPlugin) and agent.filter_enabled else []


def score_functions(agent: AnyPlugin) -> list[Scorer]:
    """The score functions of an agent: its named priorities, or else its `score`."""
    if not isinstance(agent, ScorePlugin) or not agent.score_enabled:
        return []
    if agent.priorities:
        return [Scorer(agent, label, function) for label, function in agent.priorities.items()]
    return [Scorer(agent, "", agent.score)]


class AgentChain:
    """Agents in the order in which they are called."""

    def __init__(
        self,
        agents: Sequence[AnyPlugin],
        weights: Weights | None = None,
        state_builders: Mapping[str, StateBuilder[Any]] | None = None,
    ) -> None:
        self.agents = tuple(agents)
        self._filters = [function for agent in agents for function in filter_functions(agent)]
        self._scorers = [function for agent in agents for function in score_functions(agent)]
        self._weights = weights or {}
        self._request_counters = [
            state_builders[agent.name] for agent in agents if state_builders and agent.name in state_builders
        ]

        none = StateBuilder.count_prioritized
        self._placement_counters = [
            builder
            for builder in self._request_counters
            if getattr(type(builder), "count_prioritized", none) is not none
        ]

    def only(self, function: Filter | Scorer) -> "AgentChain":
        """The chain of a single function."""
        chain = AgentChain([function.agent])
        chain._filters = [function] if isinstance(function, Filter) else []
        chain._scorers = [function] if isinstance(function, Scorer) else []
        if isinstance(function, Scorer):
            chain._request_counters = self._request_counters
            chain._placement_counters = self._placement_counters
        return chain

    def filter(self, pod: Any, names: Sequence[str] | Names, snapshot: Snapshot, now: float) -> Decision:
        """Decide which of the named nodes the pod may go to."""
        candidates = snapshot.nodes.named(names)
        verdicts = self._agents_verdicts(
            "filter", candidates, lambda function: function.call(pod, candidates, snapshot)
        )
        return _make_decision("filter", pod, candidates, snapshot, now, verdicts)

    def preempt(self, pod: Any, victims: Victims, snapshot: Snapshot, now: float) -> Decision:
        """Decide on which of the nodes the pod could run without the victims."""
        candidates = snapshot.nodes.named(list(victims))
        verdicts = self._agents_verdicts(
            "preempt", candidates, lambda function: function.agent.preempt(pod, candidates, snapshot, victims)
        )
        return _make_decision("preempt", pod, candidates, snapshot, now, verdicts)

    def feasible(self, pod: Any, candidates: Names, snapshot: Snapshot) -> NDArray[np.bool_]:
        """The candidates that no agent rejects, as a mask; no decision is stored."""
        kept = np.ones(len(candidates), bool)
        for _, verdict in self._agents_verdicts(
            "filter", candidates, lambda function: function.call(pod, candidates, snapshot)
        ):
            kept &= verdict.codes == 0
        return kept

    def equivalence_key(self, pod: Any, snapshot: Snapshot) -> Hashable:
        """What `feasible` depends on in addition to the snapshot: equal for pods with equal results.

        None for a pod that no agent filters.
        """
        try:
            keys = tuple(function.agent.equivalence_key(pod, snapshot) for function in self._filters)
        except Exception as error:  # noqa: BLE001 - the pod then has a key of its own
            logs.emit("agent_failed", agent=", ".join(agent.name for agent in self.agents), exc_info=error)
            return object()
        return keys if any(key is not None for key in keys) else None

    def equivalence_versions(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The `equivalence_version` of each agent, compared by identity."""
        return tuple(function.agent.equivalence_version(snapshot) for function in self._filters)

    def namespace_equivalence_versions(self, snapshot: Snapshot, namespace: str) -> tuple[object, ...]:
        """The `namespace_equivalence_version` of each agent, likewise."""
        return tuple(
            function.agent.namespace_equivalence_version(snapshot, namespace) for function in self._filters
        )

    def prioritize(self, pod: Any, names: Sequence[str] | Names, snapshot: Snapshot, now: float) -> Decision:
        """Score the named nodes. A node that is named twice counts once."""
        candidates = snapshot.nodes.named(names)
        # kube-scheduler sends no duplicates, so only the check must be fast
        if len(candidates) and np.bincount(candidates.numbers).max() > 1:
            candidates = candidates.index.named(list(dict.fromkeys(candidates)))
        scores, failures = self._compute_scores(pod, candidates, snapshot)
        for builder in self._request_counters:
            try:
                builder.count_request(pod)
            except Exception as error:  # noqa: BLE001 - the counts do not affect this response
                logs.emit("agent_failed", agent=type(builder).__name__, exc_info=error)
        decision = _make_decision("prioritize", pod, candidates, snapshot, now, scores=scores)
        if self._placement_counters and scores and len(candidates):
            points = decision.points()
            best = candidates.numbers[points == points.max()]
            for builder in self._placement_counters:
                try:
                    builder.count_prioritized(pod, best)
                except Exception as error:  # noqa: BLE001 - the counts do not affect this response
                    logs.emit("agent_failed", agent=type(builder).__name__, exc_info=error)
        return replace(decision, description="; ".join(failures)) if failures else decision

    def _agents_verdicts(
        self, verb: Verb, candidates: Names, call: Callable[[Filter], Verdict | None]
    ) -> tuple[tuple[str, Verdict], ...]:
        verdicts: list[tuple[str, Verdict]] = []
        for function in self._filters:
            name = function.agent.name
            try:
                with traces.span(f"{verb} {name}"):
                    verdict = call(function)
            except AgentError as error:
                reason = AgentFailed(name, error.why, error.origin.package)
                verdict = Verdict(np.ones(len(candidates), np.int16), (reason,))
            except Exception as error:  # noqa: BLE001 - a defect of one agent must not place its pods anywhere
                logs.emit("agent_failed", agent=name, exc_info=error)
                verdict = Verdict(np.ones(len(candidates), np.int16), (AgentFailed(name),))
            if verdict is not None:
                verdicts.append((name, verdict))
        return tuple(verdicts)

    def _compute_scores(
        self, pod: Any, candidates: Names, snapshot: Snapshot
    ) -> tuple[tuple[tuple[str, Scores], ...], list[str]]:
        """The scores, and the failures as text."""
        scores: list[tuple[str, Scores]] = []
        failures: list[str] = []
        for function in self._scorers:
            name = function.agent.name
            try:
                with traces.span(f"prioritize {function.label or name}"):
                    result = function.call(pod, candidates, snapshot)
            except AgentError as error:
                failures.append(f"no scores of {function.label or name}: {error.why}")
                continue
            except Exception as error:  # noqa: BLE001 - without its score the pod is placed all the same
                logs.emit("agent_failed", agent=name, exc_info=error)
                failures.append(f"no scores of {function.label or name}: see the log of nodewise")
                continue
            if result is not None:
                weight = self._weights.get(Priority(name, function.label), 1.0)
                scores.append((name, replace(result, label=function.label, weight=weight)))
        return tuple(scores), failures


def _make_decision(
    verb: Verb,
    pod: Any,
    candidates: Names,
    snapshot: Snapshot,
    now: float,
    verdicts: tuple[tuple[str, Verdict], ...] = (),
    scores: tuple[tuple[str, Scores], ...] = (),
) -> Decision:
    metadata = pod.metadata
    ref = PodRef(metadata.namespace, metadata.name, metadata.uid)
    return Decision(verb, ref, now, snapshot.generation, candidates, verdicts, scores)
