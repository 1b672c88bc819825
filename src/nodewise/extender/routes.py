"""The extender's routes: bytes in, the chain asked, bytes out. `serve` calls the handlers below.

Bad input is an error (400) and never a decision. A pod that needs an agent which cannot answer is rejected with a
reason, in a regular answer: to kube-scheduler an error means "place it without us" wherever `ignorable` is true.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

import nodewise
from nodewise import cooperative
from nodewise.agent import Snapshot, StateExporter, Verdict
from nodewise.binder import BindPlugin
from nodewise.clock import Clock
from nodewise.errors import Unavailable
from nodewise.extender import ledger, wire
from nodewise.extender.binding import Bindings, Outcome
from nodewise.extender.decision import Decision, DecisionRing, PodRef
from nodewise.extender.recording import Recorder, Silent
from nodewise.extender.request_handler import ALL_AGENTS, Answering, is_named
from nodewise.extender.tape import Exchange
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.application import Handler, Lane, Request, Response, Route

WHOLE_NODES_AT_ONCE: Final = 2
"""Requests with whole nodes are large (52 MB at 5,000 nodes); more than this many at once are answered 503."""
LARGE_BYTES: Final = 2**20

Sight = Callable[[bytes | None, float], Snapshot]
"""The snapshot by which a request with this body is answered at that time, in seconds since 1970; of None, the newest.
"""


class Extender:
    """Answers kube-scheduler from the newest snapshot and keeps each decision."""

    def __init__(
        self,
        answering: Answering,
        snapshot: Sight,
        ring: DecisionRing,
        clock: Clock,
        meters: MetricsRegistry,
        recorder: Recorder = Silent(),  # noqa: B008 - it has no state
    ) -> None:
        self._answering = answering
        self._view = snapshot
        self._ring = ring
        self._clock = clock
        self._meters = meters
        self._recorder = recorder
        self._subscribers: list[Callable[[Decision], None]] = []

    def subscribe(self, tell: Callable[[Decision], None]) -> None:
        """Have each decision told, after it is kept; `tell` must not block."""
        self._subscribers.append(tell)

    def routes(self) -> list[Route]:
        """`/scheduler/<verb>` asks all agents, `/agents/<name>/<verb>` that one, and the older systems' paths."""
        lane = Lane(WHOLE_NODES_AT_ONCE, LARGE_BYTES)
        asked = [
            Route("POST", path, self._answer, lane, is_forgiving=is_named(path))
            for path in self._answering.verbs
        ]
        return [*asked, Route("GET", "/version", _version, is_forgiving=True)]

    def refusing_routes(self) -> list[Route]:
        """The bind verb where no agent binds: refused in words beside kube-safe-scheduler's paths, as it did, and no
        path otherwise.
        """
        is_served = any(map(is_named, self._answering.verbs))
        return [Route("POST", f"{ALL_AGENTS}/bind", _refused_bind, pinned_only=True)] if is_served else []

    def private_routes(self) -> list[Route]:
        """For loopback or mutual TLS only: decisions and agents' states name every tenant's pods."""
        exporters = self._answering.exporters
        shows = [
            Route("GET", f"/state/{agent.name}", self._state(agent), pinned_only=True) for agent in exporters
        ]
        return [Route("GET", "/decisions", self._decisions, pinned_only=True), *shows]

    def moment(self, body: bytes | None = None) -> tuple[Snapshot, float]:
        """The snapshot by which this body is answered, or the newest, and what time it is."""
        now = self._clock.now()
        return self._view(body, now), now

    def _answer(self, request: Request) -> Response:
        path, body = request.path, request.body
        snapshot, now = self.moment(body)
        exchange = Exchange(path=path, at=now, generation=snapshot.generation)
        with self._failure_recorded(exchange, body):
            answer = self._answering.answer(path, body, snapshot, now)
            self.keep(answer.decision)
            parts = answer.encode()
        self._recorder.exchange(exchange, body, parts)
        return Response(200, parts)

    @contextlib.contextmanager
    def _failure_recorded(self, exchange: Exchange, body: bytes) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failed = msgspec.structs.replace(exchange, error=type(error).__name__)
            self._recorder.exchange(failed, body, [str(error).encode()])
            raise

    async def _decisions(self, request: Request) -> Response:
        return Response(200, await cooperative.run(ledger.page(self._ring, request.query)))

    def _state(self, agent: StateExporter[Any, Any]) -> Handler:
        async def answer(request: Request) -> Response:
            agent_state = self.moment()[0].agent_states.get(agent.name)
            if agent_state is None:
                raise Unavailable(f"agent {agent.name} has seen no whole list yet", retry_after_s=1.0)
            return Response(200, await cooperative.run(agent.export(agent_state, request.query)))

        return answer

    def keep(self, decision: Decision) -> None:
        """Keep a decision, and tell it."""
        self._ring.add(decision)
        self._meters.set("decisions_bytes", self._ring.size_bytes)
        for agent, verdict in decision.verdicts if decision.verb == "filter" else ():
            rejected = int((verdict.codes != 0).sum())
            self._meters.count("verdicts_total", rejected, agent=agent, verdict="rejected")
            self._meters.count("verdicts_total", len(verdict.codes) - rejected, agent=agent, verdict="passed")
        for tell in self._subscribers:
            tell(decision)


def _version(_: Request) -> Response:
    return Response(200, nodewise.__version__.encode(), "text/plain; charset=utf-8")


def _refused_bind(request: Request) -> Response:
    asked = wire.binding(request.body)
    told = (
        f"nodewise does not bind {asked.pod_namespace}/{asked.pod_name}: leave bindVerb of this entry empty"
    )
    return Response(200, wire.bind_answer(told))


class NotBound(msgspec.Struct, frozen=True):
    """A bind that ended without success, though no agent refused it."""

    error: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"nodewise: {self.error}"

    def remedy(self) -> str:
        return "kube-scheduler places the pod again; the log of nodewise has the line bind_failed"


class BindRoutes:
    """The bind verb of the agent that binds. A refusal is told as kube-scheduler can take it: status 404, or words."""

    def __init__(self, bindings: Bindings, binder: BindPlugin[Any, Any], extender: Extender) -> None:
        self._bindings = bindings
        self._binder = binder
        self._extender = extender

    def routes(self) -> list[Route]:
        """`/scheduler/bind` is the same as that of the agent."""
        paths = (ALL_AGENTS, f"/agents/{self._binder.name}")
        return [Route("POST", f"{path}/bind", self._bind, pinned_only=True) for path in paths]

    async def _bind(self, request: Request) -> Response:
        asked = wire.binding(request.body)
        outcome = await self._bindings.bind(asked)
        self._extender.keep(self._decision(asked, outcome))
        is_refused = bool(outcome.error) and self._binder.bind_errors == "status"
        return Response(404 if is_refused else 200, wire.bind_answer(outcome.error))

    def _decision(self, asked: wire.BindingArgs, outcome: Outcome) -> Decision:
        snapshot, at = self._extender.moment()
        pod = PodRef(asked.pod_namespace, asked.pod_name, asked.pod_uid)
        names = snapshot.nodes.named([asked.node])
        made = Decision("bind", pod, at, snapshot.generation, names, told=outcome.told or outcome.error)
        if not outcome.error:
            return made
        verdict = Verdict(np.ones(1, np.int16), (outcome.reason or NotBound(outcome.error),))
        return msgspec.structs.replace(made, verdicts=((self._binder.name, verdict),))
