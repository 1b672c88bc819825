"""The numbered cases of CMK about tasks: their CPU lists, and the detection of ended tasks."""

import json
from collections.abc import Mapping

import pytest
import yaml

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import ClaimRow, Pools, SweepRow
from nodewise.base.errors import BadInput, NodewiseError
from nodewise_cpu import (
    allocator,
    configmap_store,
    cpu_set_formats,
    directory_store,
    ended_tasks,
    pool_allocations,
    pool_planning,
    topology,
)
from nodewise_cpu.allocator import AllocationRequest, AllocationResult
from nodewise_cpu.configmap_store import ConfigMapTexts
from nodewise_cpu.ended_tasks import NodeProcess
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.pool_planning import PoolOptions

C1: Pools = {
    "exclusive": {0: "0,11 1,12 2,13", 1: "3,14"},
    "shared": {0: "4,15,5,16"},
    "infra": {0: "6,17,7,18,8,19"},
    "exclusive-non-isolcpus": {0: "9,20 10,21"},
}
WRAPPER = Task(1234, start=77, boot="one")


def node(row: ClaimRow) -> Allocations:
    """Allocations from YAML."""
    pools = C1 if row.state is None else row.state
    config = {
        name: {socket: {text: [] for text in lists.split()} for socket, lists in sockets.items()}
        for name, sockets in pools.items()
    }
    for sockets in config.values():
        for lists in sockets.values():
            lists.update({text: [str(row.held[text])] for text in lists if text in row.held})
    return configmap_store.parse_config_map_data(ConfigMapTexts(yaml.safe_dump(config)))


def claimed(row: ClaimRow, draw: float = 0.0) -> AllocationResult:
    exclusive = pool_planning.IS_EXCLUSIVE.get(row.pool, False)
    lists = allocator.parse_core_count(row.cores) if exclusive else 1
    return allocator.allocate(node(row), AllocationRequest(row.pool, lists, row.socket), WRAPPER, draw)


def holders(allocations: Allocations) -> Mapping[str, list[int]]:
    return {
        cpu_list.text: [task.pid for task in cpu_list.tasks]
        for _, cpu_list in allocations.cpu_lists
        if cpu_list.tasks
    }


@pytest.mark.parametrize("row", case_table_rows.read("isolate", ClaimRow), ids=lambda row: row.id)
def test_claims(row: ClaimRow) -> None:
    if row.error:
        with pytest.raises(NodewiseError) as caught:
            claimed(row)
        assert [part for part in row.error if part not in str(caught.value)] == []
        return
    claim = claimed(row)
    environment = allocator.task_environment(claim.allocations, claim.cpu_lists, WRAPPER)
    assert environment["CMK_CPUS_ASSIGNED"] == row.gets.replace(" ", ",")
    assert environment["CMK_CPUS_ASSIGNED_MASK"] == (row.mask or environment["CMK_CPUS_ASSIGNED_MASK"])
    assert environment.get("CMK_CPUS_SHARED") == (row.shared or environment.get("CMK_CPUS_SHARED"))
    assert environment.get("CMK_CPUS_INFRA") == (row.infra or environment.get("CMK_CPUS_INFRA"))
    mine = {cpu_list.text for cpu_list in claim.cpu_lists}
    before = {text: [pid] for text, pid in row.held.items()}
    assert holders(claim.allocations) == before | {text: [*before.get(text, []), 1234] for text in mine}
    assert claim.allocations.without(WRAPPER) == node(row)


def test_134_each_of_several_shared_lists_is_chosen() -> None:
    row = ClaimRow(number=134, state={"shared": {0: "4,15", 1: "5,16"}}, pool="shared")
    assert {claimed(row, draw).cpu_lists[0].text for draw in (0.0, 0.3, 0.7, 0.999)} == {"4,15", "5,16"}


@pytest.mark.parametrize("row", case_table_rows.read("reconcile", SweepRow), ids=lambda row: row.id)
def test_sweeps(row: SweepRow) -> None:
    config = {name: {0: lists} for name, lists in row.state.items()}
    before = configmap_store.parse_config_map_data(ConfigMapTexts(yaml.safe_dump(config)))
    processes = dict.fromkeys(row.alive, NodeProcess(start=5, parent=0))
    swept = ended_tasks.remove_ended_tasks(before, processes, "one")
    report = ended_tasks.as_report(swept.reclaimed)
    lines = [
        f"{cpu_list['pid']} {cpu_list['cpus']} {cpu_list['pool']}" for cpu_list in report["reclaimedCpuLists"]
    ]
    assert lines == row.reclaims
    left = {pid for pids in holders(swept.allocations).values() for pid in pids}
    assert left == set(row.alive)
    assert row.reclaims or json.dumps(report, indent=2) == '{\n  "reclaimedCpuLists": []\n}'
    allowed = {pid: cpu_set_formats.parse_cpu_numbers(cpus) for pid, cpus in row.allowed.items()}
    elsewhere = [
        f"{mismatch['pid']} {mismatch['cpus']} {cpu_set_formats.format_cpu_ranges(mismatch['actualCpus'])}"
        for mismatch in ended_tasks.tasks_on_wrong_cpus(before, allowed)
    ]
    assert elsewhere == row.elsewhere


def test_96_a_list_of_one_cpu_is_quoted() -> None:
    plan = pool_planning.plan(topology.parse(case_cpu_topologies.texts("T4n", "1-3")), PoolOptions(2, 1))
    assert (
        "    '1': []\n"
        in configmap_store.format_config_map_data(
            pool_allocations.allocations_without_tasks(plan.pools)
        ).config
    )


def test_98_the_files_of_a_fresh_directory() -> None:
    machine = topology.parse(case_cpu_topologies.texts("T8", "1,2,9,10"))
    plan = pool_planning.plan(machine, PoolOptions(1, 1, non_isolcpus="0,3-5"))
    files = directory_store.format_files(pool_allocations.allocations_without_tasks(plan.pools))
    flags = {path: text for path, text in files.items() if path.endswith("/exclusive") and text is not None}
    assert flags == {
        "pools/exclusive/exclusive": "1",
        "pools/exclusive-non-isolcpus/exclusive": "1",
        "pools/shared/exclusive": "0",
        "pools/infra/exclusive": "0",
    }
    assert {path: text for path, text in files.items() if path.endswith("/tasks")} == dict.fromkeys(
        [
            "pools/exclusive/0/1,9/tasks",
            "pools/shared/0/2,10/tasks",
            "pools/infra/0/6,14,7,15/tasks",
            *(f"pools/exclusive-non-isolcpus/0/{text}/tasks" for text in ("0,8", "3,11", "4,12", "5,13")),
        ],
        "",
    )


def test_101_a_directory_is_described_but_for_its_path() -> None:
    files = {"pools/exclusive/exclusive": "1", "pools/exclusive/0/0/tasks": ""}
    files |= {"pools/shared/exclusive": "0", "pools/shared/0/0/tasks": "", "lock": ""}
    lists = {"0": {"cpus": "0", "tasks": []}}
    assert pool_allocations.as_describe_output(directory_store.parse_files(files)) == {
        "pools": {
            "exclusive": {"cpuLists": lists, "exclusive": True, "name": "exclusive"},
            "shared": {"cpuLists": lists, "exclusive": False, "name": "shared"},
        }
    }


def test_100_pools_are_described() -> None:
    config = {
        "exclusive": {0: {"0,9": [1001], "1,10": [1002], "2,11": [1003]}, 1: {"3,12": [1004]}},
        "shared": {0: {"4,13,5,14": [2001, 2002, 2003]}},
        "infra": {0: {"6,15,7,16,8,17": [3001, 4002, 5003]}},
    }
    description = pool_allocations.as_describe_output(pool_allocations.parse_allocations(config))["pools"]
    expected = {"exclusive": True, "shared": False, "infra": False}
    assert {name: pool["exclusive"] for name, pool in description.items()} == expected
    assert list(description["exclusive"]["cpuLists"]) == ["0,9", "1,10", "2,11", "3,12"]
    assert description["exclusive"]["cpuLists"]["0,9"] == {"cpus": "0,9", "tasks": ["1001"]}
    assert description["infra"]["cpuLists"]["6,15,7,16,8,17"]["tasks"] == ["3001", "4002", "5003"]


def test_104_an_unknown_pool_is_an_error() -> None:
    with pytest.raises(BadInput, match="pool 'foo'; expected exclusive"):
        configmap_store.parse_config_map_data(ConfigMapTexts("foo: {0: {'1': []}}"))


def test_143_overlapping_lists_are_reported() -> None:
    allocations = configmap_store.parse_config_map_data(
        ConfigMapTexts("exclusive: {0: {'0': []}}\nshared: {0: {'0': []}}")
    )
    assert pool_allocations.overlaps(allocations) == ("exclusive:0 and shared:0 (in both: [0])",)
