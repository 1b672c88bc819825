"""The kubelet's checkpoints, and their conflicts with the pools."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadInput
from nodewise_cpu import pool_allocations
from nodewise_cpu.node import other_cpu_managers
from nodewise_cpu.node.other_cpu_managers import KubeletAllocation, KubeletState

POOLS = pool_allocations.allocations_without_tasks(
    {"exclusive": {0: ["2,6", "3,7"]}, "shared": {0: ["1,5"]}, "infra": {0: ["0", "4"]}}
)
UID = "c26b9e2e-0b7b-4d61-9c2e-6a1f5e0a3c11"


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def checkpoint(**fields: Any) -> str:
    return json.dumps({"policyName": "static", "defaultCpuSet": "", "checksum": 1} | fields)


def test_the_policy_none_gives_nothing_away_and_is_at_odds_with_nothing() -> None:
    state = other_cpu_managers.parse_checkpoints(
        '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    )
    assert state == KubeletState("none")
    assert other_cpu_managers.kubelet_conflicts(state, POOLS) == []


@pytest.mark.parametrize(
    ("content", "allocation"),
    [
        ({"entries": {"4fa1": "2-3"}}, KubeletAllocation("", "4fa1", cpus(2, 3))),
        ({"entries": {UID: {"main": "2-3"}}}, KubeletAllocation(UID, "main", cpus(2, 3))),
        ({"podEntries": {UID: {"cpuSet": "2-3"}}}, KubeletAllocation(UID, "", cpus(2, 3))),
        ({"data": checkpoint(podEntries={UID: {"cpuSet": "2-3"}})}, KubeletAllocation(UID, "", cpus(2, 3))),
        ({"data": ""} | {"entries": {UID: {"main": "2-3"}}}, KubeletAllocation(UID, "main", cpus(2, 3))),
    ],
    ids=["version 1", "version 2", "version 3", "version 4", "version 2 with empty data"],
)  # fmt: skip
def test_allocations_of_the_kubelet_in_all_versions(content: Any, allocation: KubeletAllocation) -> None:
    assert other_cpu_managers.parse_checkpoints(checkpoint(**content)).allocations == (allocation,)


# written by pkg/kubelet/cm/cpumanager/state of Kubernetes 1.37.2, with the features PodLevelResourceManagers and
# InPlacePodVerticalScalingExclusiveCPUs: the fields beside `data` are a copy without pod-level CPUs
VERSION_4_DATA = {
    "policyName": "static",
    "defaultCpuSet": "0-1,4-5",
    "entries": {UID: {"main": "8-9"}},
    "podEntries": {"pod-with-its-own-cpus": {"cpuSet": "3,7"}},
    "baselines": {UID: {"main": {"baseline": "8"}}},
}
VERSION_4 = {
    "policyName": "static",
    "defaultCpuSet": "0-1,4-5",
    "entries": {UID: {"main": "8-9"}},
    "checksum": 1223485201,
    "data": json.dumps(VERSION_4_DATA),
    "dataChecksum": 3644405060,
}


def test_pod_level_cpus_of_version_4_conflict_with_pools() -> None:
    state = other_cpu_managers.parse_checkpoints(json.dumps(VERSION_4))
    assert state.allocations == (
        KubeletAllocation(UID, "main", cpus(8, 9)),
        KubeletAllocation("pod-with-its-own-cpus", "", cpus(3, 7)),
    )
    (problem,) = other_cpu_managers.kubelet_conflicts(state, POOLS)
    assert str(problem) == (
        "pod pod-with-its-own-cpus has CPUs 3,7: CPUs 3,7 are in the node's pools; expected others"
    )


def test_data_of_version_4_takes_precedence_over_the_fields_for_older_kubelets() -> None:
    older = VERSION_4 | {"policyName": "none", "defaultCpuSet": "", "entries": {"other": {"c": "2"}}}
    assert other_cpu_managers.parse_checkpoints(json.dumps(older)) == other_cpu_managers.parse_checkpoints(
        json.dumps(VERSION_4)
    )


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (VERSION_4 | {"dataV5": "{}", "shards": []}, "dataV5, shards"),
        (VERSION_4 | {"data": json.dumps(VERSION_4_DATA | {"groupEntries": {}})}, "data.groupEntries"),
        ({"policyName": "none", "defaultCpuSet": "", "claims": {}}, "claims"),
    ],
)
def test_checkpoint_of_an_unknown_version_is_named_with_its_fields(content: Any, fields: str) -> None:
    state = other_cpu_managers.parse_checkpoints(json.dumps(content))
    problem = other_cpu_managers.kubelet_conflicts(state, POOLS)[0]
    assert problem.found.startswith(f"an unknown version with {fields}:")
    assert problem.expected == "the fields of version 1 to 4 (Kubernetes 1.38 and older)"


def test_containers_that_it_gave_cpus_of_pools_are_named() -> None:
    state = other_cpu_managers.parse_checkpoints(checkpoint(entries={UID: {"main": "2-3", "side": "9"}}))
    (problem,) = other_cpu_managers.kubelet_conflicts(state, POOLS)
    assert (
        str(problem)
        == f"container main of pod {UID} has CPUs 2-3: CPUs 2-3 are in the node's pools; expected others"
    )


def test_exclusive_cpus_that_it_leaves_to_all_are_named_with_what_helps() -> None:
    (problem,) = other_cpu_managers.kubelet_conflicts(
        other_cpu_managers.parse_checkpoints(checkpoint(defaultCpuSet="0-2,4-7")), POOLS
    )
    assert "CPUs 2,6-7 of exclusive pools are open to all containers" in str(problem)
    assert "strict-cpu-reservation" in problem.expected
    assert (
        other_cpu_managers.kubelet_conflicts(
            other_cpu_managers.parse_checkpoints(checkpoint(defaultCpuSet="0-1,4-5")), POOLS
        )
        == []
    )


def test_a_memory_manager_that_sets_nodes_is_named() -> None:
    memory = '{"policyName":"Static","machineState":{},"checksum":1}'
    (problem,) = other_cpu_managers.kubelet_conflicts(
        other_cpu_managers.parse_checkpoints(checkpoint(), memory), POOLS
    )
    assert "memoryManagerPolicy Static" in problem.field


def test_features_of_the_kubelet_that_replace_pools() -> None:
    alternatives = other_cpu_managers.describe_kubelet_alternatives(POOLS)
    assert list(alternatives) == ["exclusive", "shared", "infra"]
    assert "full-pcpus-only" in alternatives["exclusive"]
    assert "strict-cpu-reservation" in alternatives["infra"]
    assert other_cpu_managers.describe_kubelet_alternatives(
        pool_allocations.allocations_without_tasks({"exclusive-non-isolcpus": {0: ["1"]}})
    ) == {"exclusive-non-isolcpus": alternatives["exclusive"]}


def test_the_state_is_read_from_the_kubelets_folder(tmp_path: Path) -> None:
    assert other_cpu_managers.read_kubelet_state(tmp_path) is None
    (tmp_path / other_cpu_managers.CPU_STATE).write_text(checkpoint(defaultCpuSet="0-3"))
    assert other_cpu_managers.read_kubelet_state(tmp_path) == KubeletState("static", cpus(0, 1, 2, 3))
    (tmp_path / other_cpu_managers.MEMORY_STATE).write_text('{"policyName":"None"}')
    assert other_cpu_managers.read_kubelet_state(tmp_path) == KubeletState("static", cpus(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "cpu_manager_state"),
        ("[]", "cpu_manager_state"),
        ('{"defaultCpuSet": "0"}', "policyName"),
        ('{"policyName": ["static"]}', "policyName"),
        (checkpoint(defaultCpuSet=3), "defaultCpuSet"),
        (checkpoint(defaultCpuSet="3-"), "defaultCpuSet"),
        (checkpoint(entries=[]), "entries"),
        (checkpoint(entries={"a": {"b": None}}), "entries.a.b"),
        (checkpoint(podEntries={"a": "1"}), "podEntries.a"),
        (checkpoint(data={"policyName": "static"}), "cpu_manager_state: data"),
        (checkpoint(data='{"policyName"'), "cpu_manager_state: data"),
        (checkpoint(data=checkpoint(podEntries={"a": {"cpuSet": "9-8"}})), "podEntries.a.cpuSet"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_named(text: str, field: str) -> None:
    with pytest.raises(BadInput) as raised:
        other_cpu_managers.parse_checkpoints(text)
    assert field in raised.value.problems[0].field
