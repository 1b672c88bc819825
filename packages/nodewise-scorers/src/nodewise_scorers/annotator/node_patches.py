"""Plans the patches of nodes and writes them in one burst: only annotations that changed enough are written.

Each patch of a node makes kube-scheduler retry every unschedulable pod.
"""

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, Final, NamedTuple

from nodewise.base.clock import format_duration, format_rfc3339
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, Unavailable
from nodewise.kube.api_server_interface import Api, NotFound, run_api_calls
from nodewise.kube.resource_kinds import NODES
from nodewise_scorers.annotator import node_requests
from nodewise_scorers.annotator.node_requests import REQUESTED_MEMORY, Allocation, allocation_annotations
from nodewise_scorers.annotator.node_usage import (
    REQUIRED_KEYS,
    USAGE_KEYS,
    NodeUsage,
    informational_annotations,
    usage_annotations,
)
from nodewise_scorers.annotator.options import AnnotatorConfig
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT, Capacity

MIN_CHANGE_SHARE: Final = 0.02
"""A number that differs from the current one by no more than this share of it is not written."""
_MAX_CLOCK_SKEW_S: Final = 60.0
"""How far another writer's clock may be ahead."""

CurrentAnnotations = Mapping[str, str]
AnnotationPatch = Mapping[str, str | None]
"""None deletes an annotation."""


class PatchRules(NamedTuple):
    """When an annotation is written."""

    max_age_s: float
    """Readers treat statistics of this age as missing."""
    min_change_share: float = MIN_CHANGE_SHARE

    @property
    def refresh_s(self) -> float:
        """The age at which the time is written again although no value changed."""
        return self.max_age_s / 2


class NodePlan(NamedTuple):
    """The annotations of one node and the patch to write."""

    name: str
    uid: str
    current: CurrentAnnotations
    desired: AnnotationPatch
    patch: AnnotationPatch
    """The part of `desired` to write, with the time; empty for no change."""


class PatchPlan(NamedTuple):
    """The plans of all nodes."""

    nodes: Sequence[NodePlan] = ()
    """Those that are ready."""
    not_ready: tuple[str, ...] = ()
    """They keep their annotations with the old time."""
    unmeasured: tuple[str, ...] = ()
    """Ready nodes of unknown usage."""


class NodeMeasurements(NamedTuple):
    """Usage and allocation of all nodes, by name."""

    usage: Mapping[str, NodeUsage] | None
    """None where it is not written."""
    allocation: Mapping[str, Allocation]
    now: float
    keeps_complete: bool = True
    """Whether complete and fresh statistics stay while only a part is known, or samples of less than half a window:
    otherwise one timed-out query would turn a node that varies into one that never does."""


def patch_rules(max_age_s: float, period_s: float) -> PatchRules:
    """`BadSettings` for statistics that would expire within two periods."""
    if max_age_s < 2 * period_s:
        expected = f"{format_duration(2 * period_s)} or more, two periods"
        problem = Problem("--statistics-max-age", format_duration(max_age_s), expected)
        raise BadSettings("settings", [problem])
    return PatchRules(max_age_s)


def plan_patches(
    nodes: Iterable[Any], measurements: NodeMeasurements, config: AnnotatorConfig, rules: PatchRules
) -> Generator[None, None, PatchPlan]:
    """Plan the patches of all nodes; yields between nodes."""
    plans: list[NodePlan] = []
    not_ready: list[str] = []
    unmeasured: list[str] = []
    for node in nodes:
        name = node.metadata.name
        if not node_requests.is_node_ready(node):
            not_ready.append(name)
        else:
            usage = None if measurements.usage is None else measurements.usage.get(name, NodeUsage())
            if usage is not None and not usage.is_known:
                unmeasured.append(name)
            usage = _usage_to_write(node, usage, measurements, rules)
            plans.append(_plan_node(node, usage, measurements, config, rules))
        yield
    return PatchPlan(plans, tuple(not_ready), tuple(unmeasured))


def _usage_to_write(
    node: Any, usage: NodeUsage | None, measurements: NodeMeasurements, rules: PatchRules
) -> NodeUsage | None:
    """The measured usage, or unknown usage where the current annotations are better."""
    if usage is None or usage.is_complete or not measurements.keeps_complete:
        return usage
    is_kept = has_complete_usage(node_requests.current_annotations(node), measurements.now, rules)
    return NodeUsage() if is_kept else usage


def _plan_node(
    node: Any,
    usage: NodeUsage | None,
    measurements: NodeMeasurements,
    config: AnnotatorConfig,
    rules: PatchRules,
) -> NodePlan:
    name, now = node.metadata.name, measurements.now
    current = node_requests.current_annotations(node)
    allocatable = load_annotations.parse_capacity(node.status.allocatable, config.gpu)
    allocation = measurements.allocation.get(name, Allocation())
    desired: dict[str, str | None] = {}
    if config.allocation:
        desired |= allocation_annotations(allocation, allocatable)
    if usage is None and any(key in current for key in USAGE_KEYS):
        # the time belongs to the usage statistics, whose writer may have stopped
        patch = changed_annotations(current, desired, rules)
    elif usage is not None and not usage.is_known:
        patch = patch_without_usage(current, desired, now, rules)
    else:
        desired |= usage_annotations(usage, allocatable) if usage is not None else {}
        informational = _informational_annotations(allocation, allocatable, config)
        patch = compute_patch(current, desired, informational, now, rules)
    return NodePlan(name, node.metadata.uid, current, desired, patch)


def _informational_annotations(
    allocation: Allocation, allocatable: Capacity, config: AnnotatorConfig
) -> CurrentAnnotations:
    requested = {REQUESTED_MEMORY: str(allocation.memory_bytes)} if config.allocation else {}
    return requested | dict(informational_annotations(allocatable)) if config.usage else requested


def has_annotation_changed(current: str | None, desired: str | None, share: float = MIN_CHANGE_SHARE) -> bool:
    """Whether to write an annotation: it is absent, not a number, or differs by more than the share of it."""
    if current is None or desired is None:
        return current != desired
    old, new = load_annotations.number(current), load_annotations.number(desired)
    return isnan(old) or not abs(new - old) <= share * abs(old)


def statistics_age_s(current: CurrentAnnotations, now: float) -> float:
    """The age of a node's statistics; NaN if unknown, for example because their time is in the future."""
    age = now - load_annotations.time(current.get(ANNOTATED_AT))
    return float("nan") if age < -_MAX_CLOCK_SKEW_S else max(age, 0.0)


def has_complete_usage(current: CurrentAnnotations, now: float, rules: PatchRules) -> bool:
    """Whether the node has usage statistics with deviations that have not expired."""
    return (
        all(key in current for key in REQUIRED_KEYS) and not statistics_age_s(current, now) >= rules.max_age_s
    )


def compute_patch(
    current: CurrentAnnotations,
    desired: AnnotationPatch,
    informational: CurrentAnnotations,
    now: float,
    rules: PatchRules,
) -> AnnotationPatch:
    """The annotations of a node to write; empty for no change.

    The patch has the time, which is right for all of `desired`: what is not written again is current. It has
    `informational` annotations only if there are others.
    """
    changed = changed_annotations(current, desired, rules)
    age = statistics_age_s(current, now)
    if not changed and age < rules.refresh_s:
        return {}
    changed_info = {key: text for key, text in informational.items() if current.get(key) != text}
    return {**changed, **changed_info, ANNOTATED_AT: format_rfc3339(now)}


def changed_annotations(
    current: CurrentAnnotations, desired: AnnotationPatch, rules: PatchRules
) -> AnnotationPatch:
    """The desired annotations that differ, without a time: the current time belongs to usage statistics."""
    return {
        key: text
        for key, text in desired.items()
        if has_annotation_changed(current.get(key), text, rules.min_change_share)
    }


def patch_without_usage(
    current: CurrentAnnotations, desired: AnnotationPatch, now: float, rules: PatchRules
) -> AnnotationPatch:
    """The patch of a node whose usage should be known and is not.

    Current usage statistics keep their time, so nothing is written beside them with a new one. Once they have expired
    they are deleted, and the other annotations are written with their own time.
    """
    deleted = {key: None for key in USAGE_KEYS if key in current}
    if deleted and not statistics_age_s(current, now) >= rules.max_age_s:
        return changed_annotations(current, desired, rules)
    return compute_patch(current, {**deleted, **desired}, {}, now, rules) if desired else {}


FIELD_MANAGER: Final = "nodewise-annotator"
QPS: Final = 1000.0
BURST: Final = 10_000
"""Rate limit of the API client that writes. The number of concurrent calls (`run_api_calls`) limits a
burst instead: one that is spread over minutes makes kube-scheduler retry unschedulable pods all the time.
"""


class WriteResult(NamedTuple):
    """Numbers of nodes of a burst."""

    done: int = 0
    failed: int = 0
    gone: int = 0
    """Deleted or recreated since they were read."""
    error: str = ""
    """The first one."""


async def write_patches(api: Api, plans: Iterable[NodePlan]) -> WriteResult:
    """Write the patches, a few nodes at a time; a failure does not stop the others."""
    due = [plan for plan in plans if plan.patch]
    outcomes: list[str] = []
    errors: list[str] = []

    async def write(plan: NodePlan) -> None:
        try:
            outcomes.append(await _write_patch(api, plan))
        except NodewiseError as error:
            errors.append(f"node {plan.name}: {error}")
            if isinstance(error, Unavailable):
                raise  # stops the burst: an unavailable API server gets no further requests

    with contextlib.suppress(Unavailable):
        await run_api_calls(write(plan) for plan in due)
    done, gone = outcomes.count("done"), outcomes.count("gone")
    return WriteResult(done, len(due) - done - gone, gone, errors[0] if errors else "")


async def _write_patch(api: Api, plan: NodePlan) -> str:
    # with the uid, so that a new node of the same name is not written
    body = {"metadata": {"uid": plan.uid, "annotations": plan.patch}}
    try:
        await api.patch(NODES.path(name=plan.name), body, "merge", {"fieldManager": FIELD_MANAGER})
    except NotFound:
        return "gone"
    except BadInput as error:
        if any(problem.field == "metadata.uid" for problem in error.problems):
            return "gone"  # a new node: the API server rejects a change of the uid as immutable
        raise
    return "done"
