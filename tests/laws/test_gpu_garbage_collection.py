"""After the leader's garbage collection nothing is left to collect, and no running pod lost its GPUs."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.gpu import allocation_record, controller, node_allocations
from nodewise.agents.gpu.controller import ObservedChanges
from nodewise.agents.gpu.gpu_pod_fields import AllocatedLabels, AllocatedPod
from nodewise.agents.gpu.state import GpuState
from nodewise.base import cooperative_scheduling
from tests.laws.test_incremental_gpu_allocations import NODES, SOME_PODS, SOME_RECORDS, VERSIONS
from tests.unit.agents.gpu.gpu_cluster_state_builders import agent_state, cluster_state, lease, node

HOT = "telemetry.aware.scheduling.hot/gas-"
MARKS = st.dictionaries(
    st.sampled_from(
        [f"{HOT}deschedule-pods-card0", f"{HOT}tile-deschedule-card0_gt0", f"{HOT}disable-card1"]
    ),
    st.sampled_from(["true", "PCI_GROUP"]),
)
MARKED = st.fixed_dictionaries(
    {
        name: MARKS.map(lambda policy_labels: node("i915=4 mc=2000 t=8", "0.1", **policy_labels))
        for name in NODES
    }
)


def told(pod: AllocatedPod, value: str | None) -> AllocatedPod:
    metadata = msgspec.structs.replace(pod.metadata, labels=AllocatedLabels(value))
    return msgspec.structs.replace(pod, metadata=metadata)


LABELLED = st.builds(told, SOME_PODS, st.sampled_from([None, "gpu", "somebody"]))


def by_name(pods: list[AllocatedPod]) -> list[AllocatedPod]:
    return list({pod.metadata.name: pod for pod in pods}.values())


PODS = st.lists(LABELLED, max_size=4).map(by_name)
ALLOCATION_RECORDS = st.lists(SOME_RECORDS, max_size=2).map(
    lambda all_: {record.metadata.name: record for record in all_}.values()
)


@given(MARKED, PODS, ALLOCATION_RECORDS)
def test_labels_that_were_written_leave_nothing_to_write(nodes: Any, pods: Any, leases: Any) -> None:
    def changes(of: list[AllocatedPod]) -> list[controller.LabelChange]:
        return cooperative_scheduling.run_without_pauses(
            controller.label_changes(agent_state(cluster_state(nodes, of, leases)))
        )

    wanted = {change.pod.metadata.uid: change.is_wanted for change in changes(pods)}
    after = [
        told(pod, "gpu" if wanted[pod.metadata.uid] else None) if pod.metadata.uid in wanted else pod
        for pod in pods
    ]
    assert changes(after) == []
    for pod, now in zip(pods, after, strict=True):
        if now is not pod and now.metadata.labels and now.metadata.labels.deschedule:
            assert now.spec.nodeName in nodes
            assert not node_allocations.has_ended(now)


@given(PODS, ALLOCATION_RECORDS, VERSIONS)
def test_removed_allocations_are_not_those_of_pods_on_a_node(pods: Any, leases: Any, version: str) -> None:
    nodes = {name: node() for name in NODES}
    state_inputs = cluster_state(nodes, pods, leases, version)
    state = agent_state(state_inputs)
    unconfirmed = cooperative_scheduling.run_without_pauses(
        controller.unconfirmed_reservations(state, state_inputs.objects["ledgers"])
    )
    gone = {(reservation.node, reservation.uid) for reservation in unconfirmed}
    left = [_without(record, gone) for record in leases]
    after = agent_state(cluster_state(nodes, pods, left, version))
    on_node = {(pod.spec.nodeName, pod.metadata.uid) for pod in pods}
    for name in NODES:
        before = _held(state, name)
        kept = {
            uid: held for uid, held in before.items() if held.source == "ledger" and (name, uid) in on_node
        }
        assert kept.items() <= _held(after, name).items()
        assert not (after.nodes[name].allocations.stale if name in after.nodes else ())
    left_world = cluster_state(nodes, pods, left, version)
    assert (
        cooperative_scheduling.run_without_pauses(
            controller.unconfirmed_reservations(after, left_world.objects["ledgers"])
        )
        == []
    )


@given(MARKED, PODS, ALLOCATION_RECORDS, VERSIONS)
def test_a_fresh_list_of_the_same_differs_nowhere(nodes: Any, pods: Any, leases: Any, version: str) -> None:
    ours = agent_state(cluster_state(nodes, pods, leases, version))
    fresh = agent_state(cluster_state(nodes, reversed(pods), leases, version))
    texts = {name: node_state.record_text for name, node_state in ours.nodes.items()}
    differences = controller.differences(ours, fresh, ObservedChanges(set(), set()), lambda name: texts[name])
    assert cooperative_scheduling.run_without_pauses(differences) == []


def _held(state: GpuState, name: str) -> dict[str, node_allocations.PodAllocation]:
    return dict(state.nodes[name].allocations.by_uid) if name in state.nodes else {}


def _without(record: Any, gone: set[tuple[str, str]]) -> Any:
    name = record.metadata.name.removeprefix("gpu-")
    entries = allocation_record.parse_lease(record).entries
    kept = {uid.replace("-", "_"): entry for uid, entry in entries.items() if (name, uid) not in gone}
    return lease(name, **kept)
