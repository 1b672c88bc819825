"""Comparison of the state in memory with a fresh list during changes."""

import types
from typing import Any

import pytest

from nodewise.agents.gpu import controller, gpu_arrays
from nodewise.agents.gpu import state as states
from nodewise.agents.gpu.controller import ObservedChanges
from nodewise.agents.gpu.state import GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.base import cooperative_scheduling
from nodewise.kube.store import Change
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    cluster_state,
    entry,
    lease,
    node,
    pod,
)

NODES = {"n1": node(), "n2": node()}
PODS = [pod("a", "n1", "card0"), pod("b", "n2", "card1")]
LEDGER = lease("n1", uid_c=entry("c", "card1"))
C = pod("c", "n1")


def different(
    ours: GpuState, fresh: GpuState, changes: ObservedChanges | None = None, stored: Any = None
) -> dict[str, str]:
    def text(name: str) -> str:
        return stored if stored is not None else (ours.nodes[name].record_text if name in ours.nodes else "")

    differences = cooperative_scheduling.run_without_pauses(
        controller.differences(ours, fresh, changes or ObservedChanges(set(), set()), text)
    )
    return dict(differences)


def of(*pods: Any, leases: Any = (LEDGER,), nodes: Any = NODES, version: str = "10") -> GpuState:
    return agent_state(cluster_state(nodes, pods, leases, version))


def test_equal_objects_are_no_difference() -> None:
    assert different(of(*PODS, C), of(C, *reversed(PODS), version="11")) == {}


@pytest.mark.parametrize(
    ("ours", "fresh", "what"),
    [
        (of(*PODS, C), of(PODS[1], C), "the allocations of pods differ: d/a"),
        (of(PODS[1], C), of(*PODS, C), "the allocations of pods differ: d/a"),
        (of(*PODS, C), of(*PODS, C, leases=[]), "its allocation record differs"),
        (
            of(*PODS, C),
            of(*PODS, C, nodes={**NODES, "n1": node("i915=2")}),
            "its GPUs or their properties differ: ",
        ),
        (of(*PODS, C), of(PODS[1], leases=[], nodes={"n2": node()}), "its GPUs are not in the list"),
        (of(PODS[1], leases=[], nodes={"n2": node()}), of(*PODS, C), "its GPUs are not in memory"),
    ],
    ids=["a pod that is gone", "a pod not heard of", "ledger", "cards", "node gone", "node not heard of"],
)
def test_missed_changes_are_differences(ours: GpuState, fresh: GpuState, what: str) -> None:
    [(name, difference)] = different(ours, fresh).items()
    assert name == "n1"
    assert difference.startswith(what)


@pytest.mark.parametrize(
    "changes",
    [ObservedChanges({"n1"}, set()), ObservedChanges(set(), {("d", "c")})],
    ids=["its node, its ledger or a pod on it", "a pod that its ledger names"],
)
def test_a_node_with_news_in_flight_is_left_to_the_next_time(changes: ObservedChanges) -> None:
    assert different(of(*PODS, C), of(PODS[1], C), changes) == {}


def test_a_claim_that_is_being_written_is_none() -> None:
    """The state contains the reservation before the allocation record does."""
    state = GpuStateBuilder(INTEL)
    known = agent_state(cluster_state(NODES, [*PODS, C], [LEDGER]), state)
    claimed = state.apply_allocation_record(
        known, "n1", lease("n1", uid_c=entry("c", "card1"), uid_d=entry("d", "card0"))
    )
    assert different(claimed, known, stored=known.nodes["n1"].record_text) == {}


def test_an_array_that_was_not_brought_up_to_date_is_found() -> None:
    ours = of(*PODS, C)
    empty = gpu_arrays.replace_node_in_layout(
        ours.layout, ours.rows["n1"], ours.nodes["n1"].gpus, states.node_allocations.EMPTY
    )
    differences = different(ours._replace(layout=empty), of(*PODS, C))
    assert differences == {"n1": "the free amounts of its GPUs or its CPU are out of date"}


def test_watch_events_note_nodes_records_and_pods() -> None:
    observed = ObservedChanges(set(), set())
    named = types.SimpleNamespace(metadata=types.SimpleNamespace(name="n1"))
    observed.note("nodes", {("", "n1"): Change(named, None)})
    observed.note("ledgers", {("n", "gpu-n2"): Change(None, lease("n2"))})
    observed.note("pods", {("d", "p"): Change(pod("p", ""), pod("p", "n3"))})
    observed.note("pods", None)
    assert observed == ObservedChanges({"n1", "n2", "n3", ""}, {("d", "p")})
