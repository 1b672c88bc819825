"""Isolated partitions of containers on a real kernel with cgroups of version 2."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster import virtual_machine
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.virtual_machine import FileEntry
from tests.node import virtual_cpu_machine
from tests.node.virtual_cpu_machine import CMK, CommandOutput, VirtualCpuMachine

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
ONE, TWO = "a1" * 32, "b2" * 32
BURSTABLE = f"kubepods/burstable/pod0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be001/{ONE}"
GUARANTEED = f"kubepods/pod0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be002/{TWO}"
CALL = """
import sys
sys.path[:0] = ["/source/src", "/source/packages/nodewise-cpu/src"]
from pathlib import Path
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions
from nodewise.base.errors import NodewiseError
partitions = CgroupPartitions(Path("/sys/fs/cgroup"), Path("/run/nodewise/partitions.json"))
verb, *words = sys.argv[1:]
try:
    partitions.check_support()
    if verb == "isolate":
        print(partitions.isolate(words[0], frozenset(map(int, words[1].split(",")))))
    else:
        print(partitions.release(words or None))
except NodewiseError as error:
    sys.exit(str(error))
"""


def _python_modules() -> Mapping[str, FileEntry]:
    """All modules of the interpreter and of nodewise that the script imports."""
    real = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    listing = (
        "print('\\n'.join(getattr(module, '__file__', '') or '' for module in list(sys.modules.values())))"
    )
    imports = CALL.partition("partitions =")[0].replace("/source", str(ROOT))
    listed = subprocess.run(
        [real, "-S", "-I", "-c", f"{imports}\n{listing}"], capture_output=True, text=True, check=True
    ).stdout
    entries = {}
    for name in filter(None, listed.splitlines()):
        path = Path(name)
        inside = f"source/{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else name
        entries[inside.lstrip("/")] = virtual_machine.program(path)
    return entries


@pytest.fixture(scope="module")
def machine(
    machine_packages: MachinePackages,
    machine_files: Mapping[str, FileEntry],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[VirtualCpuMachine]:
    files = {
        **machine_files,
        **_python_modules(),
        "bin/call": virtual_machine.script("#!/bin/python3 -S\n" + CALL),
        "run/nodewise/empty": virtual_machine.script(""),
    }
    with virtual_cpu_machine.running(machine_packages, files, tmp_path_factory.mktemp("pods")) as machine:
        for cgroup in (BURSTABLE, GUARANTEED):
            machine.run(
                f"cd /sys/fs/cgroup; mkdir -p {cgroup}; parent=.\n"
                f"for name in $(dirname {cgroup} | tr / ' '); do\n"
                "  parent=$parent/$name; echo +cpuset > $parent/cgroup.subtree_control\ndone"
            )
        yield machine


@pytest.fixture
def pods(machine: VirtualCpuMachine) -> Iterator[VirtualCpuMachine]:
    """The machine with a process in each container, and one outside. All partitions are undone at the end."""
    for number, cgroup in enumerate((BURSTABLE, GUARANTEED, ".")):
        machine.run(
            f"sleep 10000 & echo $! > /tmp/pod{number}.pid; echo $! > /sys/fs/cgroup/{cgroup}/cgroup.procs"
        )
    yield machine
    machine.run("call release; kill $(cat /tmp/pod?.pid)")
    for cgroup in (BURSTABLE, GUARANTEED):
        machine.run(f"echo > /sys/fs/cgroup/{cgroup}/cpuset.cpus")


def isolate(machine: VirtualCpuMachine, container: str, cgroup: str, cpus: str) -> CommandOutput:
    """What the agent does: the container runtime writes the cpuset, then it becomes a partition."""
    return machine.try_run(
        f"echo {cpus} > /sys/fs/cgroup/{cgroup}/cpuset.cpus; call isolate {container} {cpus}"
    )


def allowed(machine: VirtualCpuMachine) -> list[str]:
    """The CPUs of the processes in the containers and of the one outside."""
    out = machine.run("for file in /tmp/pod?.pid; do grep Cpus_allowed_list /proc/$(cat $file)/status; done")
    return [line.split()[1] for line in out.splitlines()]


def isolated(machine: VirtualCpuMachine) -> str:
    return machine.run("cat /sys/fs/cgroup/cpuset.cpus.isolated").strip()


def test_exclusive_cpus_of_containers_are_isolated_at_run_time_and_released(pods: VirtualCpuMachine) -> None:
    assert allowed(pods) == ["0-7"] * 3
    assert isolate(pods, ONE, BURSTABLE, "2,3").out == "True\n"
    assert isolate(pods, TWO, GUARANTEED, "6,7").out == "True\n"
    assert isolated(pods) == "2-3,6-7"
    assert allowed(pods) == ["2-3", "6-7", "0-1,4-5"]
    assert pods.try_run("taskset -c 2 true").code == 1
    assert pods.run(f"echo $$ > /sys/fs/cgroup/{BURSTABLE}/cgroup.procs; taskset -c 3 echo runs") == "runs\n"
    assert pods.run("call release") == "True\n"
    assert (isolated(pods), allowed(pods)) == ("", ["2-3", "6-7", "0-7"])
    exclusive = pods.run("cat $(find /sys/fs/cgroup/kubepods -name cpuset.cpus.exclusive)")
    assert exclusive.strip() == ""


def test_own_partitions_leave_the_cores_in_their_pools(pods: VirtualCpuMachine) -> None:
    """Also while a second program has a partition: only its CPUs leave the pools."""
    isolate(pods, ONE, BURSTABLE, "2,3")
    folder = "/sys/fs/cgroup/foreign"
    pods.run(
        f"mkdir {folder}; echo 4-5 > {folder}/cpuset.cpus; echo isolated > {folder}/cpuset.cpus.partition"
    )
    planned = pods.try_run(f"{CMK} plan --num-exclusive-cores=2 --num-shared-cores=0 -o json")
    pods.run(f"rmdir {folder}")
    assert json.loads(planned.out)["pools"]["exclusive"] == {"0": ["0,1", "2,3"], "1": []}
    assert "CPUs 4-5, on which no process of another cgroup may run" in planned.err


def test_cpus_of_another_partition_are_refused_with_the_reason_and_nothing_remains(
    pods: VirtualCpuMachine,
) -> None:
    folder = "/sys/fs/cgroup/foreign"
    pods.run(
        f"mkdir {folder}; echo 2-3 > {folder}/cpuset.cpus; echo isolated > {folder}/cpuset.cpus.partition"
    )
    refused = isolate(pods, ONE, BURSTABLE, "2,3")
    pods.run(f"rmdir {folder}")
    assert refused.code == 1
    assert "cannot isolate the container's CPUs: kubepods/cpuset.cpus.exclusive" in refused.err
    assert pods.run("cat $(find /sys/fs/cgroup/kubepods -name cpuset.cpus.exclusive)").strip() == ""
    assert isolate(pods, ONE, BURSTABLE, "2,3").out == "True\n"


def test_container_that_ended_leaves_its_cpus_to_the_next_one(pods: VirtualCpuMachine) -> None:
    """The next container is in another quality-of-service class, whose cgroup cannot share exclusive CPUs."""
    ended = "kubepods/burstable/pod0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be003/" + "c3" * 32
    pods.run(
        f"mkdir -p /sys/fs/cgroup/{ended}; echo +cpuset > /sys/fs/cgroup/$(dirname {ended})/cgroup.subtree_control"
    )
    assert isolate(pods, "c3" * 32, ended, "4,5").out == "True\n"
    pods.run(f"rmdir /sys/fs/cgroup/{ended} /sys/fs/cgroup/$(dirname {ended})")
    assert isolated(pods) == ""
    assert isolate(pods, TWO, GUARANTEED, "4,5").out == "True\n"
    assert isolated(pods) == "4-5"
