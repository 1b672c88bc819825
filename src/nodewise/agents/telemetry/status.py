"""What a TASPolicy's status should say, as conditions in the form of Kubernetes' own (KEP-1623). No I/O."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.agents.telemetry import reasons
from nodewise.agents.telemetry.state import PolicyState
from nodewise.errors import UNREADABLE

_LONGEST: Final = 1024
"""Characters of a condition's message; more than that is cut."""


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition. `last_transition_time` is when `status` last changed, RFC 3339."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """What we write of a status, and read of what is there."""

    conditions: list[Condition] = []
    observed_generation: int = 0
    violating_nodes: int = 0
    missing_metrics: list[str] = []

    def by_type(self) -> dict[str, Condition]:
        return {condition.type: condition for condition in self.conditions}


def read(status: msgspec.Raw) -> Status:
    """The status that an object carries; an empty one if it cannot be read."""
    try:
        return msgspec.json.decode(status, type=Status | None) or Status()
    except UNREADABLE:
        return Status()


def desired(decided: PolicyState, generation: int, clash: str, before: Status, now: str) -> Status:
    """The whole status. `clash` says in words who else claims the policy's labels; empty for nobody.

    A condition that says what it said before keeps its time; one that was never bad is left out.
    """
    known = before.by_type()
    conditions = [
        _timed(condition, known.get(condition.type), generation, now)
        for condition in _conditions(decided, clash)
        if condition.type in _ALWAYS or condition.status == "True" or condition.type in known
    ]
    return Status(conditions, generation, violating(decided), sorted(decided.waits_for))


_ALWAYS: Final = ("Valid", "MetricsFetched")
GOOD: Final[Mapping[str, str]] = {
    "Valid": "True",
    "MetricsFetched": "True",
    "Suspended": "False",
    "LabelConflict": "False",
    "NotTrusted": "False",
}
"""The status of each condition when all is well."""


def _conditions(decided: PolicyState, clash: str) -> Iterator[Condition]:
    problems = "; ".join(map(str, decided.policy.problems))
    yield _of("Valid", not problems, "FieldProblem", problems, "every field can be used")
    waits = ", ".join(f"{key} ({cause})" if cause else key for key, cause in decided.waits_for.items())
    text = f"never fetched: {waits}; no node passes dontschedule until each of its metrics has a value"
    yield _of("MetricsFetched", not waits, "NeverFetched", text, "every metric is available")
    held = ", ".join(reasons.rule_text(rule) for rule in decided.suspended)
    text = f"more than half of the nodes lost their value at once; the last verdicts hold for {held}"
    yield _of("Suspended", bool(held), "LostNodes", text if held else "", "no rule is suspended")
    yield _of("LabelConflict", bool(clash), "OwnedElsewhere", clash, "nobody else claims the labels")
    not_trusted = decided.policy.not_trusted
    text = "the policy needs no trust that its namespace lacks"
    yield _of("NotTrusted", bool(not_trusted), "NamespaceNotTrusted", not_trusted, text)


def _of(kind: str, is_true: bool, bad_reason: str, bad: str, good: str) -> Condition:
    status = "True" if is_true else "False"
    if GOOD[kind] == status:
        return Condition(kind, status, "AllWell", good)
    return Condition(kind, status, bad_reason, bad if len(bad) <= _LONGEST else f"{bad[: _LONGEST - 1]}…")


def _timed(condition: Condition, before: Condition | None, generation: int, now: str) -> Condition:
    kept = before.last_transition_time if before and before.status == condition.status else now
    return msgspec.structs.replace(
        condition, last_transition_time=kept or now, observed_generation=generation
    )


def violating(decided: PolicyState) -> int:
    """How many nodes the policy rejects or wants drained."""
    masks = [] if decided.judged is None else [decided.judged.codes[:-1] > 0]
    masks += [column.codes[:-1] > 0 for column in decided.labels if column.key == decided.policy.name]
    return int(np.any(masks, axis=0).sum()) if masks else 0


def document(api_version: str, kind: str, metadata: Mapping[str, Any], status: Status) -> dict[str, Any]:
    """The body of a server-side apply to the status: ours are these fields and nothing else."""
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": status}
