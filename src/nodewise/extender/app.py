"""The extender's routes: bytes in, the chain asked, bytes out. `serve` calls the handlers below.

Bad input is an error (400) and never a decision. A pod that needs an agent which cannot answer is rejected with a
reason, in a regular answer: to kube-scheduler an error means "place it without us" wherever `ignorable` is true.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nodewise.agent import View
from nodewise.clock import Clock
from nodewise.errors import BadInput, Problem
from nodewise.extender import report, wire
from nodewise.extender.chain import Chain
from nodewise.extender.decision import Decision, DecisionRing
from nodewise.observe.meters import Meters
from nodewise.serve.application import Request, Response, Route

WHOLE_NODES_AT_ONCE: Final = 2
"""Requests with whole nodes are large (52 MB at 5,000 nodes); more than this many at once are answered 503."""
LARGE_BYTES: Final = 2**20


class Extender:
    """Answers kube-scheduler from the newest View and keeps each decision."""

    def __init__(
        self,
        chains: Mapping[str, Chain],
        reader: wire.Reader[Any],
        view: Callable[[], View],
        ring: DecisionRing,
        clock: Clock,
        meters: Meters,
    ) -> None:
        self._chains = chains
        self._reader = reader
        self._view = view
        self._ring = ring
        self._clock = clock
        self._meters = meters

    def routes(self) -> list[Route]:
        """`/scheduler/<verb>` asks all agents, `/agents/<name>/<verb>` that one."""
        verbs = {"filter": self._filter, "prioritize": self._prioritize, "preempt": self._preempt}
        return [
            Route("POST", f"{prefix}/{verb}", _bound(handler, chain), WHOLE_NODES_AT_ONCE, LARGE_BYTES)
            for prefix, chain in self._chains.items()
            for verb, handler in verbs.items()
        ]

    def decisions_routes(self) -> list[Route]:
        """For loopback or mutual TLS only: decisions name every tenant's pods."""
        return [Route("GET", "/decisions", self._decisions)]

    def _filter(self, chain: Chain, request: Request) -> Response:
        candidacy = self._reader.candidacy(request.body)
        decision = chain.filter(candidacy.pod, candidacy.names, self._view(), self._clock.now())
        self._keep(decision)
        return Response(200, wire.filter_answer(candidacy, decision))

    def _prioritize(self, chain: Chain, request: Request) -> Response:
        candidacy = self._reader.candidacy(request.body)
        decision = chain.prioritize(candidacy.pod, candidacy.names, self._view(), self._clock.now())
        self._keep(decision)
        return Response(200, wire.prioritize_answer(decision))

    def _preempt(self, chain: Chain, request: Request) -> Response:
        preemption = self._reader.preemption(request.body)
        decision = chain.preempt(preemption.pod, list(preemption.victims), self._view(), self._clock.now())
        self._keep(decision)
        return Response(200, wire.preempt_answer(preemption, decision))

    def _decisions(self, request: Request) -> Response:
        limit = request.query.get("limit", "20")
        if not limit.isdecimal() or not 0 < int(limit) <= _MOST_DECISIONS:
            raise BadInput(
                "query", [Problem("limit", repr(limit), f"a whole number from 1 to {_MOST_DECISIONS}")]
            )
        found = self._ring.newest(
            request.query.get("namespace", ""), request.query.get("pod", ""), limit=int(limit)
        )
        return Response(200, report.encode({"decisions": [report.decision(one) for one in found]}) + b"\n")

    def _keep(self, decision: Decision) -> None:
        self._ring.add(decision)
        self._meters.set("decisions_bytes", self._ring.size_bytes)
        for agent, verdict in decision.verdicts:
            rejected = int((verdict.codes != 0).sum())
            self._meters.count("verdicts_total", rejected, agent=agent, verdict="rejected")
            self._meters.count("verdicts_total", len(verdict.codes) - rejected, agent=agent, verdict="passed")


_MOST_DECISIONS: Final = 1000


def _bound(handler: Callable[[Chain, Request], Response], chain: Chain) -> Callable[[Request], Response]:
    return lambda request: handler(chain, request)
