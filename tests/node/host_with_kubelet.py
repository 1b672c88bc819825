"""A host of a cluster: a kubelet in the network of its pods, as on a real machine.

Static pods run from its folder of manifests. Pods in the host's network reach the API server at its address, others by
its Service, with the tokens that the kubelet mounts. `loopback_forwarding` forwards connections to Services.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster import child_processes, controlplane, program_cache
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.debian_packages import ContainerPrograms
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import busybox_image, kubelet, loopback_forwarding, network_port_forwarding
from tests.node.containerd_runtime import Containerd
from tests.node.kubelet import Kubelet
from tests.node.loopback_forwarding import Network

NAME: Final = "host"
KUBERNETES: Final = "/etc/kubernetes"
MANIFESTS: Final = f"{KUBERNETES}/manifests"
VERSION: Final = program_cache.VERSION.removeprefix("v")
SCHEDULER_IMAGE: Final = f"registry.k8s.io/kube-scheduler:v{VERSION}"
ADMISSION: Final = {
    "enable-admission-plugins": "NodeRestriction",  # as kubeadm does
    "disable-admission-plugins": "TaintNodesByCondition",
}
SETTINGS: Final = {"staticPodPath": MANIFESTS, "syncFrequency": "2s"}
"""The second one is the delay until pods see a change of a Secret."""


class KubernetesHost(NamedTuple):
    """A control plane with one real node."""

    plane: ControlPlane
    node: Kubelet
    network: Network

    def path(self, path: str) -> Path:
        """A file of the host, as a path in the test's mount namespace."""
        return self.node.runtime.inside(path)

    def try_run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run a command on the host."""
        command = self.node.runtime.enter(words, network=True)
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def output_of(self, *words: str | Path) -> str:
        """The stdout of a command on the host, which has to succeed."""
        done = self.try_run(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def pods(self, namespace: str, **labels: str) -> list[Object]:
        """The pods with these labels."""
        about = ",".join(f"{key}={value}" for key, value in labels.items())
        pods: list[Object] = self.plane.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=about)[
            "items"
        ]
        return pods

    def wait_ready(self, namespace: str, count: int = 1, **labels: str) -> list[Object]:
        """Wait until this number of pods with these labels exist, all of them ready."""

        def ready() -> list[Object] | None:
            pods = self.pods(namespace, **labels)
            return pods if len(pods) == count and all(map(is_ready, pods)) else None

        what = f"{count} pods of {labels} are ready"
        return wait(what, ready, 120, lambda: self.describe_state(namespace, **labels))

    def describe_state(self, namespace: str, **labels: str) -> object:
        """The state of pods, for error messages."""
        pods = self.pods(namespace, **labels)
        events = self.plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
        logs = {
            f"{pod['metadata']['name']}/{container['name']}": self.log(pod, container["name"])
            for pod in pods
            for container in pod["spec"]["containers"]
        }
        return [pod["status"] for pod in pods], [event["message"] for event in events][-20:], logs

    def log(self, pod: Object, container: str) -> str:
        """The last lines of a container."""
        return "\n".join(self.node.log(pod, container)[-40:])


@contextlib.contextmanager
def running(
    programs: Path, kubelet_program: Path, containers: ContainerPrograms, folder: Path, name: str = NAME
) -> Iterator[KubernetesHost]:
    """A ready host with this name, and controllers. kube-scheduler's image is loaded, but not running."""
    networks: list[Network] = []
    address = child_processes.own_address()  # here the API server finds the way to the kubelet

    @contextlib.contextmanager
    def prepared(runtime: Containerd) -> Iterator[str]:
        runtime.inside(MANIFESTS).mkdir(parents=True)
        with loopback_forwarding.of(runtime, containers.busybox) as made:
            networks.append(made)
            server = loopback_forwarding.address_of(plane.url)
            outside = loopback_forwarding.out_to(server)
            for added in (address, controlplane.SERVICE):
                made.add(added)
            made.forward(server, outside)
            made.forward((controlplane.SERVICE, 443), outside)
            yield address

    with (
        controlplane.running(programs, folder, ADMISSION) as plane,
        plane.start_controller_manager(),
        kubelet.running(plane, kubelet_program, containers, folder, name, SETTINGS, prepared) as node,
        network_port_forwarding.forwarding(node.runtime.network, node.port, (address, node.port)),
    ):
        archive = folder / "kube-scheduler.tar"
        busybox_image.write_program(archive, programs / "kube-scheduler", SCHEDULER_IMAGE)
        node.runtime.load(archive)
        yield KubernetesHost(plane, node, networks[0])


def wait_admitted(sandbox: Sandbox) -> None:
    """Wait until pods are admitted to a namespace: its service account is created a moment later."""
    path = f"/api/v1/namespaces/{sandbox.namespace}/serviceaccounts/default"
    wait("the namespace has a service account", lambda: sandbox.api.find(path))


def is_ready(pod: Object) -> bool:
    conditions: list[Any] = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
