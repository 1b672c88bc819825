"""kube-scheduler as a static pod of kubeadm's form on a host of the control plane."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.api_client import Object
from tests.cluster.namespace_sandboxes import wait
from tests.conformance.configure import scheduler_manifests
from tests.node import host_with_kubelet, loopback_forwarding
from tests.node.host_with_kubelet import KubernetesHost
from tests.node.loopback_forwarding import Address, ForwardingTarget

_MIRROR: Final = f"/api/v1/namespaces/kube-system/pods/kube-scheduler-{host_with_kubelet.NAME}"
LEASE: Final = (
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
)
"""The Lease's duration: a scheduler that ended without releasing its Lease is replaced soon."""
_TURN_S: Final = 120.0  # the timeout for a restart of kube-scheduler, with its probes and the previous Lease


class StaticPodState(NamedTuple):
    """The static pod's state in the API server: the hash of a manifest, and one start of its container."""

    hash: str
    uid: str
    container: str


class StaticScheduler:
    """kube-scheduler as a static pod."""

    def __init__(self, kube_host: KubernetesHost) -> None:
        self.manifest = kube_host.path(f"{host_with_kubelet.MANIFESTS}/kube-scheduler.yaml")
        self._kube_host = kube_host
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

    def forward(self, address: Address, url: str) -> None:
        """Forward connections to this address of the host to a server outside of it."""
        if address not in self._targets:
            self._kube_host.network.forward(address, lambda: self._targets[address])
        self._targets[address] = ForwardingTarget(loopback_forwarding.address_of(url))

    def current_state(self) -> StaticPodState:
        """The running pod, as in the API server."""
        return wait("the kubelet tells of its scheduler", self._seen, _TURN_S, self.describe_state)

    def wait_replaced_pod(self, before: StaticPodState) -> StaticPodState:
        """Wait until the kubelet runs the pod of another manifest instead."""

        def another() -> StaticPodState | None:
            seen = self._seen()
            return seen if seen and seen.hash != before.hash and seen.container != before.container else None

        return wait("kube-scheduler was started anew", another, _TURN_S, self.describe_state)

    def wait_ready(self) -> StaticPodState:
        """Wait until the pod's probes succeed too."""

        def ready() -> StaticPodState | None:
            pod = self._pod()
            return self._seen() if pod and host_with_kubelet.is_ready(pod) else None

        return wait("kube-scheduler is ready", ready, _TURN_S, self.describe_state)

    def describe_state(self) -> object:
        """The state of the pod, for error messages."""
        pod = self._pod()
        return pod and pod.get("status"), pod and self._kube_host.log(pod, "kube-scheduler")

    def _pod(self) -> Object | None:
        return self._kube_host.plane.api.find(_MIRROR)

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
def running(kube_host: KubernetesHost) -> Iterator[StaticScheduler]:
    """kube-scheduler from a manifest in kubeadm's form."""
    minor, patch = host_with_kubelet.VERSION.split(".")[1:]
    user = kube_host.plane.user("system:kube-scheduler")
    config = kube_host.plane.kubectl(
        f"--kubeconfig={user.kubeconfig}", "config", "view", "--raw", "--flatten", "--minify"
    )
    _private(kube_host.path(f"{host_with_kubelet.KUBERNETES}/scheduler.conf"), config)
    running = StaticScheduler(kube_host)
    running.write(
        scheduler_manifests.to_yaml(_with_short_timeouts(scheduler_manifests.kubeadm_pod(int(minor), patch)))
    )
    try:
        running.current_state()
        yield running
    finally:
        for path in running.manifest.parent.iterdir():
            path.unlink()
        wait("its pod is gone", lambda: None if running._pod() else True, _TURN_S, running.describe_state)


def _with_short_timeouts(pod: Object) -> Object:
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
