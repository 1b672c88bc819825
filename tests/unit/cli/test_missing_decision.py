"""Why no decision is known, the likeliest reason first."""

from typing import Any

import pytest

from nodewise.cli.explain import missing_decision
from nodewise.cli.explain.pods import Seen, State
from nodewise.cli.explain.replicas import Answer, Replica
from nodewise.extender.decision_endpoint import Page

CREATED = "2026-11-21T10:00:00Z"
BEFORE, AFTER = "2026-11-21T09:00:00Z", "2026-11-21T11:00:00Z"


def state(**fields: Any) -> Seen:
    base = State("u", CREATED, "", "Pending", "default-scheduler", (), ("telemetry/scheduling",))
    return Seen(base._replace(**fields))


def answer(kept: int = 5, since: str | None = BEFORE) -> Answer:
    return Answer(
        Replica("http://one"), Page(decisions=[], found=0, tries=0, since=None, kept=kept, kept_since=since)
    )


CASES = [
    pytest.param(state(), [answer()], ["no scheduler has said anything"], id="nobody looked yet"),
    pytest.param(state(asks=()), [answer()], ["no extended resource", "no scheduler"], id="no managed resource"),
    pytest.param(
        state(gates=("quota",), message="gated"), [answer()], ["scheduling gates (quota)"], id="gated, and nothing else"
    ),
    pytest.param(
        state(scheduler="mine"), [answer()], ["its scheduler is mine", "no scheduler"], id="another scheduler"
    ),
    pytest.param(
        state(message="0/3 nodes: Insufficient cpu"), [answer()], ["Insufficient cpu"], id="its own rules left no node"
    ),
    pytest.param(
        state(asks=(), policy="web", node="a"), [answer()], ["add the limit telemetry/scheduling: 1"],
        id="a policy and no request",
    ),
    pytest.param(
        state(misspelt="telemetry-polcy", node="a"), [answer()], ["it has the label telemetry-polcy and no label"],
        id="a misspelt label",
    ),
    pytest.param(state(node="a"), [answer()], ["has not asked about it"], id="placed without a word"),
    pytest.param(
        state(node="a"), [answer(since=AFTER)], ["http://one remembers 5 decisions"], id="the ring is too small"
    ),
    pytest.param(state(node="a"), [answer(0, None)], ["decided nothing at all"], id="nobody ever asks"),
    pytest.param(
        state(node="a"), [answer(), Answer(Replica("http://two"), None, (), "down")], ["http://two did not answer"],
        id="the decision may be elsewhere",
    ),
    pytest.param(Seen(None, gone=True), [answer(since=None)], ["no such pod"], id="no such pod"),
    pytest.param(
        Seen(None), [answer()], ["kube-scheduler asks only", "http://one remembers"], id="nothing is known of the pod"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "answers", "wanted"), CASES)
def test_reasons(seen: Seen, answers: list[Answer], wanted: list[str]) -> None:
    causes = missing_decision.reasons(seen, answers)
    assert len(causes) == len(wanted)
    assert all(words in reason for words, reason in zip(wanted, causes, strict=True))
