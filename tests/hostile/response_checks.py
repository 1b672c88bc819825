"""Checks that hold for every response, whatever the request was."""

import json
from collections.abc import Sequence
from typing import Any

from tests.filter_responses import rejected_nodes
from tests.hostile.extender_process import RawResponse

_MOST = 10


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs), f"a key stands twice: {[key for key, _ in pairs][:20]}"
    return members


def document(answer: RawResponse, *, repeated: bool = False) -> Any:
    """The decoded JSON of a response. Fails on NaN and Infinity, and on duplicate keys unless `repeated` is set."""

    def refused(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    hook = dict if repeated else _once
    return json.loads(answer.body, object_pairs_hook=hook, parse_constant=refused)


def check_refused(answer: RawResponse) -> None:
    """Checks that a refusal describes the problem and names the fields."""
    response_body = document(answer)
    assert response_body["error"]
    assert response_body["problems"]
    for problem in response_body["problems"]:
        assert set(problem) == {"field", "seen", "wanted"}
        assert problem["field"]


def check_filtered(
    answer: RawResponse, names: Sequence[str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """Checks that every candidate is either kept or failed. Returns the kept nodes, and the failed nodes with their
    reasons.

    A candidate that is named twice is returned twice, as in the older system.
    """
    repeated = names is None or len(set(names)) < len(names)
    response_body = document(answer, repeated=repeated)
    assert set(response_body) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert response_body["Error"] == ""
    failed = rejected_nodes(response_body)
    if response_body["Nodes"] is None:
        kept: list[str] = response_body["NodeNames"]
    else:
        assert response_body["NodeNames"] is None
        kept = [item["metadata"]["name"] for item in response_body["Nodes"]["items"]]
    assert repeated or len(set(kept)) == len(kept), "a node is kept twice"
    assert not set(kept) & set(failed)
    assert all(failed.values()), "a node failed without a reason"
    if names is not None:
        assert set(kept) | set(failed) == set(names)
    return kept, failed


def check_scored(answer: RawResponse, names: Sequence[str] | None = None) -> None:
    """Checks that every candidate has exactly one score from 0 to 10."""
    priorities = document(answer)
    hosts = [priority["Host"] for priority in priorities]
    assert all(
        set(priority) == {"Host", "Score"} and type(priority["Score"]) is int for priority in priorities
    )
    assert all(0 <= priority["Score"] <= _MOST for priority in priorities)
    assert len(set(hosts)) == len(hosts), "a node is scored twice"
    if names is not None:
        assert set(hosts) == set(names)


def check_preempted(answer: RawResponse, names: Sequence[str] | None = None) -> None:
    """Checks that the response names victims only on nodes of the request."""
    response_body = document(answer)
    assert set(response_body) == {"NodeNameToMetaVictims"}
    for victims in response_body["NodeNameToMetaVictims"].values():
        assert set(victims) == {"Pods", "NumPDBViolations"}
    if names is not None:
        assert set(response_body["NodeNameToMetaVictims"]) <= set(names)


CHECKS = {"filter": check_filtered, "prioritize": check_scored, "preempt": check_preempted}


def check(verb: str, answer: RawResponse, names: Sequence[str] | None = None) -> None:
    """Checks that a response is a valid response of this verb, or a refusal."""
    if answer.status == 200:
        CHECKS[verb](answer, names)
    else:
        assert answer.status == 400, (answer.status, answer.body[:300])
        check_refused(answer)
