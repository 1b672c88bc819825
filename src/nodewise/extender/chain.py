"""The chain: asks each agent in turn about one pod, with one frozen snapshot of the world."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

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
from nodewise.extender import weights
from nodewise.extender.decision import Decision, PodRef, Verb
from nodewise.extender.third_party import AgentError
from nodewise.extender.weights import Priority, Weights
from nodewise.observe import logs


class AgentFailed(msgspec.Struct, frozen=True):
    """A defect of an agent. Its pods are rejected, because the filter fails closed; other pods are not affected."""

    agent: str
    why: str = ""
    """The failure of a third-party agent."""
    package: str = ""
    """The package of a third-party agent."""
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"nodewise: agent {self.agent} failed" + (
            f": {self.why}" if self.package else ", see the log of nodewise"
        )

    def remedy(self) -> str:
        if self.package:
            return f"a defect of the package {self.package}: see the event outside_agent_failed in nodewise's log"
        return "a defect of nodewise: please report it with the line agent_failed of the log"


AnyPlugin = Plugin[Any, Any]


class Judging(NamedTuple):
    """A filter function of an agent."""

    agent: FilterPlugin[Any, Any]
    ask: FilterFunction


class Ranking(NamedTuple):
    """A score function of an agent."""

    agent: ScorePlugin[Any, Any]
    label: str
    """As in `Scores`."""
    ask: ScoreFunction


def judging(agent: AnyPlugin) -> list[Judging]:
    """What an agent filters by."""
    return [Judging(agent, agent.filter)] if isinstance(agent, FilterPlugin) and agent.filter_enabled else []


def rankings(agent: AnyPlugin) -> list[Ranking]:
    """What an agent scores by: its named priorities, or else its `score`."""
    if not isinstance(agent, ScorePlugin) or not agent.score_enabled:
        return []
    if agent.priorities:
        return [Ranking(agent, label, ask) for label, ask in agent.priorities.items()]
    return [Ranking(agent, "", agent.score)]


class Chain:
    """Some agents in the order in which they are asked."""

    def __init__(
        self,
        agents: Sequence[AnyPlugin],
        counted: Weights | None = None,
        counting: Mapping[str, StateBuilder[Any]] | None = None,
    ) -> None:
        self.agents = tuple(agents)
        self._judging = [one for agent in agents for one in judging(agent)]
        self._rankings = [one for agent in agents for one in rankings(agent)]
        self._weights = counted or {}
        self._counting = [counting[agent.name] for agent in agents if counting and agent.name in counting]

    def only(self, asked: Judging | Ranking) -> "Chain":
        """The chain that asks for nothing but this."""
        alone = Chain([asked.agent])
        alone._judging = [asked] if isinstance(asked, Judging) else []
        alone._rankings = [asked] if isinstance(asked, Ranking) else []
        alone._counting = self._counting if isinstance(asked, Ranking) else []
        return alone

    def filter(self, pod: Any, names: Sequence[str] | Names, snapshot: Snapshot, now: float) -> Decision:
        """Which of the named nodes the pod may go to."""
        candidates = snapshot.nodes.named(names)
        verdicts = self._verdicts(candidates, lambda one: one.ask(pod, candidates, snapshot))
        return _decision("filter", pod, candidates, snapshot, now, verdicts)

    def preempt(self, pod: Any, victims: Victims, snapshot: Snapshot, now: float) -> Decision:
        """On which of the nodes that have victims the pod could run once these are gone."""
        candidates = snapshot.nodes.named(list(victims))
        verdicts = self._verdicts(
            candidates, lambda one: one.agent.preempt(pod, candidates, snapshot, victims)
        )
        return _decision("preempt", pod, candidates, snapshot, now, verdicts)

    def kept(self, pod: Any, candidates: Names, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Which candidates no agent rejects; nothing is kept of the decision."""
        kept = np.ones(len(candidates), bool)
        for _, verdict in self._verdicts(candidates, lambda one: one.ask(pod, candidates, snapshot)):
            kept &= verdict.codes == 0
        return kept

    def equivalence_key(self, pod: Any) -> Hashable:
        """What `kept` depends on besides the snapshot; equal for pods that get equal answers."""
        try:
            return tuple(agent.equivalence_key(pod) for agent in self.agents)
        except Exception as error:  # noqa: BLE001 - then it is like no other
            logs.emit("agent_failed", agent=", ".join(agent.name for agent in self.agents), exc_info=error)
            return object()

    def prioritize(self, pod: Any, names: Sequence[str] | Names, snapshot: Snapshot, now: float) -> Decision:
        """How much the named nodes are liked. A node that is named twice counts once."""
        candidates = _distinct(snapshot.nodes.named(names))
        scores, lacking = self._scores(lambda one: one.ask(pod, candidates, snapshot))
        self._count(pod)
        made = _decision("prioritize", pod, candidates, snapshot, now, scores=scores)
        return msgspec.structs.replace(made, told="; ".join(lacking)) if lacking else made

    def _verdicts(
        self, candidates: Names, ask: Callable[[Judging], Verdict | None]
    ) -> tuple[tuple[str, Verdict], ...]:
        verdicts: list[tuple[str, Verdict]] = []
        for one in self._judging:
            name = one.agent.name
            try:
                verdict = ask(one)
            except AgentError as error:
                reason = AgentFailed(name, error.why, error.origin.package)
                verdict = Verdict(np.ones(len(candidates), np.int16), (reason,))
            except Exception as error:  # noqa: BLE001 - a defect of one agent must not place its pods anywhere
                logs.emit("agent_failed", agent=name, exc_info=error)
                verdict = Verdict(np.ones(len(candidates), np.int16), (AgentFailed(name),))
            if verdict is not None:
                verdicts.append((name, verdict))
        return tuple(verdicts)

    def _scores(
        self, ask: Callable[[Ranking], Scores | None]
    ) -> tuple[tuple[tuple[str, Scores], ...], list[str]]:
        """What was given, and why something was not."""
        scores: list[tuple[str, Scores]] = []
        lacking: list[str] = []
        for one in self._rankings:
            name = one.agent.name
            try:
                given = ask(one)
            except AgentError as error:
                lacking.append(f"no scores of {one.label or name}: {error.why}")
                continue
            except Exception as error:  # noqa: BLE001 - without its score the pod is placed all the same
                logs.emit("agent_failed", agent=name, exc_info=error)
                lacking.append(f"no scores of {one.label or name}: see the log of nodewise")
                continue
            if given is not None:
                weight = self._weights.get(Priority(name, one.label), 1.0)
                scores.append((name, replace(given, label=one.label, weight=weight)))
        return tuple(scores), lacking

    def _count(self, pod: Any) -> None:
        for one in self._counting:
            try:
                one.asked(pod)
            except Exception as error:  # noqa: BLE001 - what an agent counts is no matter of this answer
                logs.emit("agent_failed", agent=type(one).__name__, exc_info=error)


def weighed(agents: Sequence[AnyPlugin], options: weights.ChainOptions) -> Weights:
    """The weights of all that these agents score by. `BadSettings` as `weights.weighed`."""
    ranked = (one for agent in agents for one in rankings(agent))
    return weights.weighed(options, (Priority(one.agent.name, one.label) for one in ranked))


def _distinct(names: Names) -> Names:
    """The names, each once. kube-scheduler never repeats one, so the look is cheap and the work rare."""
    if len(names) and np.bincount(names.numbers).max() > 1:
        return names.index.named(list(dict.fromkeys(names)))
    return names


def _decision(
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
