"""A model of GPU allocation: an API server, replicas that bind pods, and one that collects garbage.

The allocations are the real ones (`agents.gpu.state`). Every call to the server is a message that may arrive late,
after its sender gave up, or never. Every process may be killed between two calls. The state of a replica lags behind.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, PODS, GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.kube.store import StoreWriter
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from tests.unit.agents.gpu.gpu_cluster_state_builders import lease, node, pod
from tests.unit.incremental_agent_states import built

NODES = ("n1", "n2")
CAPACITY = 1
"""The number of pods per GPU. Each node has one GPU."""
_NODE = node("i915=1", "0")
_TRIES = 3


class ModelPod(NamedTuple):
    """A pod on the server."""

    name: str
    uid: str
    version: int
    on: str = ""
    gpus: str = ""
    """The GPUs in its annotation."""
    holds: str = ""
    """The GPU that its containers got at the bind. Later writes do not change it."""
    has_ended: bool = False


class ModelRecord(NamedTuple):
    version: int
    entries: Mapping[str, Reservation]


class ModelResponse(NamedTuple):
    ok: bool
    found: Any = None


LOST = ModelResponse(ok=False, found="lost")
"""The response of a call that may or may not have arrived."""

Call = Callable[["ModelApiServer"], ModelResponse]
Process = Generator[Call, ModelResponse, None]


class ModelApiServer:
    """Pods and allocation records, with the guarantees of the real API server: ordered writes and preconditions."""

    def __init__(self) -> None:
        self.version = 10
        self.pods: dict[str, ModelPod] = {}
        self.allocation_record: dict[str, ModelRecord] = {}
        self.history: list[tuple[int, str, str, Any]] = []
        """Tuples of version, kind, name, and the object or None."""

    def put_pod(self, pod: ModelPod) -> ModelPod:
        self.version += 1
        self.pods[pod.name] = pod._replace(version=self.version)
        self.history.append((self.version, PODS, pod.name, self.pods[pod.name]))
        return self.pods[pod.name]

    def delete_pod(self, name: str) -> None:
        self.version += 1
        del self.pods[name]
        self.history.append((self.version, PODS, name, None))

    def get_pod(self, name: str) -> ModelResponse:
        pod = self.pods.get(name)
        return ModelResponse(ok=pod is not None, found=pod)

    def get_record(self, on: str) -> ModelResponse:
        return ModelResponse(ok=True, found=self.allocation_record.get(on))

    def put_record(self, on: str, entries: Mapping[str, Reservation], version: int | None) -> ModelResponse:
        """Replace the record of this version; None creates it."""
        known = self.allocation_record.get(on)
        if (known.version if known else None) != version:
            return ModelResponse(ok=False)
        self.version += 1
        self.allocation_record[on] = ModelRecord(self.version, dict(entries))
        self.history.append((self.version, ALLOCATION_RECORDS, on, self.allocation_record[on]))
        return ModelResponse(ok=True, found=self.allocation_record[on])

    def bind(self, seen: ModelPod, on: str, gpu: str) -> ModelResponse:
        """`POST pods/binding` with the uid and the resourceVersion as preconditions."""
        pod = self.pods.get(seen.name)
        if pod is None or (pod.uid, pod.version) != (seen.uid, seen.version) or pod.on or pod.has_ended:
            return ModelResponse(ok=False)
        return ModelResponse(ok=True, found=self.put_pod(pod._replace(on=on, gpus=gpu, holds=gpu)))

    def drop_claim(self, seen: ModelPod) -> ModelResponse:
        """`PATCH` an annotation with the same preconditions. Bindings that are on their way fail after that."""
        pod = self.pods.get(seen.name)
        if pod is None or (pod.uid, pod.version) != (seen.uid, seen.version):
            return ModelResponse(ok=False)
        return ModelResponse(ok=True, found=self.put_pod(pod))

    def in_use(self) -> dict[tuple[str, str], list[str]]:
        """The pods that use each GPU, by node and GPU."""
        holders: dict[tuple[str, str], list[str]] = {}
        for stored in self.pods.values():
            if stored.on and not stored.has_ended:
                holders.setdefault((stored.on, stored.holds), []).append(stored.name)
        return holders


class ModelReplica:
    """A replica: its pods and allocation records, each as old as its watch."""

    def __init__(self, server: ModelApiServer) -> None:
        self.server = server
        self.start()

    def start(self) -> None:
        """List all objects, as after a restart."""
        self.state = GpuStateBuilder(INTEL)
        self.stores: dict[str, StoreWriter[Any]] = {PODS: StoreWriter(), ALLOCATION_RECORDS: StoreWriter()}
        self.seen = dict.fromkeys(self.stores, len(self.server.history))
        self.known = dict(self.server.pods)
        """The server's pods in the version that the watch has reached."""
        for stored in self.server.pods.values():
            self.stores[PODS].add(_pod(stored))
        for on, held in self.server.allocation_record.items():
            self.stores[ALLOCATION_RECORDS].add(_lease(on, held))
        for writer in self.stores.values():
            writer.finish(str(self.server.version))

    def watch(self, kind: str, most: int) -> None:
        """Receive at most `most` events; those of other kinds count as bookmarks."""
        for version, of, name, stored in self.server.history[self.seen[kind] :][:most]:
            self.seen[kind] += 1
            writer = self.stores[kind]
            if kind == of == PODS:
                self.known[name] = stored
            if of != kind:
                writer.advance_resource_version(str(version))
            elif stored is None:
                writer.remove(("d", name) if kind == PODS else ("nw", f"gpu-{name}"), str(version))
            else:
                writer.apply(_pod(stored) if kind == PODS else _lease(name, stored), str(version))

    def learn(self, on: str, held: ModelRecord | None) -> None:
        if held is not None:
            self.stores[ALLOCATION_RECORDS].apply_response(_lease(on, held), str(held.version))

    def build(self) -> GpuState:
        objects = {kind: writer.store.snapshot() for kind, writer in self.stores.items()}
        versions = {kind: writer.store.resource_version for kind, writer in self.stores.items()}
        cluster_state = ClusterState(INDEX, objects, MetricsSnapshot(), 0.0, NODE_OBJECTS, versions)
        state: GpuState = built(self.state, cluster_state)
        return state

    def record(self, on: str) -> tuple[int | None, dict[str, Reservation]]:
        """The newest allocation record that the replica knows: its version and its entries."""
        record = self.stores[ALLOCATION_RECORDS].store.get("nw", f"gpu-{on}")
        if record is None:
            return None, {}
        return int(record.metadata.resourceVersion), dict(allocation_record.parse_lease(record).entries)

    def plan(self, seen: ModelPod, on: str) -> str | None:
        """The GPU that the pod would get, or the one that it already has."""
        allocations = self.build().nodes[on].allocations
        if seen.uid in allocations.by_uid:
            return allocations.by_uid[seen.uid].gpus[0][0]
        for gpu in ("card0",):
            if sum(allocations.amounts.get(gpu, {}).values()) < CAPACITY:
                return gpu
        return None

    def bind(self, name: str, on: str) -> Process:
        """A bind request of kube-scheduler. It may end at any call. Its first read of the pod may be outdated."""
        held = self.known.get(name)
        for _ in range(_TRIES):
            seen = held or (yield lambda server: server.get_pod(name)).found
            held = None
            if not isinstance(seen, ModelPod) or seen.on or seen.has_ended:
                return
            gpu = yield from self._claim(seen, on)
            if gpu is None:
                return
            answer = yield lambda server, seen=seen, gpu=gpu: server.bind(seen, on, gpu)  # type: ignore[misc]
            if answer.ok:
                return
            if answer is LOST:
                yield from self.clear(on, seen.name, seen.uid)
                return

    def _claim(self, seen: ModelPod, on: str) -> Generator[Call, ModelResponse, str | None]:
        for _ in range(_TRIES):
            gpu = self.plan(seen, on)
            if gpu is None:
                return None
            version, entries = self.record(on)
            for uid in self.build().nodes[on].allocations.stale:
                entries.pop(uid, None)
            before = entries[seen.uid].seen if seen.uid in entries else ""
            version_seen = allocation_record.latest_planned_version(before, str(seen.version))
            charged = ({"gpu.intel.com/i915": 1},)
            entries[seen.uid] = Reservation(f"d/{seen.name}", gpu, seen=version_seen, charged=charged)
            if (yield from self._write(on, entries, version)):
                return gpu
        return None

    def _write(
        self, on: str, entries: Mapping[str, Reservation], version: int | None
    ) -> Generator[Call, ModelResponse, bool]:
        answer = yield lambda server: server.put_record(on, entries, version)
        if answer.ok:
            self.learn(on, answer.found)
            return True
        looked = yield lambda server: server.get_record(on)
        if looked is not LOST:
            self.learn(on, looked.found)
        return False

    def clear(self, on: str, name: str, uid: str) -> Process:
        """Remove an entry whose Binding did not arrive, after making sure that it can no longer succeed."""
        entry = self.record(on)[1].get(uid)
        if entry is None:
            return
        looked = yield lambda server: server.get_pod(name)
        if looked is LOST:
            return
        pod = looked.found
        if pod is not None and pod.uid == uid:
            if pod.on == on:
                return
            if not pod.on and pod.version == int(entry.seen):
                dropped = yield lambda server: server.drop_claim(pod)
                if not dropped.ok:
                    return
        for _ in range(_TRIES):
            version, entries = self.record(on)
            if uid not in entries or entries[uid].seen != entry.seen:
                return
            del entries[uid]
            if (yield from self._write(on, entries, version)):
                return

    def sweep(self) -> list[tuple[str, str, str]]:
        """The node, pod and uid of each entry whose pod is not bound, as far as the replica knows."""
        pods = []
        for on, node_state in self.build().nodes.items():
            for uid, held in node_state.allocations.by_uid.items():
                key = tuple(held.pod.split("/"))
                known = self.stores[PODS].store.get(key[0], key[1])
                if known is None or known.metadata.uid != uid or not known.spec.nodeName:
                    pods.append((on, key[1], uid))
        return pods


INDEX = NodeIndex(NODES)
NODE_OBJECTS: Mapping[tuple[str, str], Any] = {("", name): _NODE for name in NODES}


def _pod(stored: ModelPod) -> AllocatedPod:
    phase = "Succeeded" if stored.has_ended else "Running" if stored.on else "Pending"
    return pod(stored.name, stored.on, stored.gpus or None, ["i915=1"], uid=stored.uid, phase=phase)


def _lease(on: str, held: ModelRecord) -> Any:
    return lease(on, str(held.version), **held.entries)
