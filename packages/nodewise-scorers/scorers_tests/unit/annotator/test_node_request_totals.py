"""The requests of a node's pods, and the free amounts."""

from typing import Any

import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise_scorers.annotator import node_patches
from nodewise_scorers.annotator.node_patches import Allocation
from nodewise_scorers.statistics import load_annotations
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import node, pod, read_node, read_pods


def written(manifest: dict[str, Any], *pods: dict[str, Any]) -> dict[str, str]:
    """The annotations of a node with these pods, which are the same for stored pods."""
    read, bound = read_node(manifest), read_pods(*pods)
    allocated = run_without_pauses(node_patches.allocation_by_node(bound))
    stored = filter(None, map(node_patches.make_pod_reducer(), bound))
    assert run_without_pauses(node_patches.allocation_by_node(stored)) == allocated
    return dict(
        node_patches.allocation_annotations(
            allocated.get(read.metadata.name, Allocation()),
            load_annotations.parse_capacity(read.status.allocatable),
        )
    )


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_a_pod_that_is_on_a_node_counts_whatever_it_does_there(phase: str) -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, phase=phase))["requested-cpu"] == "1000"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_no_more(phase: str) -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, phase=phase))["requested-pods"] == "0"


def resized(spec_cpu: str, allocated_cpu: str, effective_cpu: str, **status: Any) -> dict[str, Any]:
    manifest = pod("p", "a", {"cpu": spec_cpu})
    manifest["status"] |= status | {
        "containerStatuses": [
            {
                "name": "0",
                "allocatedResources": {"cpu": allocated_cpu},
                "resources": {"requests": {"cpu": effective_cpu}},
            }
        ]
    }
    return manifest


@pytest.mark.parametrize(
    ("manifest", "milli"),
    [
        (resized("1", "4", "4"), "4000"),
        (resized("1", "1", "2500m"), "2500"),
        (resized("3", "1", "1"), "3000"),
        (resized("3", "1", "1", conditions=[{"type": "PodResizePending", "reason": "Deferred"}]), "3000"),
        (resized("3", "1", "1", conditions=[{"type": "PodResizePending", "reason": "Infeasible"}]), "1000"),
    ],
    ids=["allocated", "in effect", "grows", "deferred", "infeasible"],
)
def test_a_pod_that_is_resized_holds_the_largest_sum(manifest: dict[str, Any], milli: str) -> None:
    assert written(node("a", cpu="8"), manifest)["requested-cpu"] == milli


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("1.5Gi", "1610612736"),
        ("1500m", "2"),
        ("128974848", "128974848"),
        (1000, "1000"),
        ("-5Gi", "0"),
        ("much", "0"),
        ("", "0"),
        (None, "0"),
        ("9" * 30, str(2**53)),
    ],
)
def test_amounts_are_whole_numbers_whatever_was_asked_for(amount: object, text: str) -> None:
    assert written(node("a"), pod("p", "a", {"memory": amount}))["requested-memory"] == text


def test_a_node_that_says_nothing_has_nothing_free() -> None:
    bare = node("a")
    bare["status"]["allocatable"] = None
    assert written(bare, pod("p", "a", {"cpu": "1"}))["free-cpu"] == "0"
