"""The bind verb as kube-scheduler meets it: what is answered, and what is kept of it."""

import asyncio
import json
from typing import Any

import pytest

from nodewise.agent import NodeIndex, Snapshot
from nodewise.clock import ManualClock
from nodewise.errors import BadInput
from nodewise.extender.binding import Outcome
from nodewise.extender.decision import Decision, DecisionRing
from nodewise.extender.request_handler import RequestHandler
from nodewise.extender.routes import BindRoutes, Extender
from nodewise.extender.wire_format import BindingArgs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.application import Request
from tests.unit.extender.replicas import NoCard

ASKED = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}
REFUSED = Outcome("refused", "will not fit", reason=NoCard())


class Bindings:
    """Whatever is asked comes to one outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[BindingArgs] = []

    async def bind(self, args: BindingArgs) -> Outcome:
        self.asked.append(args)
        return self.outcome


class Binder:
    name = "gpu"

    def __init__(self, bind_errors: str) -> None:
        self.bind_errors = bind_errors


def play(outcome: Outcome, bind_errors: str = "status", body: Any = ASKED) -> tuple[int, Any, list[Decision]]:
    """Status, body, and what is kept."""
    ring = DecisionRing()
    decisions: list[Decision] = []
    snapshot = Snapshot(NodeIndex(["n1"]), {}, 5.0, 7)
    extender = Extender(
        RequestHandler([], {}), lambda *_: snapshot, ring, ManualClock(9.0), MetricsRegistry()
    )
    extender.subscribe(decisions.append)
    bindings: Any = Bindings(outcome)
    binder: Any = Binder(bind_errors)
    routes = BindRoutes(bindings, binder, extender).routes()
    assert [route.path for route in routes] == ["/scheduler/bind", "/agents/gpu/bind"]
    request = Request("POST", "/scheduler/bind", {}, json.dumps(body).encode(), "application/json", "")
    handler: Any = routes[0].handler
    answer = asyncio.run(handler(request))
    assert bindings.asked == [BindingArgs("p", "d", "u", "n1")]
    assert decisions == list(ring.about("d", "p"))
    return answer.status, json.loads(answer.body), decisions


def test_success_is_an_empty_error() -> None:
    status, body, kept = play(Outcome("bound", told="main: card0"))
    assert (status, body) == (200, {"Error": ""})
    assert (kept[0].verb, kept[0].pod.uid, kept[0].names.tolist()) == ("bind", "u", ["n1"])
    assert (kept[0].told, kept[0].verdicts, kept[0].generation) == ("main: card0", (), 7)


@pytest.mark.parametrize(("bind_errors", "status"), [("status", 404), ("field", 200)])
def test_a_refusal_is_told_as_it_is_asked_for(bind_errors: str, status: int) -> None:
    actual_status, body, kept = play(REFUSED, bind_errors)
    assert (actual_status, body) == (status, {"Error": "will not fit"})
    assert kept[0].kept().tolist() == [False]
    assert kept[0].verdicts[0][1].reasons[0].text() == "no card is free"


def test_a_failure_is_kept_as_one() -> None:
    _, body, kept = play(Outcome("failed", 'pod "p" not found'))
    assert body == {"Error": 'pod "p" not found'}
    reason = kept[0].verdicts[0][1].reasons[0]
    assert (kept[0].told, reason.is_failure) == ('pod "p" not found', True)
    assert reason.text() == 'nodewise: pod "p" not found'


def test_what_is_no_request_binds_nobody() -> None:
    with pytest.raises(BadInput, match="PodName"):
        play(REFUSED, body={})
