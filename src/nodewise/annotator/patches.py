"""Which annotations are to be written: those that moved, so that the API server and kube-scheduler are left alone.

Each patch of a node has every pod tried again that kube-scheduler found no node for.
"""

from collections.abc import Mapping
from math import isnan
from typing import Final, NamedTuple

from nodewise.annotator import usage
from nodewise.clock import format_duration, format_rfc3339
from nodewise.errors import BadSettings, Problem
from nodewise.statistics import annotations
from nodewise.statistics.annotations import ANNOTATED_AT

MOVED_SHARE: Final = 0.02
"""Of what stands: a number that moved by no more is not written again."""
_AHEAD_S: Final = 60.0
"""How much later than our own clock another writer's may be."""

Texts = Mapping[str, str]
Wanted = Mapping[str, str | None]
"""None for an annotation that must not stand."""


class Rules(NamedTuple):
    """When something is written."""

    max_age_s: float
    """From this age on, readers take statistics for missing."""
    moved_share: float = MOVED_SHARE

    @property
    def refresh_s(self) -> float:
        """The age at which the time is written again although nothing moved."""
        return self.max_age_s / 2


def rules(max_age_s: float, period_s: float) -> Rules:
    """`BadSettings` for statistics that would grow too old from one burst to the next but one."""
    if max_age_s < 2 * period_s:
        wanted = f"{format_duration(2 * period_s)} or more, two periods"
        problem = Problem("--statistics-max-age", format_duration(max_age_s), wanted)
        raise BadSettings("settings", [problem])
    return Rules(max_age_s)


def moved(stands: str | None, wanted: str | None, share: float = MOVED_SHARE) -> bool:
    """Whether an annotation is to be written: it is not there, is no number, or is off by more than the share of it."""
    if stands is None or wanted is None:
        return stands != wanted
    old, new = annotations.number(stands), annotations.number(wanted)
    return isnan(old) or not abs(new - old) <= share * abs(old)


def age_s(stands: Texts, now: float) -> float:
    """How old a node's statistics are; NaN where nobody can tell, be it because their time is yet to come."""
    age = now - annotations.time(stands.get(ANNOTATED_AT))
    return float("nan") if age < -_AHEAD_S else max(age, 0.0)


def are_whole(stands: Texts, now: float, rules: Rules) -> bool:
    """Whether statistics of a node's use stand, with deviations, and are not too old to count."""
    return all(key in stands for key in usage.WHOLE) and not age_s(stands, now) >= rules.max_age_s


def patch(stands: Texts, wanted: Wanted, riding: Texts, now: float, rules: Rules) -> Wanted:
    """What of a node's annotations is to be written; empty for nothing.

    What is written comes with the time, which holds for all of `wanted`: what is not written again stands as it
    would be written. `riding` goes along where anything is written.
    """
    changed = beside(stands, wanted, rules)
    age = age_s(stands, now)
    if not changed and age < rules.refresh_s:
        return {}
    along = {key: text for key, text in riding.items() if stands.get(key) != text}
    return {**changed, **along, ANNOTATED_AT: format_rfc3339(now)}


def beside(stands: Texts, wanted: Wanted, rules: Rules) -> Wanted:
    """What of `wanted` moved, without a time: that which stands there is of statistics of use."""
    return {key: text for key, text in wanted.items() if moved(stands.get(key), text, rules.moved_share)}


def unmeasured(stands: Texts, wanted: Wanted, now: float, rules: Rules) -> Wanted:
    """What is written of a node whose use nobody knows now, although it should be known.

    Statistics of its use that stand there keep their time, so nothing is written beside them with a new one; when they
    are too old to count they go, and the rest is kept up to date from then on.
    """
    measured = {key: None for key in usage.KEYS if key in stands}
    if measured and not age_s(stands, now) >= rules.max_age_s:
        return beside(stands, wanted, rules)
    return patch(stands, {**measured, **wanted}, {}, now, rules) if wanted else {}
