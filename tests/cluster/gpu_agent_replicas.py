"""Replicas of nodewise with the gpu agent behind one Service, and the history of pods."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import plain_http
from tests.cluster import gpu_cluster, load_balancer, scheduler_calls
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.load_balancer import BalancedEndpoint, LoadBalancer
from tests.cluster.namespace_sandboxes import Sandbox, wait


class GpuReplicas:
    """Replicas with the gpu agent. `entry` is the Service's entry in a scheduler configuration."""

    def __init__(self, plane: ControlPlane, folder: Path, service: LoadBalancer) -> None:
        self.running: list[ExtenderProcess] = []
        self.certificates = CertificateFiles(folder)
        self._service = service
        self._plane = plane
        self._folder = folder
        self._user = gpu_cluster.user(plane)
        self._stack = contextlib.ExitStack()

    def start(self) -> ExtenderProcess:
        """Starts a replica and waits until the Service forwards connections to it."""
        replica = self._stack.enter_context(
            gpu_cluster.extender(self._plane, self._folder, certificates=self.certificates, by=self._user)
        )
        self.running.append(replica)
        self._publish()
        wait(
            "the Service has it",
            lambda: BalancedEndpoint(replica.url, replica.health) in self._service.ready or None,
        )
        return replica

    def kill(self, replica: ExtenderProcess) -> None:
        """Kills a replica at once and removes it from the Service."""
        replica.process.kill()
        self.running.remove(replica)
        self._publish()

    def entry(self) -> Object:
        return gpu_cluster.entry(self.running[0], urlPrefix=f"{self._service.url}/scheduler")

    def stop(self) -> None:
        self._stack.close()

    def _publish(self) -> None:
        self._service.set_endpoints(
            *(BalancedEndpoint(replica.url, replica.health) for replica in self.running)
        )


@contextlib.contextmanager
def behind_a_service(plane: ControlPlane, folder: Path, count: int) -> Iterator[GpuReplicas]:
    with load_balancer.serving() as service:
        made = GpuReplicas(plane, folder, service)
        try:
            for _ in range(count):
                made.start()
            yield made
        finally:
            made.stop()


class PodHistory:
    """Every state of the pods of a namespace, in the order of the watch."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
        self.events: list[tuple[str, Object]] = []
        self.ended = ""
        self._changed = threading.Condition()
        self.now: dict[str, Object] = {}
        """The newest state of the existing pods, by name."""

    def see(self, line: bytes) -> None:
        event = json.loads(line)
        kind, pod = event["type"], event["object"]
        with self._changed:
            self.events.append((kind, pod))
            if kind == "DELETED":
                self.now.pop(pod["metadata"]["name"], None)
            else:
                self.now[pod["metadata"]["name"]] = pod
            self._changed.notify_all()

    def bound(self) -> int:
        return sum("nodeName" in pod["spec"] for pod in list(self.now.values()))

    def wait_bound(self, count: int, deadline_s: float = 240) -> None:
        """Waits until at least `count` existing pods are bound."""
        with self._changed:
            ok = self._changed.wait_for(lambda: self.bound() >= count or bool(self.ended), deadline_s)
        waiting = [pod for pod in list(self.now.values()) if "nodeName" not in pod["spec"]]
        assert ok, (self.bound(), count, waiting[:1])
        assert not self.ended

    def wait_empty(self, deadline_s: float = 120) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self.now, deadline_s), len(self.now)

    def most_held(self, resource: str) -> Mapping[tuple[str, str], int]:
        """By node and GPU, the maximum amount of a resource that pods held at the same time."""
        most: dict[tuple[str, str], int] = {}
        held: dict[tuple[str, str], int] = {}
        by_uid: dict[str, Mapping[tuple[str, str], int]] = {}
        for kind, pod in self.events:
            uid = pod["metadata"]["uid"]
            for place, amount in by_uid.pop(uid, {}).items():
                held[place] -= amount
            if kind == "DELETED" or "nodeName" not in pod["spec"]:
                continue
            by_uid[uid] = held_of_pod(pod, resource)
            for place, amount in by_uid[uid].items():
                held[place] = held.get(place, 0) + amount
                most[place] = max(most.get(place, 0), held[place])
        return most


def held_of_pod(pod: Object, resource: str) -> dict[tuple[str, str], int]:
    """The amount of a resource that a bound pod of one container holds, by node and GPU."""
    cards = gpu_cluster.cards_of(pod)
    wanted = int(pod["spec"]["containers"][0]["resources"]["requests"][resource])
    return {(pod["spec"]["nodeName"], card): wanted // len(cards) for card in cards}


@contextlib.contextmanager
def record_history(sandbox: Sandbox) -> Iterator[PodHistory]:
    """Records the history of a namespace's pods while the context is open."""
    history = PodHistory(sandbox)
    with scheduler_calls.watch_pods(sandbox.plane, history):
        yield history


def held_gpus(replica: ExtenderProcess) -> dict[str, Any]:
    """The GPUs that pods hold according to a replica: allocations by node and pod, without unused nodes."""
    state = plain_http.get(f"{replica.health}/state/gpu", timeout=30).json()["nodes"]
    return {name: node["pods"] for name, node in state.items() if node["pods"]}
