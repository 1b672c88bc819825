"""Checks of what every response has to be, whatever the request was."""

import json
from collections.abc import Sequence
from typing import Any

from tests.hostile.extender_process import Answer

_MOST = 10


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a key stands twice: {[key for key, _ in pairs][:20]}"
    return found


def document(answer: Answer, *, repeated: bool = False) -> Any:
    """The JSON of an answer, no number of which is none, and no key of which stands twice unless asked about so."""

    def refused(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    hook = dict if repeated else _once
    return json.loads(answer.body, object_pairs_hook=hook, parse_constant=refused)


def check_refused(answer: Answer) -> None:
    """A refusal names in words what was wrong."""
    said = document(answer)
    assert said["error"]
    assert said["problems"]
    for problem in said["problems"]:
        assert set(problem) == {"field", "seen", "wanted"}
        assert problem["field"]


def check_filtered(answer: Answer, names: Sequence[str] | None = None) -> tuple[list[str], dict[str, str]]:
    """Every candidate is kept or has failed, and none both; those kept, and those failed with their reasons.

    A candidate that is named twice is answered twice, as by the older system.
    """
    repeated = names is None or len(set(names)) < len(names)
    said = document(answer, repeated=repeated)
    assert set(said) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert said["Error"] == ""
    failed: dict[str, str] = said["FailedNodes"] or {}
    if said["Nodes"] is None:
        kept: list[str] = said["NodeNames"]
    else:
        assert said["NodeNames"] is None
        kept = [item["metadata"]["name"] for item in said["Nodes"]["items"]]
    assert repeated or len(set(kept)) == len(kept), "a node is kept twice"
    assert not set(kept) & set(failed)
    assert all(failed.values()), "a node failed without a reason"
    if names is not None:
        assert set(kept) | set(failed) == set(names)
    return kept, failed


def check_scored(answer: Answer, names: Sequence[str] | None = None) -> None:
    """Every candidate has one score from 0 to 10."""
    said = document(answer)
    hosts = [one["Host"] for one in said]
    assert all(set(one) == {"Host", "Score"} and type(one["Score"]) is int for one in said)
    assert all(0 <= one["Score"] <= _MOST for one in said)
    assert len(set(hosts)) == len(hosts), "a node is scored twice"
    if names is not None:
        assert set(hosts) == set(names)


def check_preempted(answer: Answer, names: Sequence[str] | None = None) -> None:
    """Nobody is evicted from a node that was not asked about."""
    said = document(answer)
    assert set(said) == {"NodeNameToMetaVictims"}
    for victims in said["NodeNameToMetaVictims"].values():
        assert set(victims) == {"Pods", "NumPDBViolations"}
    if names is not None:
        assert set(said["NodeNameToMetaVictims"]) <= set(names)


CHECKS = {"filter": check_filtered, "prioritize": check_scored, "preempt": check_preempted}


def check(verb: str, answer: Answer, names: Sequence[str] | None = None) -> None:
    """A regular answer of this verb, or a refusal."""
    if answer.status == 200:
        CHECKS[verb](answer, names)
    else:
        assert answer.status == 400, (answer.status, answer.body[:300])
        check_refused(answer)
