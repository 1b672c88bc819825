"""The extender's HTTP routes, with their handlers.

Bad input is an error (400) and never a decision. A pod whose agent cannot answer is rejected with a reason, in a
regular response: with `ignorable: true`, kube-scheduler places a pod without the extender after an error.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

import nodewise
from nodewise.agent import Snapshot, StateExporter, Verdict
from nodewise.agent.bind_plugin_interface import BindPlugin
from nodewise.agent.verdicts import OWN_REASON
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import Unavailable
from nodewise.engine import decision_json
from nodewise.engine.decision import Decision, DecisionRing, PodRef
from nodewise.engine.recording_file import RequestEntry
from nodewise.engine.request_recorder import RequestRecorder
from nodewise.extender import wire_format
from nodewise.extender.binding import Bindings, BindOutcome
from nodewise.extender.request_handler import ALL_AGENTS, RequestHandler, is_predicate_or_priority_path
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import ConcurrencyLimit, Handler, Request, Response, Route

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
            handled = self._request_handler.handle(path, body, snapshot, now)
            self.store_decision(handled.decision)
            parts = handled.encode()
        except Exception as error:
            failed = msgspec.structs.replace(exchange, error=type(error).__name__)
            self._recorder.record_request(failed, body, [str(error).encode()])
            raise
        self._recorder.record_request(exchange, body, parts)
        return Response(200, parts)

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
            rejected = int((verdict.codes != 0).sum())
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
        self._extender.store_decision(self._decision_about_bind(binding, outcome))
        is_refused = bool(outcome.error) and self._binder.bind_errors == "status"
        return Response(404 if is_refused else 200, wire_format.bind_response(outcome.error))

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
