"""Other programs that assign CPUs on a node, by their files and ResourceSlices, and their conflicts with pools."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cpu_tests.conformance.case_cpu_topologies import texts
from cpu_tests.unit.node.in_memory_api_client import InMemoryApiClient
from nodewise.base.errors import BadInput, Refused
from nodewise_cpu import pool_allocations, topology
from nodewise_cpu.node import node_report, other_cpu_managers
from nodewise_cpu.node.other_cpu_managers import KubeletAllocation, KubeletState
from nodewise_cpu.topology import Topology

MACHINE = topology.parse(texts("T8"))
"""One socket with eight cores of two threads: core 2 has the CPUs 2 and 10."""
POOLS = pool_allocations.allocations_without_tasks(
    {"exclusive": {0: ["2,10", "3,11"]}, "shared": {0: ["4,12"]}, "infra": {0: ["0,8,1,9,5,13,6,14,7,15"]}}
)


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def conflicts(root: Path) -> list[str]:
    return [str(problem) for problem in other_cpu_managers.conflicts(other_cpu_managers.read(root), POOLS)]


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("AllowedCPUs=2-3 9", cpus(2, 3, 9)),
        (" AllowedCPUs = 1,4-5\n[Service]\nAllowedCPUs=7", cpus(1, 4, 5, 7)),
        ("AllowedCPUs=1\nAllowedCPUs=\nAllowedCPUs=6", cpus(6)),
        ("StartupAllowedCPUs=3", cpus(3)),
        ("#AllowedCPUs=3\nAllowedMemoryNodes=1", cpus()),
        ("AllowedCPUs=all of them\nAllowedCPUs=2", cpus(2)),
    ],
    ids=["white space", "several settings", "reset", "at startup", "comment", "invalid"],
)
def test_allowed_cpus_of_a_unit_are_read_as_by_systemd(lines: str, expected: frozenset[int]) -> None:
    assert other_cpu_managers.parse_allowed_cpus(f"[Slice]\n{lines}\n") == expected


def test_drop_ins_count_in_the_order_of_their_names_and_the_first_folder_wins(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "usr/lib/systemd/system/db.service": "[Service]\nAllowedCPUs=0\n",
            "usr/lib/systemd/system/db.service.d/10-cpus.conf": "[Service]\nAllowedCPUs=5\n",
            "etc/systemd/system/db.service.d/10-cpus.conf": "[Service]\nAllowedCPUs=\nAllowedCPUs=3\n",
            "run/systemd/system.control/db.service.d/50-AllowedCPUs.conf": "[Service]\nAllowedCPUs=11\n",
            "etc/systemd/system/db.service.d/notes.txt": "AllowedCPUs=7",
        },
    )
    assert other_cpu_managers.read_allowed_cpus(root) == {"db.service": {3, 11}}


def test_units_on_cpus_of_pools_are_reported_and_others_are_not(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/systemd/system/backup.service": "[Service]\nAllowedCPUs=2,4\n",
            "etc/systemd/system/web.service": "[Service]\nAllowedCPUs=0-1,8-9\n",
        },
    )
    assert conflicts(root) == [
        (
            "systemd unit backup.service: has CPUs 2,4 of the pools exclusive, shared; expected AllowedCPUs"
            " without them: systemctl edit backup.service"
        )
    ]


def test_cpuset_of_a_running_unit_counts_instead_of_its_file(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/systemd/system/old.service": "[Service]\nAllowedCPUs=2\n",
            "sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n",
            "sys/fs/cgroup/system.slice/cpuset.cpus": "\n",
            "sys/fs/cgroup/system.slice/old.service/cpuset.cpus": "5\n",
            "sys/fs/cgroup/machine.slice/cpuset.cpus": "10-11\n",
        },
    )
    assert other_cpu_managers.read_allowed_cpus(root) == {"old.service": {5}, "machine.slice": {10, 11}}
    assert [line.partition(";")[0] for line in conflicts(root)] == [
        "systemd unit machine.slice: has CPUs 10-11 of the pools exclusive"
    ]


def test_cpusets_of_version_1_that_are_inherited_are_no_limits(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "sys/fs/cgroup/cpuset/cpuset.cpus": "0-15\n",
            "sys/fs/cgroup/cpuset/system.slice/cpuset.cpus": "0-15\n",
            "sys/fs/cgroup/cpuset/system.slice/log.service/cpuset.cpus": "3\n",
        },
    )
    assert other_cpu_managers.read_allowed_cpus(root) == {"log.service": {3}}


@pytest.mark.parametrize("folder", ["kubepods.slice", "kubepods"])
def test_pods_without_cpus_of_the_pools_are_reported_and_their_containers_are_not(
    tmp_path: Path, folder: str
) -> None:
    pod = "kubepods-podc26b9e2e_0b7b_4d61_9c2e_6a1f5e0a3c11.slice"
    root = write(
        tmp_path,
        {
            f"sys/fs/cgroup/{folder}/cpuset.cpus": "0-3,8-15\n",
            f"sys/fs/cgroup/{folder}/{pod}/cpuset.cpus": "2\n",
        },
    )
    assert conflicts(root) == [
        (
            f"systemd unit {folder}: pods may not use CPUs 4 of the pools; expected AllowedCPUs with the CPUs of the"
            " pools, or none"
        )
    ]


@pytest.mark.parametrize("place", ["run/cdi/dra.cpu.json", "var/run/cdi/dra.cpu.json"])
def test_cpus_of_dra_claims_are_reported(tmp_path: Path, place: str) -> None:
    claims = {"7d0f-1": "3,11", "7d0f-2": "5,13", "7d0f-3": "not a list"}
    devices = [
        {"name": f"claim-{uid}", "containerEdits": {"env": [f"DRA_CPUSET_{uid}={text}"]}}
        for uid, text in claims.items()
    ]
    root = write(tmp_path, {place: json.dumps({"kind": "dra.k8s.io/cpu", "devices": devices})})
    assert conflicts(root) == [
        (
            "DRA driver dra.cpu, claim 7d0f-1: has CPUs 3,11 of the pools exclusive; expected its option"
            " --reserved-cpus with the CPUs of the pools"
        )
    ]


def test_registered_dra_driver_without_a_file_of_claims_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"var/lib/kubelet/plugins_registry/dra.cpu-reg.sock": ""})
    assert conflicts(tmp_path)[0].startswith("DRA driver dra.cpu: registered at the kubelet; expected")


@pytest.mark.parametrize("policy", ["balloons", "topology-aware"])
def test_nri_resource_policy_is_reported_by_its_name(tmp_path: Path, policy: str) -> None:
    cache = {"Version": "1", "Pods": {}, "Containers": {}, "PolicyName": policy, "PolicyJSON": {}}
    write(tmp_path, {"var/lib/nri-resource-policy/cache": json.dumps(cache)})
    (line,) = conflicts(tmp_path)
    assert line.startswith(f"NRI resource policy '{policy}': it sets the CPUs of every container")
    assert "cpu.preserve.resource-policy.nri.io" in line


@pytest.mark.parametrize("text", ["", "[]", "{", '"balloons"'])
def test_state_that_cannot_be_read_is_reported(tmp_path: Path, text: str) -> None:
    file = "var/lib/nri-resource-policy/cache"
    write(tmp_path, {file: text})
    (line,) = conflicts(tmp_path)
    assert line.startswith(str(tmp_path / file))


def test_host_without_other_managers_and_node_without_pools_have_no_conflicts(tmp_path: Path) -> None:
    assert conflicts(tmp_path) == []
    write(tmp_path, {"etc/systemd/system/backup.service": "[Service]\nAllowedCPUs=2\n"})
    nothing = pool_allocations.allocations_without_tasks({})
    assert other_cpu_managers.conflicts(other_cpu_managers.read(tmp_path), nothing) == ()


def device(**attributes: Any) -> dict[str, Any]:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        "name": "cpudev",
        "attributes": {f"dra.cpu/{name}": {kinds[type(value)]: value} for name, value in attributes.items()},
    }


def offered(*devices: dict[str, Any], driver: str = "dra.cpu", machine: Topology = MACHINE) -> set[int]:
    slices = [{"spec": {"driver": driver, "nodeName": "n1", "devices": list(devices)}}]
    ours = cpus(2, 3, 4, 10, 11, 12)
    assignments = other_cpu_managers.parse_resource_slices(slices, machine, ours)
    return {cpu for assignment in assignments for cpu in assignment.cpus}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([device(cpuID=3, coreID=3, smtEnabled=True), device(cpuID=11)], {3, 11}),
        ([device(numCPUs=4, cpuIDs="2-3,10-11")], {2, 3, 10, 11}),
        ([device(numCPUs=10, socketID=0)], set()),
        ([device(numCPUs=11, socketID=0)], set(range(16))),
        ([device(numCPUs=16)], set(range(16))),
        ([{"basic": {"attributes": {"dra.cpu/cpuID": {"int": 4}}}}], {4}),
        ([{"name": "nothing"}, {"attributes": None}], set()),
    ],
    ids=["individual", "listed", "all but the pools", "one more", "whole machine", "v1beta1", "empty"],
)
def test_cpus_of_resource_slices(devices: list[dict[str, Any]], expected: set[int]) -> None:
    assert offered(*devices) == expected
    assert offered(*devices, driver="gpu.example.com") == set()


def test_resource_slices_of_the_node_are_read_and_a_missing_right_is_ignored() -> None:
    api = InMemoryApiClient()
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-dra.cpu"},
        "spec": {"driver": "dra.cpu", "nodeName": "n1", "devices": [device(cpuID=12)]},
    }

    class Api(InMemoryApiClient):
        def get(self, path: str, params: Mapping[str, str] = {}) -> Any:
            expected = ("/apis/resource.k8s.io/v1/resourceslices", "spec.driver=dra.cpu,spec.nodeName=n1")
            assert (path, params["fieldSelector"]) == expected
            return {"items": [body]}

    class RefusingApi(InMemoryApiClient):
        def get(self, path: str, params: Mapping[str, str] = {}) -> Any:
            raise Refused("forbidden")

    managers = other_cpu_managers.read_all(Path("/nowhere"), POOLS, MACHINE, Api(), "n1")
    assert [str(problem) for problem in other_cpu_managers.conflicts(managers, POOLS)] == [
        (
            "DRA driver dra.cpu: offers CPUs 12 of the pools shared; expected its option --reserved-cpus with the"
            " CPUs of the pools"
        )
    ]
    for other in (RefusingApi(), api):
        assert other_cpu_managers.fetch_dra_devices(other, "n1", MACHINE, cpus(12)) == ()


def test_lists_with_cpus_in_a_partition_are_reported() -> None:
    machine = topology.parse(texts("T8") | {topology.PARTITION_CPUS: "3,12\n"})
    assert [str(problem) for problem in node_report.find_partition_conflicts(POOLS, machine)] == [
        (
            "exclusive:3,11: CPUs 3 are in a cgroup partition; expected CPUs in no partition: remove it"
            " (cpuset.cpus.partition), or change the pools with `reconfigure`"
        ),
        (
            "shared:4,12: CPUs 12 are in a cgroup partition; expected CPUs in no partition: remove it"
            " (cpuset.cpus.partition), or change the pools with `reconfigure`"
        ),
    ]


KUBELET_POOLS = pool_allocations.allocations_without_tasks(
    {"exclusive": {0: ["2,6", "3,7"]}, "shared": {0: ["1,5"]}, "infra": {0: ["0", "4"]}}
)
UID = "c26b9e2e-0b7b-4d61-9c2e-6a1f5e0a3c11"


def checkpoint(**fields: Any) -> str:
    return json.dumps({"policyName": "static", "defaultCpuSet": "", "checksum": 1} | fields)


def test_the_policy_none_gives_nothing_away_and_is_at_odds_with_nothing() -> None:
    state = other_cpu_managers.parse_checkpoints(
        '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    )
    assert state == KubeletState("none")
    assert other_cpu_managers.kubelet_conflicts(state, KUBELET_POOLS) == []


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
    (problem,) = other_cpu_managers.kubelet_conflicts(state, KUBELET_POOLS)
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
    problem = other_cpu_managers.kubelet_conflicts(state, KUBELET_POOLS)[0]
    assert problem.found.startswith(f"an unknown version with {fields}:")
    assert problem.expected == "the fields of version 1 to 4 (Kubernetes 1.38 and older)"


def test_containers_that_it_gave_cpus_of_pools_are_named() -> None:
    state = other_cpu_managers.parse_checkpoints(checkpoint(entries={UID: {"main": "2-3", "side": "9"}}))
    (problem,) = other_cpu_managers.kubelet_conflicts(state, KUBELET_POOLS)
    expected = f"container main of pod {UID} has CPUs 2-3: CPUs 2-3 are in the node's pools; expected others"
    assert str(problem) == expected


def test_exclusive_cpus_in_shared_pool_of_kubelet_have_remedy() -> None:
    (problem,) = other_cpu_managers.kubelet_conflicts(
        other_cpu_managers.parse_checkpoints(checkpoint(defaultCpuSet="0-2,4-7")), KUBELET_POOLS
    )
    assert "CPUs 2,6-7 of exclusive pools are open to all containers" in str(problem)
    assert "strict-cpu-reservation" in problem.expected
    assert (
        other_cpu_managers.kubelet_conflicts(
            other_cpu_managers.parse_checkpoints(checkpoint(defaultCpuSet="0-1,4-5")), KUBELET_POOLS
        )
        == []
    )


def test_a_memory_manager_that_sets_nodes_is_named() -> None:
    memory = '{"policyName":"Static","machineState":{},"checksum":1}'
    (problem,) = other_cpu_managers.kubelet_conflicts(
        other_cpu_managers.parse_checkpoints(checkpoint(), memory), KUBELET_POOLS
    )
    assert "memoryManagerPolicy Static" in problem.field


def test_features_of_the_kubelet_that_replace_pools() -> None:
    alternatives = other_cpu_managers.describe_kubelet_alternatives(KUBELET_POOLS)
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
