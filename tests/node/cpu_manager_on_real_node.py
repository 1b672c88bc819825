"""The CPU manager on a real node: pools, the installed program, the node agent, and pods that request cores."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodewise_cpu import cmk_names, procfs
from nodewise_cpu.cpusets import container_cpusets
from tests import plain_http
from tests.cluster import child_processes
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import NODEWISE
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import script_pods
from tests.node.kubelet import Kubelet

EXCLUSIVE = frozenset({0})
"""The only core of the pool; the other cores are in the pool infra."""
ISOLATE = f"{cmk_names.DEFAULT_INSTALL_DIR}/cmk isolate --pool=exclusive"
PERIOD_S = 2.0
MOUNTED = {"program": cmk_names.DEFAULT_INSTALL_DIR, "socket": str(Path(cmk_names.DEFAULT_SOCKET).parent)}


class CpuManagerOnNode:
    """Runs the CPU manager's commands among the node's processes."""

    def __init__(self, sandbox: Sandbox, node: Kubelet, user: User, folder: Path) -> None:
        self.sandbox = sandbox
        self.node = node
        self._user = user
        self._folder = folder
        self._health_port = 0

    @property
    def place(self) -> list[str]:
        """The options that select the node's store."""
        return [
            f"--node-name={self.node.name}",
            f"--namespace={self.sandbox.namespace}",
            f"--kubeconfig={self._user.kubeconfig}",
        ]

    def command_line(self, *words: str | Path) -> list[str]:
        """The command line of `nodewise cpu` among the node's processes; it ends with this process."""
        return self.node.runtime.enter(["setpriv", "--pdeathsig", "TERM", "--", NODEWISE, "cpu", *words])

    def run(self, *words: str | Path) -> str:
        """The stdout of a command; AssertionError if it fails."""
        completed = self.try_run(*words)
        assert completed.returncode == 0, f"{words}: {completed.stderr}"
        return completed.stdout

    def try_run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command_line(*words), capture_output=True, text=True, timeout=120, check=False
        )

    def agent(self, *options: str) -> Process:
        """The node agent, once it responds and the kubelet has the pool's cores."""
        self._health_port = child_processes.free_port()
        socket = self.node.runtime.inside(cmk_names.DEFAULT_SOCKET)
        socket.unlink(missing_ok=True)
        words = [
            "agent",
            *self.place,
            "--proc-fs=/proc",
            f"--interval={PERIOD_S:g}s",
            f"--health-port={self._health_port}",
            *options,
        ]
        process = Process(
            self.command_line(*words), self._folder / "agent.log", self.node.runtime.environment
        )
        process.wait_ready(lambda: socket.exists() and self.exclusive_cores_offered() == "1")
        return process

    def wait_sweep(self) -> None:
        """Wait until the agent has completed a garbage collection that begins now."""
        begun = self._sweeps()
        wait("one more sweep", lambda: True if self._sweeps() >= begun + 2 else None)

    def _sweeps(self) -> int:
        metrics = plain_http.get(f"http://127.0.0.1:{self._health_port}/metrics").text
        (count,) = re.findall(r"^nodewise_cpu_sweep_seconds_count (\S+)", metrics, re.MULTILINE)
        return int(float(count))

    def exclusive_cores_offered(self) -> str:
        """The number of exclusive cores in the Node's allocatable resources."""
        status = self.sandbox.api.get(self.node.path)["status"]
        return status["allocatable"].get(cmk_names.EXCLUSIVE_CORES, "")

    def tasks(self, pool: str = "exclusive") -> list[str]:
        """The process ids of the tasks of a pool."""
        pools = json.loads(self.run("describe", *self.place))["pools"]
        return [pid for cpu_list in pools[pool]["cpuLists"].values() for pid in cpu_list["tasks"]]

    def masks(self, pod: Object) -> dict[str, frozenset[int]]:
        """The affinities of all threads in a pod's container, by program and thread id."""
        proc = self.node.runtime.inside("/proc")
        (pids,) = container_cpusets.list_container_processes(proc, [script_pods.container_of(pod)]).values()
        masks = {}
        for thread in (task_thread for pid in pids for task_thread in procfs.read_threads(proc, pid)):
            with contextlib.suppress(OSError):
                name = (proc / f"{thread.pid}/task/{thread.tid}/comm").read_text().strip()
                masks[f"{name} {thread.tid}"] = thread.cpus
        return masks

    def wait_pinned(self, pod: Object, cpus: frozenset[int]) -> None:
        """Wait until every thread of a pod's command has exactly these CPUs.

        A task holds its CPUs in the store shortly before its wrapper runs on them.
        """
        wait(
            f"the command of the pod runs on CPUs {sorted(cpus)}",
            lambda: True if set(self.masks(pod).values()) == {cpus} else None,
            show=lambda: self.masks(pod),
        )

    def wait_held(self, pod: Object) -> str:
        """Wait until this pod has the exclusive core; returns the wrapper's process id."""

        def diagnosis() -> object:
            return self.node.log(pod, "main"), self.sandbox.pod(pod["metadata"]["name"])

        (task,) = wait("the exclusive core is held", lambda: self.tasks() or None, show=diagnosis)
        return task

    def wait_free(self) -> None:
        """Wait until the exclusive core is free."""
        wait("the exclusive core is free", lambda: None if self.tasks() else True, show=self.tasks)

    def kill(self, pid: str | int) -> None:
        """Send SIGKILL to a process, by its id on the node."""
        subprocess.run(self.node.runtime.enter(["kill", "-KILL", str(pid)]), check=True)

    def wait_gone(self, pod: Object) -> None:
        """Wait until the pod's container has no process."""
        wait(
            "the container is empty", lambda: None if self.masks(pod) else True, show=lambda: self.masks(pod)
        )


@contextlib.contextmanager
def node_with_cpu_manager(
    sandbox: Sandbox, node: Kubelet, program: Path, folder: Path, user: User
) -> Iterator[CpuManagerOnNode]:
    """A node with the installed program and one exclusive core, without an agent."""
    manager = CpuManagerOnNode(sandbox, node, user, folder)
    manager.run("install", f"--from={program}", "--proc-fs=/proc")
    manager.run("init", *manager.place, "--num-exclusive-cores=1", "--num-shared-cores=0")
    yield manager


def pod(name: str, script: str, on: str, *, cores: int = 1, **spec: Any) -> Object:
    """A pod with everything that `isolate` needs, which requests this number of exclusive cores."""
    made = script_pods.pod(name, script, on=on, **spec)
    (container,) = made["spec"]["containers"]
    container["volumeMounts"] = [{"name": key, "mountPath": path} for key, path in MOUNTED.items()]
    if cores:
        container["resources"] = {"limits": {cmk_names.EXCLUSIVE_CORES: str(cores)}}
    made["spec"]["volumes"] = [{"name": key, "hostPath": {"path": path}} for key, path in MOUNTED.items()]
    return made


def with_python(made: Object) -> Object:
    """The same pod with this Python interpreter."""
    paths = {
        sys.base_prefix: sys.base_prefix,
        "/lib": "/usr/lib",
        "/usr/lib": "/usr/lib",
        "/lib64": "/usr/lib64",
    }
    (container,) = made["spec"]["containers"]
    for number, (inside, outside) in enumerate(paths.items()):
        container["volumeMounts"].append({"name": f"python-{number}", "mountPath": inside, "readOnly": True})
        made["spec"]["volumes"].append({"name": f"python-{number}", "hostPath": {"path": outside}})
    return made


def python(*lines: str) -> str:
    """The command that runs these lines in a pod `with_python`; they contain no quotes."""
    return f"{sys.base_prefix}/bin/python3 -S -c '{'; '.join(lines)}'"
