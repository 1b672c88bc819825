"""kube-scheduler as a static pod of kubeadm's form on a host of the control plane."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.api import Object
from tests.cluster.test_namespaces import wait
from tests.conformance.configure import scheduler_manifests
from tests.node import host_kubelet, network
from tests.node.host_kubelet import KubernetesHost
from tests.node.network import Address, ForwardingTarget

_MIRROR: Final = f"/api/v1/namespaces/kube-system/pods/kube-scheduler-{host_kubelet.NAME}"
LEASE: Final = (
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
)
"""The Lease's duration: a scheduler that ended without releasing its Lease is replaced soon."""
_TURN_S: Final = 120.0
"""The timeout for a restart of kube-scheduler, with its probes and the previous Lease."""


class StaticPodState(NamedTuple):
    """The static pod's state in the API server: the hash of a manifest, and one start of its container."""

    hash: str
    uid: str
    container: str


class StaticScheduler:
    """kube-scheduler as a static pod."""

    def __init__(self, whole: KubernetesHost) -> None:
        self.manifest = whole.path(f"{host_kubelet.MANIFESTS}/kube-scheduler.yaml")
        self._whole = whole
        self._targets: dict[Address, ForwardingTarget] = {}

    def write(self, text: str) -> None:
        """Replace the manifest by a rename, as kubeadm does."""
        fresh = self.manifest.parents[1] / "kube-scheduler.new"
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.rename(self.manifest)

    def place(self, name: str, text: str) -> None:
        """Write another file beside the manifest."""
        (self.manifest.parent / name).write_text(text)

    def names(self) -> list[str]:
        """The files in the kubelet's folder of manifests."""
        return sorted(path.name for path in self.manifest.parent.iterdir())

    def hand_on(self, address: Address, url: str) -> None:
        """Forward connections to this address of the host to a server outside of it."""
        if address not in self._targets:
            self._whole.network.hand_on(address, lambda: self._targets[address])
        self._targets[address] = ForwardingTarget(network.address_of(url))

    def shown(self) -> StaticPodState:
        """The running pod, as in the API server."""
        return wait("the kubelet tells of its scheduler", self._seen, _TURN_S, self.told)

    def wait_another_than(self, before: StaticPodState) -> StaticPodState:
        """Wait until the kubelet runs the pod of another manifest instead."""

        def another() -> StaticPodState | None:
            seen = self._seen()
            return seen if seen and seen.hash != before.hash and seen.container != before.container else None

        return wait("kube-scheduler was started anew", another, _TURN_S, self.told)

    def wait_ready(self) -> StaticPodState:
        """Wait until the pod's probes succeed too."""

        def ready() -> StaticPodState | None:
            pod = self._pod()
            return self._seen() if pod and host_kubelet.is_ready(pod) else None

        return wait("kube-scheduler is ready", ready, _TURN_S, self.told)

    def told(self) -> object:
        """The state of the pod, for error messages."""
        pod = self._pod()
        return pod and pod.get("status"), pod and self._whole.log(pod, "kube-scheduler")

    def _pod(self) -> Object | None:
        return self._whole.plane.api.find(_MIRROR)

    def _seen(self) -> StaticPodState | None:
        pod = self._pod()
        statuses = (pod or {}).get("status", {}).get("containerStatuses", [])
        if not pod or not statuses or "running" not in statuses[0]["state"]:
            return None
        metadata = pod["metadata"]
        return StaticPodState(
            metadata["annotations"]["kubernetes.io/config.hash"], metadata["uid"], statuses[0]["containerID"]
        )


@contextlib.contextmanager
def running(whole: KubernetesHost) -> Iterator[StaticScheduler]:
    """kube-scheduler from a manifest in kubeadm's form."""
    minor, patch = host_kubelet.VERSION.split(".")[1:]
    user = whole.plane.user("system:kube-scheduler")
    config = whole.plane.kubectl(
        f"--kubeconfig={user.kubeconfig}", "config", "view", "--raw", "--flatten", "--minify"
    )
    _private(whole.path(f"{host_kubelet.KUBERNETES}/scheduler.conf"), config)
    running = StaticScheduler(whole)
    running.write(scheduler_manifests.text(_impatient(scheduler_manifests.pod(int(minor), patch))))
    try:
        running.shown()
        yield running
    finally:
        for path in running.manifest.parent.iterdir():
            path.unlink()
        wait("its pod is gone", lambda: None if running._pod() else True, _TURN_S, running.told)


def _impatient(pod: Object) -> Object:
    """The same pod with quick probes and a short Lease, because it is restarted many times."""
    (container,) = pod["spec"]["containers"]
    container["command"] += LEASE
    for probe in ("startupProbe", "livenessProbe"):
        container[probe]["initialDelaySeconds"] = 1
        container[probe]["periodSeconds"] = 1
    return pod


def _private(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
