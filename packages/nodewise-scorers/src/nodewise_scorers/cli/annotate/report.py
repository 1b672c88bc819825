"""The output of `nodewise annotate`: the statistics of each node, and the annotations to write."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, Final

import msgspec

from nodewise.cli import tables
from nodewise_scorers.annotator.annotator import AnnotationPlan
from nodewise_scorers.annotator.patch_planning import NodePlan
from nodewise_scorers.annotator.patch_writer import WriteResult
from nodewise_scorers.statistics import load_annotations as keys
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT

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
"""The heading of a column, its annotation, and the annotation with the standard deviation, or empty."""


def print_annotation_plan(plan: AnnotationPlan) -> None:
    """Print one line for each node: free and requested resources, and the number of annotations to write."""
    patches = plan.patches
    rows = [
        [node.name, *_annotation_table_cells(node.desired), _format_patch(node)] for node in patches.nodes
    ]
    rows += [[name, *["-"] * len(_COLUMNS), "nothing: it is not ready"] for name in patches.not_ready]
    shown = tables.TableData(["NODE", *(head for head, *_ in _COLUMNS), "TO WRITE"], sorted(rows))
    for head, *_ in _COLUMNS:
        shown = tables.drop_empty_columns(head, *shown)
    tables.print_table(*shown)


def encode_annotation_plan(plan: AnnotationPlan, written: WriteResult | None) -> bytes:
    """The same as JSON, with the annotations themselves; `written` is None for a dry run."""
    patches = plan.patches
    body: dict[str, Any] = {
        "nodes": [
            {"node": node.name, "stands": node.current, "wanted": node.desired, "patch": node.patch}
            for node in patches.nodes
        ],
        "not_ready": patches.not_ready,
        "unmeasured": patches.unmeasured,
        "failures": plan.failures,
    }
    if written is not None:
        body["written"] = written._asdict()
    return msgspec.json.encode(body)


def format_patch_summary(plan: AnnotationPlan, written: WriteResult) -> str:
    """One line about a burst of patches."""
    patches = plan.patches
    counts = (
        (written.done, "annotated"),
        (len(patches.nodes) - written.done - written.failed - written.gone, "unchanged"),
        (written.failed, "failed"),
        (written.gone, "gone"),
        (len(patches.not_ready), "not ready"),
        (len(patches.unmeasured), "not measured"),
    )
    parts = [f"{count} {what}" for number, (count, what) in enumerate(counts) if count or not number]
    return f"nodes: {', '.join(parts)}"


def list_failure_notes(plan: AnnotationPlan, *, one_sample: bool) -> Iterator[str]:
    """Failures, and a hint if the values come from a single sample."""
    yield from plan.failures
    if not (plan.patches.nodes or plan.patches.not_ready or plan.patches.unmeasured):
        yield "no node: found none in the cluster, expected at least one"
    if one_sample and any(node.desired.get(keys.MEAN_FREE_CPU) for node in plan.patches.nodes):
        yield (
            "one sample has a mean and no deviation: let `nodewise annotate` run, without --once, or give"
            " --prometheus-url"
        )


def _annotation_table_cells(annotations: Mapping[str, str | None]) -> Iterator[str]:
    for _, key, deviation in _COLUMNS:
        value = _format_statistic(key, annotations.get(key))
        spread = _format_statistic(deviation, annotations.get(deviation)) if deviation else "-"
        yield f"{value} ±{spread}" if spread != "-" else value


def _format_statistic(key: str, text: str | None) -> str:
    """`1.25` cores, `3200 Mi`, a count."""
    number = keys.number(text)
    if isnan(number):
        return "-"
    if key.endswith("cpu"):
        return f"{number / 1000:.3g}"
    return f"{number / _MIB:.0f} Mi" if key.endswith("memory") else f"{number:.0f}"


def _format_patch(plan: NodePlan) -> str:
    count = sum(key != ANNOTATED_AT for key in plan.patch)
    if count:
        return f"{count} annotations" if count > 1 else "1 annotation"
    return "the time" if plan.patch else "nothing"
