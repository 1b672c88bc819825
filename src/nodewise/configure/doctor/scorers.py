"""Scorers that go by load, of which one is enough."""

from collections.abc import Iterator
from typing import Final

from nodewise.configure.doctor.entries import agents, known, ours, prefers, unread
from nodewise.configure.doctor.facts import Configuration, Facts, Scheduler, Unread
from nodewise.configure.doctor.findings import Answer, found

PLUGINS: Final = {
    "TargetLoadPacking": "Trimaran",
    "LoadVariationRiskBalancing": "Trimaran",
    "LowRiskOverCommitment": "Trimaran",
    "Peaks": "Trimaran",
    "Dynamic": "Crane",
    "LoadAwareScheduling": "Koordinator",
    "usage": "Volcano",
}
"""Score plugins of others that go by measured load, and whose they are."""
_BY_LOAD: Final = frozenset({"safe", "congestion", "pigeon", "learned"})
_ALIKE: Final = frozenset({"safe", "pigeon", "learned"})
"""Of nodewise's agents those that each judge a node as a whole."""


def check(facts: Facts) -> Iterator[Answer]:
    id_ = "two-load-aware-scorers"
    yield from unread(facts, id_)
    for scheduler in known(facts):
        assert isinstance(scheduler.configuration, Configuration)
        for profile in scheduler.configuration.profiles:
            theirs = [f"{name} ({PLUGINS[name]})" for name in profile.plugins if name in PLUGINS]
            own = sorted(_own(facts, scheduler))
            if theirs and own:
                seen = f"profile {profile.scheduler} has {', '.join(theirs)}, and nodewise scores by {', '.join(own)}"
                yield found(id_, scheduler.where, seen, "one of them")
            elif len(theirs) > 1:
                seen = f"profile {profile.scheduler} has {', '.join(theirs)}"
                yield found(id_, scheduler.where, seen, "one of them")
    yield from _together(facts)


def _together(facts: Facts) -> Iterator[Answer]:
    """Agents of nodewise's own, whose scores are added: that can be meant."""
    for one in () if isinstance(facts.extenders, Unread) else facts.extenders:
        both = [name for name in one.agents if name in _ALIKE]
        if len(both) > 1:
            seen = f"--agents has {', '.join(both)}, whose scores are added by --weights"
            where = one.pod.where
            yield found(
                "two-load-aware-scorers", where, seen, "one, or weights that are meant", severity="note"
            )


def _own(facts: Facts, scheduler: Scheduler) -> set[str]:
    """By what nodewise's entries of this scheduler score, as far as that is load."""
    found_: set[str] = set()
    for one, entry in ours(facts):
        if one.where == scheduler.where and entry.prioritize:
            asked = agents(facts, one, entry)
            found_ |= asked & _BY_LOAD
            if "telemetry" in asked and prefers(facts):
                found_.add("the strategy scheduleonmetric")
    return found_
