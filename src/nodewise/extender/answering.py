"""One request answered: bytes in, a decision and bytes out; the same behind a socket and in a replay.

`app` serves these answers and `simulate.replay` asks for them again, so neither can differ from the other. Nothing
here asks what time it is or which snapshot is the newest, and nothing is kept.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.agent import AgentKind, Counting, Named, Showing, Snapshot, StateBuilder
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
    """What is decided, and how it is told to kube-scheduler: as much work again, for a step of its own."""

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
        states: Mapping[str, StateBuilder] | None = None,
        chain_options: ChainOptions = ChainOptions(),  # noqa: B008 - frozen
    ) -> None:
        """`BadSettings` for weights that do not fit the agents. Without `states` nothing is counted."""
        agents = [kind.agent(options[kind.name]) for kind in kinds]
        self.showing: Sequence[Showing] = [one for one in agents if isinstance(one, Showing)]
        weights = weighed(agents, chain_options)
        counting = {name: one for name, one in (states or {}).items() if isinstance(one, Counting)}
        every = Chain(agents, weights, counting)
        alone = {one.name: Chain([one], weights, counting) for one in agents}
        self._reader: wire.Reader[Any] = wire.Reader(merge("Pod", *(kind.pod_fields for kind in kinds)))
        chains = {ALL_AGENTS: every, **{f"/agents/{name}": chain for name, chain in alone.items()}}
        self._asked: dict[str, tuple[Verb, Chain]] = {
            f"{prefix}/{verb}": (verb, chain) for prefix, chain in chains.items() for verb in _VERBS
        }
        for agent in agents:
            if isinstance(agent, Named):
                found = _named(agent, alone[agent.name])
                if twice := found.keys() & self._asked.keys():
                    seen = f"two that serve {', '.join(sorted(twice))}"
                    raise BadSettings("settings", [Problem("--agents", seen, "one of them")])
                self._asked |= found

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """What is asked, by path."""
        return {path: verb for path, (verb, _) in self._asked.items()}

    def answer(self, path: str, body: bytes, snapshot: Snapshot, now: float) -> Generator[None, None, Answer]:
        """The answer to one request, in parts. `BadInput` names the field that cannot be read; KeyError for no path of
        ours.
        """
        verb, chain = self._asked[path]
        return _VERBS[verb](self._reader, chain, body, snapshot, now)


def _named(agent: Named, chain: Chain) -> dict[str, tuple[Verb, Chain]]:
    """The paths of the older systems, one for each predicate and priority."""
    (owner,) = chain.agents
    judged = {name: Judging(owner, ask) for name, ask in agent.predicates.items()}
    ranked = {name: Ranking(owner, name, ask) for name, ask in agent.priorities.items()}
    return {
        **{f"{_PREDICATES}{name}": ("filter", chain.only(one)) for name, one in judged.items()},
        **{f"{_PRIORITIES}{name}": ("prioritize", chain.only(one)) for name, one in ranked.items()},
    }


def is_named(path: str) -> bool:
    """Whether it is one of these, whose older servers led people there from paths that were almost right."""
    return path.startswith((_PREDICATES, _PRIORITIES))


def _filter(
    reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float
) -> Generator[None, None, Answer]:
    candidacy = yield from reader.candidacy(body, snapshot.nodes)
    yield
    decision = yield from chain.filter(candidacy.pod, candidacy.names, snapshot, now)
    return Answer(decision, lambda: wire.filter_answer(candidacy, decision))


def _prioritize(
    reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float
) -> Generator[None, None, Answer]:
    candidacy = yield from reader.candidacy(body, snapshot.nodes)
    yield
    decision = yield from chain.prioritize(candidacy.pod, candidacy.names, snapshot, now)
    return Answer(decision, lambda: [wire.prioritize_answer(decision)])


def _preempt(
    reader: wire.Reader[Any], chain: Chain, body: bytes, snapshot: Snapshot, now: float
) -> Generator[None, None, Answer]:
    preemption = reader.preemption(body)
    yield
    decision = yield from chain.preempt(preemption.pod, preemption.uids(), snapshot, now)
    return Answer(decision, lambda: [wire.preempt_answer(preemption, decision)])


_Ask = Callable[[wire.Reader[Any], Chain, bytes, Snapshot, float], Generator[None, None, Answer]]
_VERBS: Final[Mapping[Verb, _Ask]] = {"filter": _filter, "prioritize": _prioritize, "preempt": _preempt}
