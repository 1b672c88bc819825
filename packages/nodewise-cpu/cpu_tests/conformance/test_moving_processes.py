"""The numbered cases of CMK about moving processes, with real processes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cluster import skip_conditions

from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import MovedRow, Pools
from cpu_tests.conformance.minimal_api_server import MinimalApiServer
from cpu_tests.conformance.node_commands import CONFIG_MAP, cluster, directory_of, run, write
from cpu_tests.conformance.test_reconfiguration_plans import brief
from cpu_tests.unit.reconfiguration import process_trees
from cpu_tests.unit.reconfiguration.process_trees import RunningProcessTree
from nodewise.kube.resource_kinds import NODES
from nodewise_cpu import configmap_store, cpu_set_formats, pool_allocations
from nodewise_cpu.configmap_store import ConfigMapTexts
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.pool_allocations import Allocations, Task


@contextmanager
def started(row: MovedRow) -> Iterator[Mapping[str, RunningProcessTree]]:
    """All process trees of a row, by letter, each on the CPUs of its lists."""
    cpus: dict[str, set[int]] = {
        name: set(cpu_set_formats.parse_cpu_numbers(text)) for name, text in row.strays.items()
    }
    for sockets in row.before.values():
        for text in " ".join(sockets.values()).split():
            numbers, *letters = text.split(":")
            for letter in letters:
                cpus.setdefault(letter, set()).update(cpu_set_formats.parse_cpu_numbers(numbers))
    with ExitStack() as stack:
        yield {letter: stack.enter_context(process_trees.running(wanted)) for letter, wanted in cpus.items()}


def node(pools: Pools, tasks: Mapping[str, Task]) -> Allocations:
    """The allocations with these tasks in place of letters."""
    return Allocations(
        {
            name: pool_allocations.pool(
                name,
                {
                    socket: [
                        pool_allocations.parse_cpu_list(
                            text.partition(":")[0], tasks=[tasks[letter] for letter in text.split(":")[1:]]
                        )
                        for text in lists.split()
                    ]
                    for socket, lists in sockets.items()
                },
                is_exclusive=name == "exclusive",
            )
            for name, sockets in pools.items()
        }
    )


def stored(server: MinimalApiServer) -> ConfigMapTexts:
    config_map = server.objects[CONFIG_MAP]
    return ConfigMapTexts(
        config_map["data"]["config"], config_map["metadata"]["annotations"][pool_allocations.IDENTITIES]
    )


def filled(allocations: Allocations) -> Pools:
    """The pools that have lists."""
    return {name: dict(sockets) for name, sockets in brief(allocations).items() if sockets}


@pytest.mark.parametrize("place", ["directory", "configmap"])
@pytest.mark.parametrize("row", case_table_rows.read("moving", MovedRow), ids=lambda row: row.id)
@pytest.mark.root
def test_processes_are_moved(row: MovedRow, place: str, tmp_path: Path) -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        skip_conditions.not_run("moving processes takes two CPUs")
    machine = write(case_cpu_topologies.texts(row.machine, row.isolated), tmp_path / "machine")
    with started(row) as families, cluster("v1.36.3", tmp_path) as (server, leading):
        tasks = {letter: family.task for letter, family in families.items()}
        first = node(row.before, tasks)
        texts = configmap_store.format_config_map_data(first)
        about = {
            "name": "cmk-config-n1",
            "annotations": {"Owner": "", pool_allocations.IDENTITIES: texts.identities},
        }
        server.put(CONFIG_MAP, {"metadata": about, "data": {"config": texts.config}})
        conf = directory_of(first, tmp_path / "conf")
        done = run(
            "reconfigure", "--direct", "--sysfs", machine, *leading,
            *(["--conf-dir", conf] if place == "directory" else []),
            "--num-exclusive-cores", row.exclusive, "--num-shared-cores", row.shared,
        )  # fmt: skip
        thread_affinities = {letter: families[letter].thread_affinities for letter in row.runs}
        capacity = server.objects[NODES.path(name="n1")].get("status", {}).get("capacity", {})
        config_maps = {path.rpartition("/")[2] for path in server.folder("configmaps")}
    left = {"directory": DirectoryStore(conf).read().allocations}
    if place == "configmap" and not row.error:
        left["configmap"] = configmap_store.parse_config_map_data(stored(server))
    assert done.returncode == bool(row.error), done.stderr
    assert [part for part in row.error if part not in done.stderr] == []
    assert thread_affinities == {
        letter: {frozenset(cpu_set_formats.parse_cpu_numbers(cpus))} for letter, cpus in row.runs.items()
    }
    if row.error:
        assert (left["directory"], stored(server)) == (first, texts)
    else:
        assert filled(left[place]) == filled(node(row.after, tasks))
    assert not row.capacity or capacity == row.capacity
    assert config_maps == {"cmk-config-n1"}
