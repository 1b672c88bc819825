"""Plans the patches of nodes and writes them in one burst: only annotations that changed enough are written.

Each patch of a node makes kube-scheduler retry every unschedulable pod. The annotations are those of the usage, and of
the requests of the pods on each node and what they leave of the node's allocatable resources.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base import quantity
from nodewise.base.clock import format_duration, format_rfc3339
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Unavailable
from nodewise.base.quantity import MAX_AMOUNT
from nodewise.kube import pod_requests
from nodewise.kube.api_server_interface import Api, NotFound, run_api_calls
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus
from nodewise.kube.resource_kinds import NODES
from nodewise.kube.struct_type_merge import merge
from nodewise_scorers.annotator import GPU, AnnotatorConfig
from nodewise_scorers.annotator.node_usage import REQUIRED_KEYS, NodeUsage, usage_annotations
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import (
    ANNOTATED_AT,
    FREE_KEYS,
    REQUESTED_KEYS,
    USAGE_KEYS,
    Capacity,
    UsageAnnotations,
)

ALLOCATABLE_MEMORY: Final = "allocatable_memory"
REQUESTED_MEMORY: Final = "reqested_memory"
"""Only people read these two; spelled as the older annotator did."""
MIN_CHANGE_SHARE: Final = 0.02
"""A number that differs from the current one by no more than this share of it is not written."""
FIELD_MANAGER: Final = "nodewise-annotator"
QPS: Final = 1000.0
BURST: Final = 10_000
"""Rate limit of the API client that writes. The number of concurrent calls (`run_api_calls`) limits a
burst instead: one that is spread over minutes makes kube-scheduler retry unschedulable pods all the time.
"""
_MAX_CLOCK_SKEW_S: Final = 60.0  # how far another writer's clock may be ahead

CurrentAnnotations = Mapping[str, str]
AnnotationPatch = Mapping[str, str | None]
"""None deletes an annotation."""


class WrittenAnnotations(UsageAnnotations, frozen=True, gc=False, rename="kebab"):
    """All annotations that the annotator writes."""

    requested_cpu: str | None = None
    requested_memory: str | None = None
    requested_pods: str | None = None
    requested_gpu: str | None = None
    requested_ephemeral_storage: str | None = None
    free_cpu: str | None = None
    free_memory: str | None = None
    free_pods: str | None = None
    free_gpu: str | None = None
    free_ephemeral_storage: str | None = None
    allocatable_memory: str | None = msgspec.field(default=None, name=ALLOCATABLE_MEMORY)
    reqested_memory: str | None = msgspec.field(default=None, name=REQUESTED_MEMORY)


_FIELDS: Final = {field.encode_name: field.name for field in msgspec.structs.fields(WrittenAnnotations)}


class AnnotatedNodeMetadata(msgspec.Struct, frozen=True, gc=False):
    annotations: WrittenAnnotations | None = None


class NodeCondition(msgspec.Struct, frozen=True, gc=False):
    type: Any = ""
    status: Any = ""


class AnnotatedNodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw = msgspec.Raw(b"null")
    conditions: tuple[NodeCondition, ...] | None = None


class AnnotatedNode(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node besides its name and uid."""

    metadata: AnnotatedNodeMetadata = AnnotatedNodeMetadata()
    status: AnnotatedNodeStatus = AnnotatedNodeStatus()


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that tell its requests and its node."""

    spec: HoldingSpec = HoldingSpec()
    status: HoldingStatus = HoldingStatus()


POD: Final[Any] = merge("Pod", BoundPod)
"""The type of pods in a store."""


def is_node_ready(node: Any) -> bool:
    """Whether the node's condition Ready is true."""
    return any(
        condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions or ()
    )


def current_annotations(node: Any) -> Mapping[str, str]:
    """The node's annotations among those that the annotator writes."""
    written = node.metadata.annotations
    if written is None:
        return {}
    texts = ((key, getattr(written, field)) for key, field in _FIELDS.items())
    return {key: text for key, text in texts if text is not None}


class Allocation(NamedTuple):
    """The sum of the requests of a node's pods, in whole numbers."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    ephemeral_storage_bytes: int = 0


def make_pod_reducer(gpu: str = GPU) -> Callable[[Any], Any | None]:
    """Return a function that reduces a bound pod to its node and one container with the sum of its requests."""

    def reduce(pod: Any) -> Any | None:
        holds = pod_requests.holds_requests(pod)
        return pod_requests.reduce_to_requests(pod, _resources(gpu)) if holds else None

    return reduce


def _resources(gpu: str) -> tuple[str, ...]:
    """The resources of an allocation, in the order of `Allocation` without the number of pods."""
    return "cpu", "memory", gpu, "ephemeral-storage"


def pod_allocation(pod: Any, gpu: str = GPU) -> Allocation:
    """The requests of a pod on a node.

    CPU is rounded down to whole milli-CPU, as the older annotator does; other resources are rounded up to whole units.
    """
    cpu, *others = pod_requests.nano_requests(pod.spec, _resources(gpu), pod.status)
    memory, devices, storage = map(quantity.whole_units, others)
    return Allocation(min(cpu * 1000 // quantity.NANO, MAX_AMOUNT), memory, 1, devices, storage)


def allocation_by_node(pods: Iterable[Any], gpu: str = GPU) -> Generator[None, None, dict[str, Allocation]]:
    """The allocation of each node by name; yields between pods. `gpu` is the name of the resource counted as GPU."""
    allocations: dict[str, Allocation] = {}
    empty = Allocation()
    for pod in pods:
        if pod_requests.holds_requests(pod):
            node = pod.spec.nodeName
            amounts = zip(allocations.get(node, empty), pod_allocation(pod, gpu), strict=True)
            allocations[node] = Allocation(*map(sum, amounts))
        yield
    return allocations


def allocation_annotations(allocation: Allocation, capacity: Capacity) -> Mapping[str, str]:
    """The annotations `requested-…` and `free-…` of a node; 0 is free of an overcommitted resource."""
    texts = {}
    for requested_key, free_key, requested, allocatable in zip(
        REQUESTED_KEYS, FREE_KEYS, allocation, capacity, strict=True
    ):
        texts[requested_key] = str(requested)
        texts[free_key] = str(max(allocatable - requested, 0))
    return texts


class NodePlan(NamedTuple):
    """The annotations of one node and the patch to write."""

    name: str
    uid: str
    current: CurrentAnnotations
    desired: AnnotationPatch
    patch: AnnotationPatch
    """The part of `desired` to write, with the time; empty for no change."""


class PatchPlan(NamedTuple):
    nodes: Sequence[NodePlan] = ()
    """Those that are ready."""
    not_ready: tuple[str, ...] = ()
    """They keep their annotations with the old time."""
    unmeasured: tuple[str, ...] = ()
    """Ready nodes of unknown usage."""
    failures: tuple[str, ...] = ()
    """Messages that name a metric and why it could not be measured."""


class NodeMeasurements(NamedTuple):
    """Usage and allocation of all nodes, by name."""

    usage: Mapping[str, NodeUsage] | None
    """None where it is not written."""
    allocation: Mapping[str, Allocation]
    now: float
    keeps_complete: bool = True
    """Whether complete and fresh statistics stay while only a part is known, or samples of less than half a window:
    otherwise one timed-out query would turn a node that varies into one that never does."""


def check_max_age(max_age_s: float, period_s: float) -> None:
    """`BadSettings` for statistics that would expire within two periods."""
    if max_age_s < 2 * period_s:
        expected = f"{format_duration(2 * period_s)} or more, two periods"
        raise BadSettings.of("settings", "--statistics-max-age", format_duration(max_age_s), expected)


def plan_patches(
    nodes: Iterable[Any], measurements: NodeMeasurements, config: AnnotatorConfig, max_age_s: float
) -> Generator[None, None, PatchPlan]:
    """Plan the patches of all nodes; yields between nodes. `max_age_s`: readers treat older statistics as missing."""
    plans: list[NodePlan] = []
    not_ready: list[str] = []
    unmeasured: list[str] = []
    for node in nodes:
        name = node.metadata.name
        if not is_node_ready(node):
            not_ready.append(name)
        else:
            usage = None if measurements.usage is None else measurements.usage.get(name, NodeUsage())
            if usage is not None and not usage.is_known:
                unmeasured.append(name)
            plans.append(_plan_node(node, usage, measurements, config, max_age_s))
        yield
    return PatchPlan(plans, tuple(not_ready), tuple(unmeasured))


def _plan_node(
    node: Any,
    usage: NodeUsage | None,
    measurements: NodeMeasurements,
    config: AnnotatorConfig,
    max_age_s: float,
) -> NodePlan:  # complexity: one case per kind of annotation
    name, now = node.metadata.name, measurements.now
    current = current_annotations(node)
    if usage is not None and not usage.is_complete and measurements.keeps_complete:
        usage = NodeUsage() if has_complete_usage(current, now, max_age_s) else usage
    allocatable = load_annotations.parse_capacity(
        node.status.allocatable, config.options.annotate_gpu_resource
    )
    allocation = measurements.allocation.get(name, Allocation())
    desired: dict[str, str | None] = {}
    informational: dict[str, str] = {}
    if config.allocation:
        desired |= allocation_annotations(allocation, allocatable)
        informational[REQUESTED_MEMORY] = str(allocation.memory_bytes)
    if config.usage:
        informational[ALLOCATABLE_MEMORY] = str(allocatable.memory_bytes)
    if usage is None and any(key in current for key in USAGE_KEYS):
        # the time belongs to the usage statistics, whose writer may have stopped
        patch = changed_annotations(current, desired)
    elif usage is not None and not usage.is_known:
        patch = patch_without_usage(current, desired, now, max_age_s)
    else:
        desired |= usage_annotations(usage, allocatable) if usage is not None else {}
        patch = compute_patch(current, desired, informational, now, max_age_s)
    return NodePlan(name, node.metadata.uid, current, desired, patch)


def has_annotation_changed(current: str | None, desired: str | None) -> bool:
    """Whether to write an annotation: it is absent, not a number, or differs by more than `MIN_CHANGE_SHARE`."""
    if current is None or desired is None:
        return current != desired
    old, new = load_annotations.number(current), load_annotations.number(desired)
    return isnan(old) or not abs(new - old) <= MIN_CHANGE_SHARE * abs(old)


def statistics_age_s(current: CurrentAnnotations, now: float) -> float:
    """The age of a node's statistics; NaN if unknown, for example because their time is in the future."""
    age = now - load_annotations.time(current.get(ANNOTATED_AT))
    return float("nan") if age < -_MAX_CLOCK_SKEW_S else max(age, 0.0)


def has_complete_usage(current: CurrentAnnotations, now: float, max_age_s: float) -> bool:
    """Whether the node has usage statistics with deviations that have not expired."""
    is_expired = statistics_age_s(current, now) >= max_age_s
    return not is_expired and all(key in current for key in REQUIRED_KEYS)


def compute_patch(
    current: CurrentAnnotations,
    desired: AnnotationPatch,
    informational: CurrentAnnotations,
    now: float,
    max_age_s: float,
) -> AnnotationPatch:
    """The annotations of a node to write; empty for no change.

    The patch has the time, which is right for all of `desired`: what is not written again is current. It has
    `informational` annotations only if there are others.
    """
    changed = changed_annotations(current, desired)
    if not changed and statistics_age_s(current, now) < max_age_s / 2:
        return {}
    changed_info = {key: text for key, text in informational.items() if current.get(key) != text}
    return {**changed, **changed_info, ANNOTATED_AT: format_rfc3339(now)}


def changed_annotations(current: CurrentAnnotations, desired: AnnotationPatch) -> AnnotationPatch:
    """The desired annotations that differ, without a time: the current time belongs to usage statistics."""
    return {key: text for key, text in desired.items() if has_annotation_changed(current.get(key), text)}


def patch_without_usage(
    current: CurrentAnnotations, desired: AnnotationPatch, now: float, max_age_s: float
) -> AnnotationPatch:
    """The patch of a node whose usage should be known and is not.

    Current usage statistics keep their time, so nothing is written beside them with a new one. Once they have expired
    they are deleted, and the other annotations are written with their own time.
    """
    deleted = {key: None for key in USAGE_KEYS if key in current}
    if deleted and not statistics_age_s(current, now) >= max_age_s:
        return changed_annotations(current, desired)
    return compute_patch(current, {**deleted, **desired}, {}, now, max_age_s) if desired else {}


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
    done: list[str] = []
    gone: list[str] = []
    errors: list[str] = []

    async def write(plan: NodePlan) -> None:
        # with the uid, so that a new node of the same name is not written
        body = {"metadata": {"uid": plan.uid, "annotations": plan.patch}}
        try:
            await api.patch(NODES.path(name=plan.name), body, "merge", {"fieldManager": FIELD_MANAGER})
            done.append(plan.name)
        except NotFound:
            gone.append(plan.name)
        except NodewiseError as error:
            problems = error.problems if isinstance(error, BadInput) else ()
            if any(problem.field == "metadata.uid" for problem in problems):
                gone.append(plan.name)  # a new node: the API server rejects a change of the uid as immutable
                return
            errors.append(f"node {plan.name}: {error}")
            if isinstance(error, Unavailable):
                raise  # stops the burst: an unavailable API server gets no further requests

    with contextlib.suppress(Unavailable):
        await run_api_calls(write(plan) for plan in due)
    failed = len(due) - len(done) - len(gone)
    return WriteResult(len(done), failed, len(gone), errors[0] if errors else "")
