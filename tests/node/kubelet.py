"""A kubelet with its containerd, and the Node that it registers at the API server."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster import child_processes
from tests.cluster.api_client import Object
from tests.cluster.certificates import CertificatePair
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.debian_packages import ContainerPrograms
from tests.cluster.namespace_sandboxes import wait
from tests.node import containerd_runtime, temporary_cgroups
from tests.node.containerd_runtime import Containerd

KIND = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}

Prepared = Callable[[Containerd], contextlib.AbstractContextManager[str]]
"""Prepares a runtime for a kubelet in its network; returns the Node's address."""


class Kubelet:
    """A running kubelet; `name` is the name of its Node."""

    def __init__(
        self, name: str, plane: ControlPlane, containerd: Containerd, port: int, start: Callable[[], Process]
    ) -> None:
        self.name = name
        self.port = port
        """Of its API, on loopback."""
        self.runtime = containerd
        self._api = plane.api
        self._start = start
        self.process = start()

    def restart(self) -> None:
        """Restart the program. Its pods keep running, and it finds them."""
        (inner,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.process.stop()
        wait("the kubelet ended", lambda: None if Path(f"/proc/{inner}").exists() else True)
        self.process = self._start()

    @property
    def path(self) -> str:
        """The path of the Node in the API."""
        return f"/api/v1/nodes/{self.name}"

    def is_ready(self) -> bool:
        """Whether the Node has the condition Ready."""
        conditions = (self._api.find(self.path) or {}).get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def label(self, labels: Mapping[str, str]) -> None:
        self._api.patch(self.path, {"metadata": {"labels": labels}})

    def advertise(self, amounts: Mapping[str, str]) -> None:
        """Add extended resources to the Node, and wait until the kubelet knows them."""
        self._api.patch(f"{self.path}/status", {"status": {"capacity": amounts}})

        def taken() -> bool | None:
            status = self._api.get(self.path)["status"]
            both = status["capacity"], status["allocatable"]
            has, offers = ({name: of.get(name) for name in amounts} for of in both)
            return (has == offers and all(has.values())) or None

        wait("the kubelet offers what was advertised", taken, show=lambda: self._api.get(self.path))

    def log(self, pod: Object, container: str) -> list[str]:
        """The lines of the last container's stdout and stderr."""
        metadata = pod["metadata"]
        folder = f"/var/log/pods/{metadata['namespace']}_{metadata['name']}_{metadata['uid']}/{container}"
        newest = max(self.runtime.inside(folder).glob("*.log"), default=None)
        # each line has the time, the stream, full or partial, and the text
        lines = newest.read_text().splitlines() if newest else []
        return [line.split(" ", 3)[3] for line in lines]


@contextlib.contextmanager
def running(
    plane: ControlPlane,
    program: Path,
    containers: ContainerPrograms,
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    prepared: Prepared | None = None,
) -> Iterator[Kubelet]:
    """A kubelet whose Node is ready; its pods end with it, and the Node is gone at the end.

    `settings` are further ones of its configuration. It is in the machine's network, and its pods are not; unless
    `prepared` is given, which makes of the runtime's own network one to live in, before the kubelet starts there.
    """
    with (
        temporary_cgroups.created(name) as cgroup,
        containerd_runtime.running(containers, folder) as containerd,
        prepared(containerd)
        if prepared
        else contextlib.nullcontext(child_processes.own_address()) as address,
    ):
        port = child_processes.free_port()
        own = {**_settings(cgroup), "port": port, **(settings or {})}
        command = _command(plane, program, folder, name, own, address)
        words = containerd.enter(command, network=prepared is not None)
        kubelet = Kubelet(
            name,
            plane,
            containerd,
            port,
            lambda: Process(words, folder / "kubelet.log", containerd.environment),
        )
        try:
            kubelet.process.wait_ready(kubelet.is_ready)
            yield kubelet
        finally:
            kubelet.process.stop()
        plane.api.delete(kubelet.path)


def _command(
    plane: ControlPlane, program: Path, folder: Path, name: str, settings: Mapping[str, Any], address: str
) -> list[str]:
    user = plane.user(f"system:node:{name}", group="system:nodes")
    serving = plane.authority.issue(f"kubelet-{name}", "127.0.0.1", name)
    config = folder / "kubelet.json"
    config.write_text(json.dumps(KIND | _serving(plane, serving) | dict(settings)))
    flags = {
        "config": config,
        "kubeconfig": user.kubeconfig,
        "hostname-override": name,
        "node-ip": address,
    }
    # nsenter does not forward signals
    ending = ["setpriv", "--pdeathsig", "TERM", "--"]
    return [*ending, str(program), *(f"--{flag}={value}" for flag, value in flags.items())]


def _serving(plane: ControlPlane, serving: CertificatePair) -> dict[str, Any]:
    return {
        "address": "127.0.0.1",
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": str(serving.cert),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(plane.ca_file)},
        },
        "authorization": {"mode": "AlwaysAllow"},
    }


def _settings(cgroup: str) -> dict[str, Any]:
    """The configuration for a machine that others use too: its disk and memory are not managed."""
    return {
        "containerRuntimeEndpoint": f"unix://{containerd_runtime.SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "enforceNodeAllocatable": ["none"],
        "evictionHard": {"memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "enableControllerAttachDetach": False,
        "volumePluginDir": "/var/lib/kubelet/plugins-exec",
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "1s",
    }
