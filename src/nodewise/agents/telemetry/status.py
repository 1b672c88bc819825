"""What a TASPolicy's status should say, as conditions in the form of Kubernetes' own (KEP-1623)."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from nodewise.agents.telemetry.policy import Policy
from nodewise.errors import UNREADABLE

_LONGEST: Final = 1024
"""Characters of a condition's message; more problems than that are counted, not listed."""


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition. `last_transition_time` is when `status` last changed, RFC 3339."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class _Status(msgspec.Struct, frozen=True):
    conditions: list[Condition] = []


def conditions_of(status: msgspec.Raw) -> dict[str, Condition]:
    """The conditions that an object carries, by type; none of a status that cannot be read."""
    try:
        found = msgspec.json.decode(status, type=_Status | None)
    except UNREADABLE:
        return {}
    return {one.type: one for one in found.conditions} if found else {}


def desired(policy: Policy, generation: int, before: Mapping[str, Condition], now: str) -> list[Condition]:
    """Our conditions of a policy. A condition that says what it said before keeps its time."""
    return list(_timed([_valid(policy, generation)], before, now))


def _valid(policy: Policy, generation: int) -> Condition:
    """Whether every field can be used."""
    if not policy.problems:
        return Condition("Valid", "True", "NoProblem", "every field can be used", "", generation)
    text = "; ".join(map(str, policy.problems))
    if len(text) > _LONGEST:
        text = f"{len(policy.problems)} problems: {text[: _LONGEST - 30]}…"
    return Condition("Valid", "False", "FieldProblem", text, "", generation)


def _timed(conditions: Iterable[Condition], before: Mapping[str, Condition], now: str) -> Iterable[Condition]:
    for one in conditions:
        old = before.get(one.type)
        time = old.last_transition_time if old and old.status == one.status else now
        yield msgspec.structs.replace(one, last_transition_time=time or now)


def document(api_version: str, kind: str, metadata: Mapping[str, Any], conditions: list[Condition]) -> Any:
    """The body of a server-side apply to the status: ours are these conditions and nothing else."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "status": {"conditions": conditions},
    }
