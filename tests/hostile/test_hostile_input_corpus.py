"""Sends the corpus of hostile input to the running process."""

from typing import Any

import pytest

from tests.hostile import response_checks, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender, RawConnection, candidates
from tests.hostile.hostile_input_corpus import cases, data

BODIES = cases("bodies")
REQUESTS = cases("requests")


@pytest.mark.parametrize("case", BODIES.values(), ids=list(BODIES))
def test_a_body(target: AttackedExtender, case: dict[str, Any]) -> None:
    path, expect = case.get("path", "/scheduler/filter"), case["expect"]
    with target.line() as line:
        answer = line.ask(path, data(case["body"]))
        assert answer.status == expect.get("status", 200), answer.body[:500]
        if answer.status == 200:
            _check_regular(path.rpartition("/")[2], answer, expect)
        else:
            response_checks.check_refused(answer)
            assert expect.get("field", answer.field()) == answer.field(), answer.body[:500]
        _check_alive(line)


def _check_regular(verb: str, answer: Any, expect: dict[str, Any]) -> None:
    response_checks.check(verb, answer)
    assert len(answer.body) <= expect.get("most_bytes", len(answer.body))
    response_body = response_checks.document(answer, repeated=True)
    if verb == "preempt":
        assert len(response_body["NodeNameToMetaVictims"]) == expect["candidates"]
    elif verb == "prioritize":
        assert len(response_body) == expect["candidates"]
    elif "kept_times" in expect:
        assert len(response_body["NodeNames"]) == expect["kept_times"]
    else:
        kept, failed = response_checks.check_filtered(answer)
        assert len(kept) + len(failed) == expect.get("candidates", len(kept) + len(failed))
        assert kept == expect.get("kept", kept)
        assert list(failed) == expect.get("failed", list(failed))


def _check_alive(line: RawConnection) -> None:
    """Checks that the connection still works and gets correct responses."""
    answer = line.ask("/scheduler/filter", candidates(three_node_cluster_objects.NODES))
    expected = (["n1", "n2"], {three_node_cluster_objects.HOT: three_node_cluster_objects.WHY})
    assert response_checks.check_filtered(answer, three_node_cluster_objects.NODES) == expected


@pytest.mark.parametrize("case", REQUESTS.values(), ids=list(REQUESTS))
def test_a_request(target: AttackedExtender, case: dict[str, Any]) -> None:
    is_admin, expect = case.get("port") == "admin", case["expect"]
    statuses = expect.get("statuses", [])
    with target.admin() if is_admin else target.line() as line:
        line.send(data(case["send"]))
        answers = [line.answer() for _ in statuses]
        assert [answer and answer.status for answer in answers] == statuses
        last = answers[-1] if answers else None
        if last is not None and last.status != 200:
            response_checks.check_refused(last)
            assert expect.get("field", last.field()) == last.field(), last.body
        if expect.get("unread"):
            return  # the server waits for the rest and discards it, until the body deadline
        if expect.get("closes"):
            while line.answer() is not None:
                pass
        elif is_admin:
            assert line.ask("/healthz", b"", "GET", {}).status == 200
        else:
            _check_alive(line)
