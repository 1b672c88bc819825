"""The extender's HTTP routes, with their handlers.

Bad input is an error (400) and never a decision. A pod whose agent cannot answer is rejected with a reason, in a
regular response: with `ignorable: true`, kube-scheduler places a pod without the extender after an error.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np

import nodewise
from nodewise.agent import (
    AgentKind,
    FilterPlugin,
    Plugin,
    ScorePlugin,
    Snapshot,
    StateBuilder,
    StateExporter,
    Verdict,
)
from nodewise.agent.bind_plugin_interface import BindPlugin
from nodewise.agent.verdicts import OWN_REASON
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import BadSettings, Problem, Unavailable
from nodewise.engine import decision_json
from nodewise.engine.agent_chain import AgentChain, ChainOptions, Filter, Scorer, assign_weights
from nodewise.engine.decision import Decision, DecisionRing, PodRef, Verb
from nodewise.engine.recording_file import RequestEntry
from nodewise.engine.request_recorder import RequestRecorder
from nodewise.extender import wire_format
from nodewise.extender.binding import Bindings, BindOutcome
from nodewise.kube.struct_type_merge import merge
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import ConcurrencyLimit, Handler, Request, Response, Route

ALL_AGENTS: Final = "/scheduler"
"""The prefix of paths that are answered by all agents; `/agents/<name>` is answered by one."""
_PREDICATES: Final = f"{ALL_AGENTS}/predicates/"
_PRIORITIES: Final = f"{ALL_AGENTS}/priorities/"
_VERBS: Final[Sequence[Verb]] = ("filter", "prioritize", "preempt")


class HandledRequest(NamedTuple):
    """A decision, and its response to kube-scheduler."""

    decision: Decision
    encode: Callable[[], Sequence[wire_format.Part]]
    """Makes the parts of the body, so that whole nodes and arrays are not copied."""

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
            return HandledRequest(decision, lambda: wire_format.prioritize_response(decision))
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


WHOLE_NODES_AT_ONCE: Final = 2
"""Limit of concurrent requests with whole nodes (52 MB at 5,000 nodes); a further one gets status 503."""
LARGE_BYTES: Final = 2**20
_MAX_NAMESPACE_SERIES: Final = 20
"""Policies of one namespace with a series of `policy_would_reject_total`."""
_MAX_SERIES: Final = 500
"""Policies of all namespaces with such a series."""

SnapshotSource = Callable[[bytes | None, float], Snapshot]
"""The snapshot that answers a request with this body at that time (seconds since 1970); for None, the newest."""


class Extender:
    """Serves kube-scheduler from the newest snapshot and stores each decision."""

    def __init__(
        self,
        request_handler: RequestHandler,
        snapshot_source: SnapshotSource,
        ring: DecisionRing,
        clock: Clock,
        metrics_registry: MetricsRegistry,
        recorder: RequestRecorder = RequestRecorder(),  # noqa: B008 - it has no state
    ) -> None:
        self._request_handler = request_handler
        self._snapshot_source = snapshot_source
        self._ring = ring
        self._clock = clock
        self._metrics_registry = metrics_registry
        self._recorder = recorder
        self._subscribers: list[Callable[[Decision], None]] = []
        self._counted_policies: dict[str, set[str]] = {}
        """By namespace, as texts of policies name it, the policies with a series of `policy_would_reject_total`."""

    def subscribe(self, subscriber: Callable[[Decision], None]) -> None:
        """Call the subscriber with each decision after it is stored; it must not block."""
        self._subscribers.append(subscriber)

    def routes(self) -> list[Route]:
        """`/scheduler/<verb>` for all agents, `/agents/<name>/<verb>` for one, and the paths of older systems."""
        limit = ConcurrencyLimit(WHOLE_NODES_AT_ONCE, LARGE_BYTES)
        routes = [Route("GET", "/version", _version_response, is_forgiving=True)]
        for path in self._request_handler.verbs:
            forgiving = is_predicate_or_priority_path(path)
            routes.append(Route("POST", path, self._handle_extender_request, limit, is_forgiving=forgiving))
        return routes

    def bind_refusal_routes(self) -> list[Route]:
        """The bind verb if no agent binds: next to kube-safe-scheduler's paths an error in the result; else none."""
        is_served = any(map(is_predicate_or_priority_path, self._request_handler.verbs))
        return [Route("POST", f"{ALL_AGENTS}/bind", _refuse_bind, pinned_only=True)] if is_served else []

    def private_routes(self) -> list[Route]:
        """For loopback or mutual TLS only: decisions and agent states name the pods of all tenants."""
        exporters = self._request_handler.exporters
        states = [
            Route("GET", f"/state/{agent.name}", self._agent_state_handler(agent), pinned_only=True)
            for agent in exporters
        ]
        return [Route("GET", "/decisions", self._handle_decisions_request, pinned_only=True), *states]

    def current_snapshot(self, body: bytes | None = None) -> tuple[Snapshot, float]:
        """The snapshot that answers this body, or the newest one, and the time."""
        now = self._clock.now()
        return self._snapshot_source(body, now), now

    def _handle_extender_request(self, request: Request) -> Response:
        path, body = request.path, request.body
        snapshot, now = self.current_snapshot(body)
        exchange = RequestEntry(path=path, at=now, generation=snapshot.generation)
        try:
            decision, encode = self._request_handler.handle(path, body, snapshot, now)
            parts = encode()
        except Exception as error:
            failed = msgspec.structs.replace(exchange, error=type(error).__name__)
            self._recorder.record_request(failed, body, [str(error).encode()])
            raise
        self._recorder.record_request(exchange, body, parts)
        return Response(200, parts, completion=partial(self.store_decision, decision))

    async def _handle_decisions_request(self, request: Request) -> Response:
        page = decision_json.encode_page(self._ring, request.query)
        return Response(200, await cooperative_scheduling.run(page))

    def _agent_state_handler(self, agent: StateExporter[Any, Any]) -> Handler:
        async def answer(request: Request) -> Response:
            agent_state = self.current_snapshot()[0].agent_states.get(agent.name)
            if agent_state is None:
                raise Unavailable(
                    f"agent {agent.name} has no state yet: its objects are not listed", retry_after_s=1.0
                )
            return Response(200, await cooperative_scheduling.run(agent.export(agent_state, request.query)))

        return answer

    def store_decision(self, decision: Decision) -> None:
        """Store a decision, and call the subscribers."""
        self._ring.add(decision)
        self._metrics_registry.set("decisions_bytes", self._ring.size_bytes)
        for agent, verdict in decision.verdicts if decision.verb == "filter" else ():
            rejected = int(np.count_nonzero(verdict.codes))
            self._metrics_registry.count("verdicts_total", rejected, agent=agent, verdict="rejected")
            self._metrics_registry.count(
                "verdicts_total", len(verdict.codes) - rejected, agent=agent, verdict="passed"
            )
            for policy in verdict.policies:
                if policy.would_reject is not None:
                    self._count_would_reject(policy.policy, int(policy.would_reject.sum()))
        for subscriber in self._subscribers:
            subscriber(decision)

    def _count_would_reject(self, policy: str, count: int) -> None:
        """Count nodes by policy, with a limit: anyone who may create policies may create any number over time."""
        own = self._counted_policies.setdefault(policy.rpartition("/")[0], set())
        if policy not in own and (
            len(own) >= _MAX_NAMESPACE_SERIES or sum(map(len, self._counted_policies.values())) >= _MAX_SERIES
        ):
            policy = ""
        else:
            own.add(policy)
        self._metrics_registry.count("policy_would_reject_total", count, policy=policy)


def _version_response(_: Request) -> Response:
    return Response(200, nodewise.__version__.encode(), "text/plain; charset=utf-8")


def _refuse_bind(request: Request) -> Response:
    binding = wire_format.decode_binding(request.body)
    pod = f"{binding.pod_namespace}/{binding.pod_name}"
    error = f"nodewise does not bind {pod}: leave bindVerb of this entry empty"
    return Response(200, wire_format.bind_response(error))


class NotBound(msgspec.Struct, frozen=True):
    """A failed bind that no agent refused."""

    error: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"{OWN_REASON}{self.error}"

    def remedy(self) -> str:
        return "kube-scheduler places the pod again; the log of nodewise has the line bind_failed"


class BindRoutes:
    """The bind verb of the agent that binds. A refusal is a response with status 404, or an error in the result."""

    def __init__(self, bindings: Bindings, binder: BindPlugin[Any, Any], extender: Extender) -> None:
        self._bindings = bindings
        self._binder = binder
        self._extender = extender

    def routes(self) -> list[Route]:
        """`/scheduler/bind` and the path of the agent, with one handler."""
        paths = (ALL_AGENTS, f"/agents/{self._binder.name}")
        return [Route("POST", f"{path}/bind", self._handle_bind_request, pinned_only=True) for path in paths]

    async def _handle_bind_request(self, request: Request) -> Response:
        binding = wire_format.decode_binding(request.body)
        outcome = await self._bindings.bind(binding)
        is_refused = bool(outcome.error) and self._binder.bind_errors == "status"
        return Response(
            404 if is_refused else 200,
            wire_format.bind_response(outcome.error),
            completion=lambda: self._extender.store_decision(self._decision_about_bind(binding, outcome)),
        )

    def _decision_about_bind(self, binding: wire_format.BindingArgs, outcome: BindOutcome) -> Decision:
        snapshot, at = self._extender.current_snapshot()
        pod = PodRef(binding.pod_namespace, binding.pod_name, binding.pod_uid)
        names = snapshot.nodes.named([binding.node])
        decision = Decision(
            "bind", pod, at, snapshot.generation, names, description=outcome.description or outcome.error
        )
        if not outcome.error:
            return decision
        verdict = Verdict(np.ones(1, np.int16), (outcome.reason or NotBound(outcome.error),))
        return msgspec.structs.replace(decision, verdicts=((self._binder.name, verdict),))
