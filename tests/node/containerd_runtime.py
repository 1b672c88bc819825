"""containerd in namespaces of its own. It is their first process, and all other processes end with it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster import skip_conditions
from tests.cluster.child_processes import Process
from tests.cluster.debian_packages import ContainerPrograms
from tests.node import busybox_image, temporary_cgroups

SOCKET = "/run/containerd/containerd.sock"
"""The path of its socket, in the namespaces."""

IN_MEMORY = ("/run", "/var/lib", "/var/log", "/opt")
"""The folders that containerd, its shims, runc, the kubelet and nodewise write to; `/etc` is an overlay as well."""

TUNED = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Sysctls that the kubelet sets for the whole machine. The namespaces have plain files instead."""

OVER_ETC = (
    "mkdir -p /run/over/etc /run/over/work;"
    " mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/over/etc,workdir=/run/over/work /etc"
)
"""The overlay of /etc, for example for /etc/kubernetes of a host, is in memory."""

NAMESPACES = ("--mount", "--propagation=private", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")

CONFIG = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {image}
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = {plugins}
  conf_dir = {networks}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""

NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


class Containerd:
    """A running containerd. `run` executes commands beside it, `inside` returns paths of its files."""

    def __init__(self, programs: ContainerPrograms, process: Process, environment: dict[str, str]) -> None:
        self.process = process
        self.environment = environment
        self._programs = programs

    @property
    def pid(self) -> int:
        """The first process of the namespaces, by its id outside of them; 0 without one."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            return int(next(iter(children.read_text().split()), 0))
        return 0

    def network(self) -> Path:
        """The file of its network."""
        return Path(f"/proc/{self.pid}/ns/net")

    def inside(self, path: str) -> Path:
        """A path outside of the namespaces to a file in them."""
        return Path(f"/proc/{self.pid}/root{path}")

    def enter(self, command: Sequence[str | Path], *, network: bool = False) -> list[str]:
        """A command line that runs another one among the processes and mounts, in the machine's network.

        With `network` it runs in the runtime's network, which is only connected by forwarded addresses; see
        `loopback_forwarding`.
        """
        inside = ["--mount", "--pid", *(["--net"] if network else [])]
        return ["nsenter", f"--target={self.pid}", *inside, "--", *map(str, command)]

    def is_ready(self) -> bool:
        """Whether containerd responds, after it replaced the shell before it."""
        return self.pid > 0 and self.inside(SOCKET).exists() and not self.ctr("version").returncode

    def load(self, archive: Path) -> None:
        """Import an image."""
        completed = self.ctr("images", "import", str(archive))
        assert completed.returncode == 0, f"ctr images import: {completed.stderr}"

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ctr in the namespace of the kubelet."""
        command = self.ctr_line(*arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def ctr_line(self, *arguments: str) -> list[str]:
        """The command line of `ctr`."""
        return self.enter([self._programs.ctr, f"--address={SOCKET}", "--namespace=k8s.io", *arguments])

    def stop(self) -> None:
        """End the first process, and with it all others; returns when they have ended."""
        if first := self.pid:
            os.kill(first, signal.SIGKILL)
        self.process.stop()


@contextlib.contextmanager
def running(programs: ContainerPrograms, folder: Path) -> Iterator[Containerd]:
    """A ready containerd with the image."""
    why = lacking()
    if why:
        skip_conditions.not_run(f"no containers: {why}")
    busybox_image.write(folder / "image.tar", programs.busybox)
    runtime = _start(programs, folder)
    try:
        runtime.process.wait_ready(runtime.is_ready)
        runtime.load(folder / "image.tar")
        yield runtime
    finally:
        runtime.stop()


def lacking() -> str:
    """The reason why this machine cannot run containers, and a remedy; empty if it can."""
    if os.geteuid() != 0:
        return "they need root; run this as root"
    if missing := [name for name in ("unshare", "nsenter", "mount", "setpriv") if not shutil.which(name)]:
        return f"there is no {' and no '.join(missing)} on the PATH; install util-linux"
    if controllers := temporary_cgroups.lacking():
        return (
            f"there are no cgroup controllers {', '.join(sorted(controllers))}; "
            "mount them at /sys/fs/cgroup, as version 1 or 2"
        )
    made = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"{made.stderr.strip()}; run this where namespaces may be made" if made.returncode else ""


def _start(programs: ContainerPrograms, folder: Path) -> Containerd:
    config, networks, tuned = folder / "containerd.toml", folder / "networks", folder / "tuned"
    networks.mkdir()
    (networks / "pods.conflist").write_text(json.dumps(NETWORK))
    named = {"image": busybox_image.NAME, "plugins": programs.plugins, "networks": networks}
    config.write_text(CONFIG.format(**{key: json.dumps(str(value)) for key, value in named.items()}))
    steps = [f"mount -t tmpfs tmpfs {place}" for place in IN_MEMORY]
    steps.append(OVER_ETC)
    for name in TUNED:
        file = tuned / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Path("/proc/sys", name).read_text())
        steps.append(f"mount --bind {file} /proc/sys/{name}")
    steps.append(f"exec {programs.containerd} --config {config}")
    folders = [programs.containerd.parent, programs.runc.parent]
    environment = os.environ | {"PATH": ":".join([*map(str, folders), os.environ["PATH"]])}
    command = ["unshare", *NAMESPACES, "sh", "-e", "-c", "\n".join(steps)]
    return Containerd(programs, Process(command, folder / "containerd.log", environment), environment)
