"""One request answered: bytes in, a decision and bytes out; the same behind a socket and in a replay.

`app` serves these answers and `simulate.replay` asks for them again, so neither can differ from the other. Nothing
here asks what time it is or which snapshot is the newest, and nothing is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.agent import AgentKind, FilterPlugin, Plugin, ScorePlugin, Snapshot, StateBuilder, StateExporter
from nodewise.errors import BadSettings, Problem
from nodewise.extender import wire
from nodewise.extender.chain import Chain, Judging, Ranking, weighed
from nodewise.extender.decision import Decision, Verb
from nodewise.extender.weights import ChainOptions
from nodewise.kube.fields import merge

ALL_AGENTS: Final = "/scheduler"
"""What comes before the verb in the paths that ask every agent; `/agents/<name>` asks that one."""
_PREDICATES: Final = f"{ALL_AGENTS}/predicates/"
_PRIORITIES: Final = f"{ALL_AGENTS}/priorities/"


class Answer(NamedTuple):
    """What is decided, and how it is told to kube-scheduler."""

    decision: Decision
    encode: Callable[[], Sequence[bytes]]
    """The parts of the body; many where whole nodes go back as they came, which are not copied into one."""

    @property
    def body(self) -> bytes:
        return b"".join(self.encode())


class Answering:
    """Which path asks which agents what, and their answers."""

    def __init__(
        self,
        kinds: Sequence[AgentKind],
        options: Mapping[str, Any],
        states: Mapping[str, StateBuilder[Any]] | None = None,
        chain_options: ChainOptions = ChainOptions(),  # noqa: B008 - frozen
    ) -> None:
        """`BadSettings` for weights that do not fit the agents. Without `states` nothing is counted."""
        agents = self.agents = [kind.agent(options[kind.name]) for kind in kinds]
        self.exporters: Sequence[StateExporter[Any, Any]] = [
            agent for agent in agents if isinstance(agent, StateExporter)
        ]
        weights = weighed(agents, chain_options)
        self.chain = every = Chain(agents, weights, states)
        """Of all agents."""
        alone = {one.name: Chain([one], weights, states) for one in agents}
        self._reader: wire.Reader[Any] = wire.Reader(merge("Pod", *(kind.pod_fields for kind in kinds)))
        chains = {ALL_AGENTS: every, **{f"/agents/{name}": chain for name, chain in alone.items()}}
        self._asked: dict[str, tuple[Verb, Chain]] = {
            f"{prefix}/{verb}": (verb, chain) for prefix, chain in chains.items() for verb in _VERBS
        }
        for agent in agents:
            paths = _named_paths(agent, alone[agent.name])
            if duplicates := paths.keys() & self._asked.keys():
                conflict = f"two that serve {', '.join(sorted(duplicates))}"
                raise BadSettings("settings", [Problem("--agents", conflict, "one of them")])
            self._asked |= paths

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """What is asked, by path."""
        return {path: verb for path, (verb, _) in self._asked.items()}

    def answer(self, path: str, body: bytes, snapshot: Snapshot, now: float) -> Answer:
        """The answer to one request. `BadInput` names the field that cannot be read; KeyError for no path of
        ours.
        """
        verb, chain = self._asked[path]
        return _VERBS[verb](self._reader, chain, body, snapshot, now)


def _named_paths(agent: Plugin[Any, Any], chain: Chain) -> dict[str, tuple[Verb, Chain]]:
    """The paths of the older systems, one for each predicate and priority."""
    paths: dict[str, tuple[Verb, Chain]] = {}
    if isinstance(agent, FilterPlugin):
        for name, function in agent.predicates.items():
            paths[f"{_PREDICATES}{name}"] = ("filter", chain.only(Judging(agent, function)))
    if isinstance(agent, ScorePlugin):
        for name, score in agent.priorities.items():
            paths[f"{_PRIORITIES}{name}"] = ("prioritize", chain.only(Ranking(agent, name, score)))
    return paths


def is_named(path: str) -> bool:
    """Whether it is one of these, whose older servers led people there from paths that were almost right."""
    return path.startswith((_PREDICATES, _PRIORITIES))


def _filter(reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float) -> Answer:
    candidacy = reader.candidacy(body, snapshot.nodes)
    decision = chain.filter(candidacy.pod, candidacy.names, snapshot, now)
    return Answer(decision, lambda: wire.filter_answer(candidacy, decision))


def _prioritize(
    reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float
) -> Answer:
    candidacy = reader.candidacy(body, snapshot.nodes)
    decision = chain.prioritize(candidacy.pod, candidacy.names, snapshot, now)
    return Answer(decision, lambda: [wire.prioritize_answer(decision)])


def _preempt(reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float) -> Answer:
    preemption = reader.preemption(body)
    decision = chain.preempt(preemption.pod, preemption.uids(), snapshot, now)
    return Answer(decision, lambda: [wire.preempt_answer(preemption, decision)])


_Ask = Callable[[wire.Reader[Any], Chain, bytes, Snapshot, float], Answer]
_VERBS: Final[Mapping[Verb, _Ask]] = {"filter": _filter, "prioritize": _prioritize, "preempt": _preempt}
