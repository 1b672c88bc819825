"""Runs the DRA example driver, one process for each node. It publishes ResourceSlices without a kubelet."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import device_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User, rule
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane

RESOURCE = "resource.k8s.io"
RIGHTS = [
    rule("get list watch", "resourceclaims", RESOURCE),
    rule("update", "resourceclaims/status", RESOURCE),
    rule("get", "nodes"),
    rule("get list watch create update patch delete", "resourceslices", RESOURCE),
]
"""The rights of the driver's Helm chart."""


class ExampleDrivers:
    """The drivers that `running` stops. A node must exist before its driver starts."""

    def __init__(self, plane: ControlPlane, program: Path, folder: Path) -> None:
        self._plane = plane
        self._program = program
        self._folder = folder
        self._user: User = plane.user("dra-example-driver", RIGHTS)
        self.processes: dict[tuple[str, str], Process] = {}
        """By node and driver."""

    def start(
        self, node: str, devices: int = 8, *options: str, profile: str = "gpu", driver: str = ""
    ) -> Process:
        """Starts the driver of a node; returns when its slices exist.

        `options` are flags of the driver, such as `--gpu-partitions=4` or `--gpu-allow-multiple-allocations`.
        """
        driver = driver or f"{profile}.example.com"
        folder = self._folder / str(len(self.processes))
        for name in ("registry", "plugins"):
            (folder / name).mkdir(parents=True)
        command = [
            self._program,
            f"--kubeconfig={self._user.kubeconfig}",
            f"--node-name={node}",
            f"--num-devices={devices}",
            f"--device-profile={profile}",
            f"--driver-name={driver}",
            f"--cdi-root={folder}/cdi",
            f"--kubelet-registrar-directory-path={folder}/registry",
            f"--kubelet-plugins-directory-path={folder}/plugins",
            *options,
        ]
        environment = {"PATH": os.environ["PATH"], "GOMAXPROCS": "1"}
        process = Process(command, self._plane.folder / f"{driver}-{node}.log", environment)
        self.processes[node, driver] = process
        process.wait_ready(lambda: bool(self.slices(node, driver)))
        return process

    def slices(self, node: str, driver: str = device_objects.DRIVER) -> list[Object]:
        """The slices of a node's complete pool; empty if there is none."""
        selector = f"spec.nodeName={node},spec.driver={driver}"
        slices: list[Object] = self._plane.api.get(device_objects.SLICE_PATH, fieldSelector=selector)["items"]
        is_complete = slices and len(slices) >= slices[0]["spec"]["pool"]["resourceSliceCount"]
        return slices if is_complete else []


@contextlib.contextmanager
def running(plane: ControlPlane, program: Path) -> Iterator[ExampleDrivers]:
    """Drivers that a test starts; they end with the context, their slices with the test file."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:  # paths of sockets are at most 107 bytes
        drivers = ExampleDrivers(plane, program, Path(folder))
        try:
            yield drivers
        finally:
            for process in drivers.processes.values():
                process.stop()
