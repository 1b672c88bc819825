"""Limits of pods and allocation records: bind accepts what filter accepts, at a limit and one beyond it."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import Snapshot
from nodewise.agent.bind_plugin_interface import (
    RESERVATIONS_ANNOTATION,
    AllocationRecordLease,
    BindPlan,
    Refusal,
)
from nodewise.agents.gpu import allocation_record, gpu_rejection_reasons, pod_gpu_requests
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.state import GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from tests.unit.agents.gpu.gpu_cluster_state_builders import lease_of, node
from tests.unit.agents.gpu.test_agent import NOW, agent, new, snapshot, texts

FULL = gpu_rejection_reasons.RecordFull().text()
ASKED = new("p", "i915=1")


def record_space(gpu_pod: AllocatedPod = ASKED) -> int:
    return allocation_record.max_record_bytes(
        pod_gpu_requests.parse_demand(gpu_pod, INTEL, agent()._options).containers, INTEL.subdevices
    )


def filled(size: int, on: str = "n1") -> AllocationRecordLease:
    """An allocation record of this size, with an entry of a newer version."""
    text = '{"other":{"newer":""}}'
    return lease_of(on, text.replace('""', f'"{"x" * (size - len(text))}"'))


def bind(gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, on: str = "n1") -> BindPlan | Refusal | None:
    return agent().bind(gpu_pod, on, cluster_snapshot, NOW)


@pytest.mark.parametrize(("more", "why"), [(0, ""), (1, FULL)], ids=["at the limit", "beyond it"])
def test_filter_score_and_bind_go_by_the_same_room_in_a_ledger(more: int, why: str) -> None:
    cluster_snapshot = snapshot(allocation_record=[filled(record_space() + more)])
    assert texts(ASKED, cluster_snapshot, "n1 n2") == [why, ""]
    assert isinstance(bind(ASKED, cluster_snapshot), Refusal if why else BindPlan)
    assert isinstance(bind(ASKED, cluster_snapshot, "n2"), BindPlan)


def test_the_reason_names_the_limits() -> None:
    assert "at most 258048 bytes" in FULL
    assert "249 characters" in FULL


@pytest.mark.parametrize(("longer", "why"), [(0, ""), (1, FULL)], ids=["at the limit", "beyond it"])
def test_a_nodes_name_is_the_ledgers_too(longer: int, why: str) -> None:
    name = "n" * (allocation_record.LONGEST_NODE + longer)
    cluster_snapshot = snapshot(nodes={name: node()})
    assert texts(ASKED, cluster_snapshot, name) == [why]
    assert isinstance(bind(ASKED, cluster_snapshot, name), Refusal if why else BindPlan)


def test_the_ledger_of_a_bind_that_is_being_written_counts() -> None:
    state_view = snapshot()
    agent_state = GpuStateBuilder(INTEL).apply_allocation_record(
        state_view.agent_states["gpu"], "n1", filled(record_space() + 1)
    )
    cluster_snapshot = Snapshot(state_view.nodes, {"gpu": agent_state}, NOW)
    assert texts(ASKED, cluster_snapshot, "n1") == [FULL]


def test_preempt_counts_on_the_entries_of_victims() -> None:
    victim = new("v", "i915=1")
    text = '{"uid-v":{"pod":"d/v","cards":"card0","seen":"5","charged":[{}],"more":""}}'
    text = text.replace('"more":""', f'"more":"{"x" * (record_space() + 1 - len(text))}"')
    assert len(text) == record_space() + 1
    cluster_snapshot = snapshot([victim], [lease_of("n1", text)])
    names = cluster_snapshot.nodes.named(["n1"])
    for victims, is_rejected in ((frozenset(), True), (frozenset({"uid-v"}), False)):
        verdict = agent().preempt(ASKED, names, cluster_snapshot, {"n1": victims})
        assert verdict is not None
        assert bool(verdict.codes[0]) is is_rejected


ASKING = {
    "one card": ("i915=1",),
    "tiles of each": ("i915=2 t=8", "i915=1 t=4", ""),
    "many containers": ("i915=1",) * 20 + ("",) * 44,
    "all kinds": (f"i915=2 mc=2000 mem={2**56} t=8", "i915=2 t=2"),
}


@pytest.mark.parametrize("requests", ASKING.values(), ids=ASKING)
def test_an_entry_is_no_longer_than_filter_expects(requests: tuple[str, ...]) -> None:
    gpu_pod = new("p" * 253, *requests)
    names = {"namespace": "d" * 63, "uid": "u" * 64, "resourceVersion": "9" * 40}
    gpu_pod = msgspec.structs.replace(gpu_pod, metadata=msgspec.structs.replace(gpu_pod.metadata, **names))
    amounts = f"i915=128 mc=64000 mem={2**62} t=256"
    cluster_snapshot = snapshot(nodes={"n1": node(amounts, ".".join(map(str, range(64))))})
    bind_plan: Any = bind(gpu_pod, cluster_snapshot)
    assert isinstance(bind_plan, BindPlan), bind_plan
    containers = pod_gpu_requests.parse_demand(gpu_pod, INTEL, agent()._options).containers
    written = msgspec.json.encode({gpu_pod.metadata.uid: bind_plan.reservation})
    assert len(written) <= allocation_record.max_reservation_bytes(containers, INTEL.subdevices)
    added = sum(len(key) + len(value) for key, value in bind_plan.annotations.items())
    assert added <= allocation_record.max_annotation_bytes(containers, INTEL.subdevices)


def test_pods_of_many_empty_containers_do_not_fill_a_ledger() -> None:
    """Nine pods with one GPU and 10,000 empty containers each filled a record with 262 kB, and then every bind
    failed."""
    verdicts = texts(new("evil", "i915=1", *[""] * 10_000), snapshot(), "n1 n2")
    assert all("at most 64" in why for why in verdicts)
    entries = {}
    for number in range(9):
        plan = bind(new(f"evil-{number}", "i915=1", *[""] * 63), snapshot())
        assert isinstance(plan, BindPlan)
        entries[f"uid-{number}"] = plan.reservation
    text = msgspec.json.encode(entries).decode()
    assert len(text) < 9 * 200
    assert allocation_record.parse_lease(lease_of("n1", text)).problem == ""
    assert RESERVATIONS_ANNOTATION in lease_of("n1", text).metadata.annotations
