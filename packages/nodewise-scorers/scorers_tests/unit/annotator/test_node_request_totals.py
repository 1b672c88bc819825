"""The requests of a node's pods, and the free amounts."""

from typing import Any

import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise_scorers.annotator import node_patches
from nodewise_scorers.annotator.node_patches import Allocation
from nodewise_scorers.statistics import load_annotations
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import node, pod, read_node, read_pods

SIDECAR = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}
INIT = {"name": "i", "resources": {"requests": {"cpu": "3", "memory": "9Gi"}}}


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


def test_requests_count_as_in_the_older_annotator() -> None:
    manifest = node("a", cpu="2", memory="1985744Ki", pods="110", ephemeral_storage="17361141760")
    running = [
        pod("p", "a", {"cpu": "250m", "memory": "100Mi"}, {"cpu": "0.1005", "memory": "1e8"}, {}),
        pod("q", "a", {"cpu": "505m", "memory": "160Mi", "ephemeral-storage": "1Gi"}),
        pod("done", "a", {"cpu": "1"}, phase="Succeeded"),
        pod("waits", "", {"cpu": "1"}, phase="Pending"),
    ]
    assert written(manifest, *running) == {
        "requested-cpu": "855",
        "free-cpu": "1145",
        "requested-memory": "372629760",
        "free-memory": "1660772096",
        "requested-pods": "2",
        "free-pods": "108",
        "requested-gpu": "0",
        "free-gpu": "0",
        "requested-ephemeral-storage": "1073741824",
        "free-ephemeral-storage": "16287399936",
    }


def test_an_overcommitted_resource_has_nothing_free() -> None:
    texts = written(
        node("a", cpu="3920m", memory="7Gi", gpu="2"),
        pod("p", "a", {"cpu": "5", "memory": "1G", "gpu": "1"}),
        pod("q", "a", {"cpu": "100m"}, init=(INIT,)),
    )
    assert (texts["requested-cpu"], texts["free-cpu"]) == ("8000", "0")
    assert (texts["requested-memory"], texts["free-memory"]) == (str(10**9 + 9 * 2**30), "0")
    assert (texts["requested-gpu"], texts["free-gpu"]) == ("1", "1")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_a_pod_that_is_on_a_node_counts_whatever_it_does_there(phase: str) -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, phase=phase))["requested-cpu"] == "1000"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_counts_no_more(phase: str) -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, phase=phase))["requested-pods"] == "0"


def test_a_sidecar_holds_its_requests_as_long_as_its_pod() -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, init=(SIDECAR,)))["requested-cpu"] == "4000"


def test_an_init_container_needs_its_amount_beside_earlier_sidecars() -> None:
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, init=(SIDECAR, INIT)))["requested-cpu"] == "6000"
    assert written(node("a"), pod("p", "a", {"cpu": "1"}, init=(INIT, SIDECAR)))["requested-cpu"] == "4000"


def test_overhead_and_requests_of_the_pod_itself_count() -> None:
    manifest = pod("p", "a", {"cpu": "1", "memory": "1Gi", "gpu": "1"})
    manifest["spec"] |= {
        "resources": {"requests": {"cpu": "2500m"}},
        "overhead": {"cpu": "80m", "memory": "64Mi"},
    }
    texts = written(node("a", gpu="4"), manifest)
    assert (texts["requested-cpu"], texts["requested-gpu"]) == ("2580", "1")
    assert texts["requested-memory"] == str(1088 * 2**20)


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
