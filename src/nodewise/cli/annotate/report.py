"""The output of `nodewise annotate`: the statistics of each node, and the annotations to write."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Final

import msgspec

from nodewise.annotator.loop import Looked
from nodewise.annotator.planning import NodePlan
from nodewise.annotator.writing import Written
from nodewise.cli import tables
from nodewise.statistics import annotations as keys
from nodewise.statistics.annotations import ANNOTATED_AT

_MIB: Final = 2**20
_COLUMNS: Final = (
    ("FREE CPU", keys.MEAN_FREE_CPU, keys.STD_FREE_CPU),
    ("FREE MEMORY", keys.MEAN_FREE_MEMORY, keys.STD_FREE_MEMORY),
    ("NEXT CPU", keys.FORECAST_FREE_CPU, ""),
    ("NEXT MEMORY", keys.FORECAST_FREE_MEMORY, ""),
    ("REQUESTED CPU", keys.REQUESTED_CPU, ""),
    ("REQUESTED MEMORY", keys.REQUESTED_MEMORY, ""),
    ("PODS", keys.REQUESTED_PODS, ""),
)
"""A column, the annotation in it, and the deviation that stands beside it."""


def table(looked: Looked) -> None:
    """One line a node: what is free and requested, and how many annotations are to be written."""
    plans = looked.plans
    rows = [[plan.name, *_cells(plan.wanted), _writes(plan)] for plan in plans.nodes]
    rows += [[name, *["-"] * len(_COLUMNS), "nothing: it is not ready"] for name in plans.not_ready]
    shown = tables.Shown(["NODE", *(head for head, *_ in _COLUMNS), "TO WRITE"], sorted(rows))
    for head, *_ in _COLUMNS:
        shown = tables.without(head, *shown)
    tables.show(*shown)


def report(looked: Looked, written: Written | None) -> bytes:
    """The same as JSON, with the annotations themselves; `written` is None where nothing was to be."""
    plans = looked.plans
    body: dict[str, Any] = {
        "nodes": [
            {"node": one.name, "stands": one.stands, "wanted": one.wanted, "patch": one.patch}
            for one in plans.nodes
        ],
        "not_ready": plans.not_ready,
        "unmeasured": plans.unmeasured,
        "failures": looked.failures,
    }
    if written is not None:
        body["written"] = written._asdict()
    return msgspec.json.encode(body)


def summary(looked: Looked, written: Written) -> str:
    """One line about a burst."""
    plans = looked.plans
    counts = (
        (written.done, "annotated"),
        (len(plans.nodes) - written.done - written.failed - written.gone, "unchanged"),
        (written.failed, "failed"),
        (written.gone, "gone"),
        (len(plans.not_ready), "not ready"),
        (len(plans.unmeasured), "not measured"),
    )
    said = [f"{count} {what}" for number, (count, what) in enumerate(counts) if count or not number]
    return f"nodes: {', '.join(said)}"


def notes(looked: Looked, *, one_sample: bool) -> Iterator[str]:
    """What an operator should know besides."""
    yield from looked.failures
    if one_sample and any(plan.wanted.get(keys.MEAN_FREE_CPU) for plan in looked.plans.nodes):
        yield (
            "one sample has a mean and no deviation: let `nodewise annotate` run, without --once, or give"
            " --prometheus-url"
        )


def _cells(wanted: Mapping[str, str | None]) -> Iterator[str]:
    for _, key, deviation in _COLUMNS:
        value = _shown(key, wanted.get(key))
        spread = _shown(deviation, wanted.get(deviation)) if deviation else "-"
        yield f"{value} ±{spread}" if spread != "-" else value


def _shown(key: str, text: str | None) -> str:
    """`1.25` cores, `3200 Mi`, a count."""
    number = keys.number(text)
    if isnan(number):
        return "-"
    if key.endswith("cpu"):
        return f"{number / 1000:.3g}"
    return f"{number / _MIB:.0f} Mi" if key.endswith("memory") else f"{number:.0f}"


def _writes(plan: NodePlan) -> str:
    count = sum(key != ANNOTATED_AT for key in plan.patch)
    if count:
        return f"{count} annotations" if count > 1 else "1 annotation"
    return "the time" if plan.patch else "nothing"
