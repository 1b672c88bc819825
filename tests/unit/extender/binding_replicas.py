"""Replicas that bind pods: real snapshot caches, reflectors and allocation records, and one in-memory API server."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from nodewise.agent import ClusterState, Inputs, Snapshot, Watched
from nodewise.agent.bind_plugin_interface import (
    ALLOCATION_RECORD_LABEL,
    RESERVATIONS_ANNOTATION,
    AllocationRecordLease,
    AllocationStateBuilder,
    BindingFields,
    BindPlan,
    BindPlugin,
    Refusal,
)
from nodewise.base.errors import NodewiseError, Problem, Unavailable
from nodewise.engine.snapshot_cache import SnapshotCache, Stores
from nodewise.extender.binding import Bindings, BindOutcome
from nodewise.extender.reservation_writer import BindContext
from nodewise.extender.wire_format import BindingArgs
from nodewise.kube.api_server_interface import DEADLINE_S, NONE, Params
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import LEASES, NODES, PODS
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.kube.virtual_time import VirtualClock

OURS = "nodewise"
DEVICE_ANNOTATION = "device"
BIND_DEADLINE_S = 4.0
POD = merge("Pod", BindingFields)


class NoFreeDevice(msgspec.Struct, frozen=True):
    is_failure = False

    def text(self) -> str:
        return "no device is free"

    def remedy(self) -> str:
        return ""


class OneDeviceAgent(BindPlugin[Any, Any], AllocationStateBuilder[Any]):
    """An agent that gives each pod the first free device of its node.

    Its state contains the reservations by node and pod uid.
    """

    name = "t"
    allocation_records = "allocation_records"
    pods = "pods"
    bind_errors = "status"
    inputs = Inputs(frozenset({"allocation_records"}))

    def __init__(self, devices: str = "a b c") -> None:
        """Every node has these devices."""
        self._devices = devices.split()

    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        if pod.metadata.name.startswith("plain"):
            return None
        on_node = snapshot.agent_states[self.name].get(node, {})
        before = on_node.get(pod.metadata.uid)
        taken = {reservation["device"] for reservation in on_node.values()}
        free = [device for device in self._devices if device not in taken]
        if before is None and not free:
            return Refusal("will not fit", NoFreeDevice())
        device = before["device"] if before else free[0]
        reservation = {"device": device, "seen": pod.metadata.resourceVersion, "at": now}
        if before and before["seen"] == reservation["seen"]:
            reservation = before
        return BindPlan(reservation, {DEVICE_ANNOTATION: device}, frozenset(), device)

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        yield
        return {
            name.removeprefix("t-"): _reservations_of(record)
            for (_, name), record in cluster_state.objects["allocation_records"].items()
        }

    def apply_allocation_record(
        self, agent_state: Any, node: str, record: AllocationRecordLease | None
    ) -> Any:
        on_node = _reservations_of(record) if record else {}
        return agent_state if agent_state.get(node, {}) == on_node else {**agent_state, node: on_node}


def _reservations_of(record: AllocationRecordLease) -> dict[str, Any]:
    annotations = record.metadata.annotations or {}
    return msgspec.json.decode(annotations.get(RESERVATIONS_ANNOTATION, "{}"), type=dict[str, Any])


class LossyApi(FakeApi):
    """An API server that responds slowly, and loses the requests or responses that a test selects."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.slow_s = 0.002
        self.before: Callable[[str, str], None] = lambda verb, path: None
        """Called before each write; it may raise an exception or change objects."""
        self.after: Callable[[str, str], None] = lambda verb, path: None
        """Called after each write and before its response."""

    async def _record_call(self, verb: str, path: str) -> None:
        if verb != "watch":
            await asyncio.sleep(self.slow_s * self._random.random())
        self.before(verb, path)
        await super()._record_call(verb, path)

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._respond("create", path, super().create(path, body, params, timeout_s=timeout_s))

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._respond("replace", path, super().replace(path, body, params, timeout_s=timeout_s))

    async def _respond(self, verb: str, path: str, call: Any) -> bytes:
        response: bytes = await call
        self.after(verb, path)
        await asyncio.sleep(self.slow_s * self._random.random())
        return response

    def writes(self, of: str = "") -> list[str]:
        """The verbs of all writes to paths that contain a text. The verb of a Binding is `bind`."""
        calls = [(verb, path) for verb, path in self.calls if verb not in {"get", "watch"} and of in path]
        return ["bind" if path.endswith("/binding") else verb for verb, path in calls]


class Replica:
    """A replica of the extender."""

    def __init__(
        self,
        api: LossyApi,
        snapshot_cache: SnapshotCache,
        bindings: Bindings,
        metrics_registry: MetricsRegistry,
    ) -> None:
        self.api = api
        self.snapshot_cache = snapshot_cache
        self.bindings = bindings
        self.metrics_registry = metrics_registry

    async def bind(self, pod: Mapping[str, Any], node: str = "n1") -> BindOutcome:
        return await self.bindings.bind(binding_args(pod, node))

    def held_devices(self, node: str = "n1") -> dict[str, str]:
        """The pod uid by device, in the state that a filter call uses."""
        return {
            reservation["device"]: uid
            for uid, reservation in self.snapshot_cache.snapshot.agent_states["t"].get(node, {}).items()
        }


def binding_args(pod: Mapping[str, Any], node: str = "n1") -> BindingArgs:
    meta = pod["metadata"]
    return BindingArgs(meta["name"], meta["namespace"], meta["uid"], node)


@asynccontextmanager
async def start_replica(
    api: LossyApi, agent: Any = None, keep: Callable[[Any], Any] | None = None
) -> AsyncIterator[Replica]:
    """Run a replica until the block ends, which stops it at any point like a kill."""
    agent = agent or OneDeviceAgent()
    clock, metrics_registry = VirtualClock(), MetricsRegistry()
    watched = [
        Watched("pods", PODS, POD, keep),
        Watched(
            "allocation_records",
            LEASES,
            AllocationRecordLease,
            None,
            True,
            {"labelSelector": f"{ALLOCATION_RECORD_LABEL}=t"},
        ),
    ]
    targets = {"nodes": ReflectorTarget(NODES, merge("Node"))} | {
        entry.name: ReflectorTarget(
            entry.resource, entry.type, OURS if entry.own_namespace else "", entry.selectors, entry.keep
        )
        for entry in watched
    }
    reflectors = {
        name: Reflector(api, target, clock, metrics_registry, lambda: 0.5) for name, target in targets.items()
    }
    objects = {name: reflector.store for name, reflector in reflectors.items() if name != "nodes"}
    apply_response = {name: reflector.apply_response for name, reflector in reflectors.items()}
    stores = Stores(reflectors["nodes"].store, objects, apply_response)
    refresher = MetricsRefresher([], RefreshOptions(), clock, metrics_registry)
    snapshot_cache = SnapshotCache({"t": agent}, stores, refresher, clock, metrics_registry, 5.0)
    context = BindContext(
        api, OURS, objects["allocation_records"], snapshot_cache, agent, agent, clock, metrics_registry
    )
    bindings = Bindings(context, objects["pods"], POD, BIND_DEADLINE_S, None)
    before = asyncio.all_tasks()
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors.values()]
    tasks.append(asyncio.create_task(snapshot_cache.run()))
    while snapshot_cache.waiting_for():
        await asyncio.sleep(0.01)
    try:
        yield Replica(api, snapshot_cache, bindings, metrics_registry)
    finally:
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}:
            if task in tasks or _is_ours(task):
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _is_ours(task: "asyncio.Task[Any]") -> bool:
    return task.get_coro().__qualname__.startswith(("Bindings.", "ReservationWriter.", "_Bind."))  # type: ignore[union-attr]


def put_pod(api: LossyApi, name: str, **meta: Any) -> dict[str, Any]:
    return api.put(PODS, {"metadata": {"name": name, "namespace": "d", **meta}, "spec": {"containers": []}})


def pod(api: LossyApi, name: str) -> dict[str, Any]:
    return api.objects(PODS)["d", name]


def node_of(api: LossyApi, name: str) -> str:
    return str(pod(api, name)["spec"].get("nodeName", ""))


def reservations(api: LossyApi, node: str = "n1") -> dict[str, Any]:
    """The reservations in the node's allocation record, by pod uid."""
    lease = api.objects(LEASES).get((OURS, f"t-{node}"), {"metadata": {}})
    by_uid: dict[str, Any] = json.loads(
        lease["metadata"].get("annotations", {}).get(RESERVATIONS_ANNOTATION, "{}")
    )
    return by_uid


def lost_call() -> NodewiseError:
    return Unavailable("a call", [Problem("", "no answer", "")])


def once(verb: str, part: str, what: Callable[[], None]) -> Callable[[str, str], None]:
    """A hook for `LossyApi.before` and `after` that acts on the first write of the kind."""
    left = SimpleNamespace(count=1)

    def hook(called_verb: str, path: str) -> None:
        if called_verb == verb and part in path and left.count:
            left.count -= 1
            what()

    return hook


def raising(error: NodewiseError) -> Callable[[], None]:
    def raise_() -> None:
        raise error

    return raise_


def check_no_double_allocation(api: LossyApi) -> None:
    """In every state of the API server, pods on a node have different devices, and bound pods have reservations."""
    bound: dict[tuple[str, str], str] = {}
    by_uid: dict[str, tuple[str, str]] = {}
    for old, new in api.changes(PODS):
        item = new or old or {}
        uid, place = item["metadata"]["uid"], None
        if (
            new
            and (device := new["metadata"].get("annotations", {}).get(DEVICE_ANNOTATION))
            and new["spec"].get("nodeName")
        ):
            place = (new["spec"]["nodeName"], device)
        if uid in by_uid and by_uid[uid] != place:
            del bound[by_uid.pop(uid)]
        if place:
            assert bound.setdefault(place, uid) == uid, f"{place} allocated twice"
            by_uid[uid] = place
    for (node, device), uid in bound.items():
        assert reservations(api, node)[uid]["device"] == device
