"""Cluster states as delta entries, and their reconstruction."""

from collections.abc import Sequence
from typing import Any

import msgspec

from nodewise.agent import ClusterState
from nodewise.agent.bind_plugin_interface import AllocationRecordLease
from nodewise.agent.state import NODES
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, PODS
from nodewise.engine import recording_file
from nodewise.engine.recording_file import ClusterStateRebuilder
from nodewise.kube.struct_type_merge import merge
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    charged_amounts,
    cluster_state,
    entry,
    laid_out,
    lease,
    node,
    pod,
)
from tests.unit.incremental_agent_states import changed


def rebuild(cluster_states: Sequence[ClusterState]) -> list[ClusterState]:
    """The cluster states, rebuilt from their delta entries."""
    making = ClusterStateRebuilder(
        {PODS: AllocatedPod, ALLOCATION_RECORDS: AllocationRecordLease, NODES: merge("Node", GpuNode)}
    )
    made: list[Any] = []
    for number, (old, new) in enumerate(
        zip([recording_file.EMPTY, *cluster_states[:-1]], cluster_states, strict=True), 1
    ):
        records = [
            record
            for record in recording_file.delta_entries(old, changed(old, new), number)
            if record is not None
        ]
        made += [state for record in records if (state := making.apply(record)) is not None]
    return made


def test_nodes_pods_and_versions_are_recorded() -> None:
    first = {"n1": named("n1"), "n2": named("n2")}
    cluster_states = [
        cluster_state(first, [pod("a", "n1", "card0")], [lease("n1", uid_b=entry("b", "card1", "11"))], "10"),
        cluster_state({**first, "n2": named("n2", "0.1.2")}, [pod("a", "n1", "card0")], [], "12"),
        cluster_state({"n2": named("n2", "0.1.2")}, [pod("c", "n2", "card2")], [], "13"),
    ]
    for actual, wanted in zip(rebuild(cluster_states), cluster_states, strict=True):
        assert list(actual.node_objects) == list(wanted.node_objects)
        assert actual.objects == wanted.objects
        assert actual.versions == wanted.versions
        actual_state, other = agent_state(actual), agent_state(wanted)
        assert laid_out(actual_state) == laid_out(other)
        assert {name: charged_amounts(actual_state, name) for name in actual_state.nodes} == {
            name: charged_amounts(other, name) for name in other.nodes
        }


def test_unchanged_parts_stay_the_same_objects() -> None:
    state = cluster_state({"n1": named("n1")}, [pod("a", "n1", "card0")])
    first, second = rebuild([state, state])
    assert second.objects[PODS] is first.objects[PODS]
    assert second.node_objects is first.node_objects


def named(name: str, numbers: str = "0.1") -> Any:
    """A node in the form in which the extender stores it, with its name."""
    bare = node(numbers=numbers)
    metadata = {"name": name, "labels": bare.metadata.labels}
    raw = msgspec.json.encode({"metadata": metadata, "status": bare.status})
    return msgspec.json.decode(raw, type=merge("Node", GpuNode))
