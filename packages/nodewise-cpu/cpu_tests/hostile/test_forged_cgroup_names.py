"""A tenant creates a cgroup with the name of another pod's cgroup: the node agent still uses the tenant's own pod."""

import contextlib
import json
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.folder_permissions import let_other_users_read
from tests.node import temporary_cgroups

from cpu_tests.laws.test_cpu_kernel_file_laws import SEPARATORS, path_of
from cpu_tests.unit.agent import agent_process
from cpu_tests.unit.agent.agent_process import PATIENCE_S, RunningNodeAgent
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.procfs import CgroupOwner

POOLS = {"exclusive": {0: ("0",)}, "shared": {0: ("1",)}, "infra": {0: ()}}
USER = 1000
# The ids are those of this run: another run on this machine has processes in cgroups of the same form.
OWN, OTHER = (CgroupOwner(str(uuid.uuid4()), secrets.token_hex(32)) for _ in range(2))
PROGRAM = """
import os, socket, sys
with open(sys.argv[2], "w") as procs:
    procs.write("0")
os.setuid(int(sys.argv[3]))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"do":"claim","pool":"shared"}\\n')
print(s.recv(65536).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNodeAgent]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_process.running(folder, pools=POOLS) as running:
        let_other_users_read(running.path.parent)
        yield running


@pytest.fixture
def pod() -> Iterator[Path]:
    """The cgroup of the pod's container, in a hierarchy in which this process may create cgroups."""
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(temporary_cgroups.created("names"))
        except OSError as error:
            pytest.skip(f"cannot create cgroups: {error}")
        places = [
            hierarchy.place
            for hierarchy in temporary_cgroups.hierarchies()
            if "cpuset" not in hierarchy.options
        ]
        if not places:
            pytest.skip("no hierarchy of cgroups whose processes need no CPUs first")
        container = Path(f"{places[-1]}{name}{path_of(OWN)}")
        container.mkdir(parents=True)
        yield container


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
@pytest.mark.parametrize("user", [0, USER])
def test_a_claim_counts_for_the_pod_that_the_cgroup_is_in(
    agent: RunningNodeAgent, pod: Path, separator: str, user: int
) -> None:
    inner = Path(f"{pod}/x{separator}3:cpuset:{path_of(OTHER)}")
    inner.mkdir(parents=True)
    command = [sys.executable, "-S", "-c", PROGRAM, str(agent.path), str(inner / "cgroup.procs"), str(user)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        answer = json.loads(child.stdout.readline())
        assert (answer["task"]["pod"], answer["task"]["container"]) == OWN
        processes = container_cpusets.list_container_processes(
            Path("/proc"), [OWN.container, OTHER.container]
        )
        assert processes == {OWN.container: [child.pid], OTHER.container: []}
        child.communicate("", PATIENCE_S)
    agent.expect_free()
