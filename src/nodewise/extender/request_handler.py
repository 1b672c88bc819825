"""Handles a request of kube-scheduler: from its body to a decision and the body of the response.

`routes` serves it and `scheduling_model.recording_replay` repeats it, so both give the same responses. The time and the
snapshot are arguments, and nothing is stored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.agent import AgentKind, FilterPlugin, Plugin, ScorePlugin, Snapshot, StateBuilder, StateExporter
from nodewise.base.errors import BadSettings, Problem
from nodewise.engine.agent_chain import AgentChain, ChainOptions, Filter, Scorer, assign_weights
from nodewise.engine.decision import Decision, Verb
from nodewise.extender import wire_format
from nodewise.kube.struct_type_merge import merge

ALL_AGENTS: Final = "/scheduler"
"""The prefix of paths that are answered by all agents; `/agents/<name>` is answered by one."""
_PREDICATES: Final = f"{ALL_AGENTS}/predicates/"
_PRIORITIES: Final = f"{ALL_AGENTS}/priorities/"
_VERBS: Final[Sequence[Verb]] = ("filter", "prioritize", "preempt")


class HandledRequest(NamedTuple):
    """A decision, and its response to kube-scheduler."""

    decision: Decision
    encode: Callable[[], Sequence[bytes]]
    """Makes the parts of the body. Whole nodes are many parts, so that they are not copied."""

    @property
    def body(self) -> bytes:
        return b"".join(self.encode())


class RequestHandler:
    """Handles requests by path."""

    def __init__(
        self,
        kinds: Sequence[AgentKind],
        options: Mapping[str, Any],
        states: Mapping[str, StateBuilder[Any]] | None = None,
        chain_options: ChainOptions = ChainOptions(),  # noqa: B008 - frozen
    ) -> None:
        """`BadSettings` for weights that do not fit the agents. Without `states`, no agent counts requests."""
        agents = self.agents = [kind.agent(options[kind.name]) for kind in kinds]
        self.exporters: Sequence[StateExporter[Any, Any]] = [
            agent for agent in agents if isinstance(agent, StateExporter)
        ]
        weights = assign_weights(agents, chain_options)
        self.chain = AgentChain(agents, weights, states)
        """The chain of all agents."""
        single = {agent.name: AgentChain([agent], weights, states) for agent in agents}
        self._decoder: wire_format.RequestDecoder[Any] = wire_format.RequestDecoder(
            merge("Pod", *(kind.pod_fields for kind in kinds))
        )
        chains = {ALL_AGENTS: self.chain, **{f"/agents/{name}": chain for name, chain in single.items()}}
        self._chains: dict[str, tuple[Verb, AgentChain]] = {
            f"{prefix}/{verb}": (verb, chain) for prefix, chain in chains.items() for verb in _VERBS
        }
        for agent in agents:
            paths = _predicate_and_priority_paths(agent, single[agent.name])
            if duplicates := paths.keys() & self._chains.keys():
                conflict = f"two agents that serve {', '.join(sorted(duplicates))}"
                raise BadSettings("settings", [Problem("--agents", conflict, "one agent for each path")])
            self._chains |= paths

    @property
    def verbs(self) -> Mapping[str, Verb]:
        """The verb by path."""
        return {path: verb for path, (verb, _) in self._chains.items()}

    def handle(self, path: str, body: bytes, snapshot: Snapshot, now: float) -> HandledRequest:
        """Answer one request. `BadInput` names the field that cannot be read; KeyError for an unknown path."""
        verb, chain = self._chains[path]
        if verb == "preempt":
            preemption = self._decoder.decode_preemption(body)
            decision = chain.preempt(preemption.pod, preemption.uids(), snapshot, now)
            return HandledRequest(decision, lambda: [wire_format.preempt_response(preemption, decision)])
        request = self._decoder.decode_candidates(body, snapshot.nodes)
        if verb == "prioritize":
            decision = chain.prioritize(request.pod, request.names, snapshot, now)
            return HandledRequest(decision, lambda: [wire_format.prioritize_response(decision)])
        decision = chain.filter(request.pod, request.names, snapshot, now)
        return HandledRequest(decision, lambda: wire_format.filter_response(request, decision))


def _predicate_and_priority_paths(
    agent: Plugin[Any, Any], chain: AgentChain
) -> dict[str, tuple[Verb, AgentChain]]:
    """The paths of kube-safe-scheduler, one for each predicate and priority."""
    paths: dict[str, tuple[Verb, AgentChain]] = {}
    if isinstance(agent, FilterPlugin):
        for name, function in agent.predicates.items():
            paths[f"{_PREDICATES}{name}"] = ("filter", chain.only(Filter(agent, function)))
    if isinstance(agent, ScorePlugin):
        for name, score in agent.priorities.items():
            paths[f"{_PRIORITIES}{name}"] = ("prioritize", chain.only(Scorer(agent, name, score)))
    return paths


def is_predicate_or_priority_path(path: str) -> bool:
    """Whether the path is one of a predicate or priority, whose older servers redirected similar paths to it."""
    return path.startswith((_PREDICATES, _PRIORITIES))
