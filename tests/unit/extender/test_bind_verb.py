"""The bind verb: its responses and stored decisions."""

import asyncio
import json
from typing import Any, Literal

import pytest

from nodewise.agent import NodeIndex, Snapshot
from nodewise.agent.bind_plugin_interface import BindPlan, BindPlugin, Refusal
from nodewise.base.errors import BadInput
from nodewise.engine.decision import Decision, DecisionRing
from nodewise.extender.binding import BindOutcome
from nodewise.extender.routes import BindRoutes, Extender, RequestHandler
from nodewise.extender.wire_format import BindingArgs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Request
from tests.manual_clock import ManualClock
from tests.unit.extender.binding_replicas import NoFreeDevice

ASKED = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n1"}
REFUSED = BindOutcome("refused", "will not fit", reason=NoFreeDevice())


class FixedBindings:
    """Bindings that have the same outcome for every pod."""

    def __init__(self, outcome: BindOutcome) -> None:
        self.outcome = outcome
        self.asked: list[BindingArgs] = []

    async def bind(self, args: BindingArgs) -> BindOutcome:
        self.asked.append(args)
        return self.outcome


class Binder(BindPlugin[Any, Any]):
    """A plugin of which only the name and the form of errors are used."""

    name = "gpu"
    allocation_records = pods = "unused"
    bind_errors = "status"

    def __init__(self, bind_errors: Literal["status", "field"]) -> None:
        self.bind_errors = bind_errors

    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        raise NotImplementedError


def play(
    outcome: BindOutcome, bind_errors: Literal["status", "field"] = "status", body: Any = ASKED
) -> tuple[int, Any, list[Decision]]:
    """The status and the body of the response, and the stored decisions."""
    ring = DecisionRing()
    decisions: list[Decision] = []
    snapshot = Snapshot(NodeIndex(["n1"]), {}, 5.0, 7)
    extender = Extender(
        RequestHandler([], {}), lambda *_: snapshot, ring, ManualClock(9.0), MetricsRegistry()
    )
    extender.subscribe(decisions.append)
    bindings: Any = FixedBindings(outcome)
    routes = BindRoutes(bindings, Binder(bind_errors), extender).routes()
    assert [route.path for route in routes] == ["/scheduler/bind", "/agents/gpu/bind"]
    request = Request("POST", "/scheduler/bind", {}, json.dumps(body).encode(), "application/json", "")
    handler: Any = routes[0].handler
    answer = asyncio.run(handler(request))
    answer.completion()
    assert bindings.asked == [BindingArgs("p", "d", "u", "n1")]
    assert decisions == list(ring.about("d", "p"))
    return answer.status, json.loads(answer.body), decisions


def test_success_is_an_empty_error() -> None:
    status, body, kept = play(BindOutcome("bound", description="main: card0"))
    assert (status, body) == (200, {"Error": ""})
    assert (kept[0].verb, kept[0].pod.uid, kept[0].names.tolist()) == ("bind", "u", ["n1"])
    assert (kept[0].description, kept[0].verdicts, kept[0].generation) == ("main: card0", (), 7)


@pytest.mark.parametrize(("bind_errors", "status"), [("status", 404), ("field", 200)])
def test_a_refusal_has_the_status_or_the_field_of_the_agent(
    bind_errors: Literal["status", "field"], status: int
) -> None:
    actual_status, body, kept = play(REFUSED, bind_errors)
    assert (actual_status, body) == (status, {"Error": "will not fit"})
    assert kept[0].feasible().tolist() == [False]
    assert kept[0].verdicts[0][1].reasons[0].text() == "no device is free"


def test_a_failure_is_kept_as_one() -> None:
    _, body, kept = play(BindOutcome("failed", 'pod "p" not found'))
    assert body == {"Error": 'pod "p" not found'}
    reason = kept[0].verdicts[0][1].reasons[0]
    assert (kept[0].description, reason.is_failure) == ('pod "p" not found', True)
    assert reason.text() == 'nodewise: pod "p" not found'


def test_an_invalid_bind_request_binds_no_pod() -> None:
    with pytest.raises(BadInput, match="PodName"):
        play(REFUSED, body={})
