"""The chain: asks each agent in turn about one pod, with one frozen View of the world."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Agent, Names, Scores, Verdict, Victims, View
from nodewise.extender.decision import Decision, PodRef, Verb
from nodewise.observe import logs


class AgentFailed(msgspec.Struct, frozen=True):
    """A defect of an agent. Its pods wait, because no answer must never mean yes; other pods go on."""

    agent: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"nodewise: agent {self.agent} failed, see the log of nodewise"

    def remedy(self) -> str:
        return "a defect of nodewise: please report it with the line agent_failed of the log"


class Chain:
    """Some agents in the order in which they are asked."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = tuple(agents)

    def filter(self, pod: Any, names: Sequence[str] | Names, view: View, now: float) -> Decision:
        """Which of the named nodes the pod may go to."""
        candidates = view.nodes.named(names)
        verdicts = self._verdicts(candidates, lambda agent: agent.filter(pod, candidates, view))
        return _decision("filter", pod, candidates, view, now, verdicts)

    def preempt(self, pod: Any, victims: Victims, view: View, now: float) -> Decision:
        """On which of the nodes that have victims the pod could run once these are gone."""
        candidates = view.nodes.named(list(victims))
        verdicts = self._verdicts(candidates, lambda agent: agent.preempt(pod, candidates, view, victims))
        return _decision("preempt", pod, candidates, view, now, verdicts)

    def kept(self, pod: Any, candidates: Names, view: View) -> NDArray[np.bool_]:
        """Which candidates no agent rejects; nothing is kept of the decision."""
        kept = np.ones(len(candidates), bool)
        for _, verdict in self._verdicts(candidates, lambda agent: agent.filter(pod, candidates, view)):
            kept &= verdict.codes == 0
        return kept

    def question(self, pod: Any) -> Hashable:
        """What `kept` depends on besides the View; equal for pods that get equal answers."""
        try:
            return tuple(agent.question(pod) for agent in self.agents)
        except Exception as error:  # noqa: BLE001 - then it is like no other
            logs.emit("agent_failed", agent=", ".join(agent.name for agent in self.agents), exc_info=error)
            return object()

    def prioritize(self, pod: Any, names: Sequence[str] | Names, view: View, now: float) -> Decision:
        """How much the named nodes are liked. A node that is named twice counts once."""
        candidates = _distinct(view.nodes.named(names))
        scores = self._scores(lambda agent: agent.score(pod, candidates, view))
        return _decision("prioritize", pod, candidates, view, now, scores=scores)

    def _verdicts(
        self, candidates: Names, ask: Callable[[Agent], Verdict | None]
    ) -> tuple[tuple[str, Verdict], ...]:
        verdicts: list[tuple[str, Verdict]] = []
        for agent in self.agents:
            try:
                verdict = ask(agent)
            except Exception as error:  # noqa: BLE001 - a defect of one agent must not place its pods anywhere
                logs.emit("agent_failed", agent=agent.name, exc_info=error)
                verdict = Verdict(np.ones(len(candidates), np.int16), (AgentFailed(agent.name),))
            if verdict is not None:
                verdicts.append((agent.name, verdict))
        return tuple(verdicts)

    def _scores(self, ask: Callable[[Agent], Scores | None]) -> tuple[tuple[str, Scores], ...]:
        scores: list[tuple[str, Scores]] = []
        for agent in self.agents:
            try:
                given = ask(agent)
            except Exception as error:  # noqa: BLE001 - without its score the pod is placed all the same
                logs.emit("agent_failed", agent=agent.name, exc_info=error)
                continue
            if given is not None:
                scores.append((agent.name, given))
        return tuple(scores)


def _distinct(names: Names) -> Names:
    """The names, each once. kube-scheduler never repeats one, so the look is cheap and the work rare."""
    if len(names) and np.bincount(names.numbers).max() > 1:
        return names.index.named(list(dict.fromkeys(names)))
    return names


def _decision(
    verb: Verb,
    pod: Any,
    candidates: Names,
    view: View,
    now: float,
    verdicts: tuple[tuple[str, Verdict], ...] = (),
    scores: tuple[tuple[str, Scores], ...] = (),
) -> Decision:
    metadata = pod.metadata
    ref = PodRef(metadata.namespace, metadata.name, metadata.uid)
    return Decision(verb, ref, now, view.generation, candidates, verdicts, scores)
