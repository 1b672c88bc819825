"""Replicas that bind pods: the real keeper, reflectors and ledgers over one API server in memory, and an agent whose
pods take one card each, the first that is free."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from nodewise.agent import ClusterState, Inputs, MetricRequest, Snapshot, Watched
from nodewise.binder import HOLDINGS, LEDGER, BindingFields, BindPlan, LedgerLease, Refusal
from nodewise.errors import NodewiseError, Problem, Unavailable
from nodewise.extender.binding import Bindings, Outcome
from nodewise.extender.reservations import Ground
from nodewise.extender.snapshot_cache import SnapshotCache, Stores
from nodewise.extender.wire_format import BindingArgs
from nodewise.kube.api import DEADLINE_S, NONE, Params
from nodewise.kube.field_merge import merge
from nodewise.kube.reflector import Reflector, Target
from nodewise.kube.resources import LEASES, NODES, PODS
from nodewise.metrics.refresher import Refresher, RefreshOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.simulate.in_memory_api import FakeApi
from tests.unit.kube.virtual_time import VirtualClock

OURS = "nodewise"
CARD = "card"
DEADLINE_S_OF_A_BIND = 4.0
POD = merge("Pod", BindingFields)


class NoCard(msgspec.Struct, frozen=True):
    is_failure = False

    def text(self) -> str:
        return "no card is free"

    def remedy(self) -> str:
        return ""


class OneCardEach:
    """The agent and its state. A slot is, by node, the card that each pod holds; `cards` are those of every node."""

    name = "t"
    allocation_records = "ledgers"
    pods = "pods"
    inputs = Inputs(frozenset({"ledgers"}))

    def __init__(self, cards: str = "a b c") -> None:
        self._cards = cards.split()

    def bind(self, pod: Any, node: str, snapshot: Snapshot, now: float) -> BindPlan | Refusal | None:
        if pod.metadata.name.startswith("plain"):
            return None
        held = snapshot.agent_states[self.name].get(node, {})
        mine = held.get(pod.metadata.uid)
        free = [
            card for card in self._cards if card not in {reservation["card"] for reservation in held.values()}
        ]
        if mine is None and not free:
            return Refusal("will not fit", NoCard())
        card = mine["card"] if mine else free[0]
        entry = {"card": card, "seen": pod.metadata.resourceVersion, "at": now}
        if mine and mine["seen"] == entry["seen"]:
            entry = mine
        return BindPlan(entry, {CARD: card}, frozenset(), card)

    def metric_requests(self, objects: Any) -> frozenset[MetricRequest]:
        return frozenset()

    def problems(self, objects: Any) -> Mapping[str, tuple[str, ...]]:
        return {}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Any]:
        yield
        return {
            name.removeprefix("t-"): _held(record)
            for (_, name), record in cluster_state.objects["ledgers"].items()
        }

    def amended(self, agent_state: Any, node: str, ledger: LedgerLease | None) -> Any:
        held = _held(ledger) if ledger else {}
        return agent_state if agent_state.get(node, {}) == held else {**agent_state, node: held}


def _held(ledger: LedgerLease) -> dict[str, Any]:
    holdings: dict[str, Any] = json.loads((ledger.metadata.annotations or {}).get(HOLDINGS, "{}"))
    return holdings


class Api(FakeApi):
    """Takes its time, and loses calls or answers where a test says so."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self.slow_s = 0.002
        self.before: Callable[[str, str], None] = lambda verb, path: None
        """Called before a write is done, and may raise or change something."""
        self.after: Callable[[str, str], None] = lambda verb, path: None
        """Called after it was done and before it is answered."""

    async def _called(self, verb: str, path: str) -> None:
        if verb != "watch":
            await asyncio.sleep(self.slow_s * self._random.random())
        self.before(verb, path)
        await super()._called(verb, path)

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._answered("create", path, super().create(path, body, params, timeout_s=timeout_s))

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes:
        return await self._answered("replace", path, super().replace(path, body, params, timeout_s=timeout_s))

    async def _answered(self, verb: str, path: str, call: Any) -> bytes:
        answer: bytes = await call
        self.after(verb, path)
        await asyncio.sleep(self.slow_s * self._random.random())
        return answer

    def writes(self, of: str = "") -> list[str]:
        """The verbs of all writes so far, `bind` for a Binding; of paths that hold a text."""
        calls = [(verb, path) for verb, path in self.calls if verb not in {"get", "watch"} and of in path]
        return ["bind" if path.endswith("/binding") else verb for verb, path in calls]


class Replica:
    """A process that binds."""

    def __init__(self, api: Api, keeper: SnapshotCache, bindings: Bindings, meters: MetricsRegistry) -> None:
        self.api = api
        self.keeper = keeper
        self.bindings = bindings
        self.meters = meters

    async def bind(self, pod: Mapping[str, Any], node: str = "n1") -> Outcome:
        return await self.bindings.bind(asked(pod, node))

    def held(self, node: str = "n1") -> dict[str, str]:
        """Who holds which card, as a filter call would see it."""
        return {
            reservation["card"]: uid
            for uid, reservation in self.keeper.snapshot.agent_states["t"].get(node, {}).items()
        }


def asked(pod: Mapping[str, Any], node: str = "n1") -> BindingArgs:
    meta = pod["metadata"]
    return BindingArgs(meta["name"], meta["namespace"], meta["uid"], node)


@asynccontextmanager
async def start_replica(api: Api, agent: Any = None) -> AsyncIterator[Replica]:
    """A process for as long as the block lasts; at its end it is killed, whatever it does."""
    agent = agent or OneCardEach()
    clock, meters = VirtualClock(), MetricsRegistry()
    watched = [
        Watched("pods", PODS, POD),
        Watched("ledgers", LEASES, LedgerLease, None, True, {"labelSelector": f"{LEDGER}=t"}),
    ]
    targets = {"nodes": Target(NODES, merge("Node"))} | {
        entry.name: Target(entry.resource, entry.type, OURS if entry.own_namespace else "", entry.selectors)
        for entry in watched
    }
    reflectors = {
        name: Reflector(api, target, clock, meters, lambda: 0.5) for name, target in targets.items()
    }
    objects = {name: reflector.store for name, reflector in reflectors.items() if name != "nodes"}
    apply_response = {name: reflector.apply_response for name, reflector in reflectors.items()}
    stores = Stores(reflectors["nodes"].store, objects, apply_response)
    refresher = Refresher([], RefreshOptions(), clock, meters)
    keeper = SnapshotCache({"t": agent}, stores, refresher, clock, meters, 5.0)
    ground = Ground(api, OURS, objects["ledgers"], keeper, agent, agent, clock, meters)
    bindings = Bindings(ground, objects["pods"], POD, DEADLINE_S_OF_A_BIND, None)
    before = asyncio.all_tasks()
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors.values()]
    tasks.append(asyncio.create_task(keeper.run()))
    while keeper.waiting_for():
        await asyncio.sleep(0.01)
    try:
        yield Replica(api, keeper, bindings, meters)
    finally:
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}:
            if task in tasks or _is_ours(task):
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def _is_ours(task: "asyncio.Task[Any]") -> bool:
    return task.get_coro().__qualname__.startswith(("Bindings.", "Desk.", "_Bind."))  # type: ignore[union-attr]


def put_pod(api: Api, name: str, **meta: Any) -> dict[str, Any]:
    return api.put(PODS, {"metadata": {"name": name, "namespace": "d", **meta}, "spec": {"containers": []}})


def pod(api: Api, name: str) -> dict[str, Any]:
    return api.objects(PODS)["d", name]


def node_of(api: Api, name: str) -> str:
    return str(pod(api, name)["spec"].get("nodeName", ""))


def entries(api: Api, node: str = "n1") -> dict[str, Any]:
    """What stands in the node's ledger, by pod uid."""
    lease = api.objects(LEASES).get((OURS, f"t-{node}"), {"metadata": {}})
    holdings: dict[str, Any] = json.loads(lease["metadata"].get("annotations", {}).get(HOLDINGS, "{}"))
    return holdings


def lost() -> NodewiseError:
    return Unavailable("a call", [Problem("", "no answer", "")])


def once(verb: str, part: str, what: Callable[[], None]) -> Callable[[str, str], None]:
    """A hook for `Api.before` and `after`: at the first write of the kind."""
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


def never_twice(api: Api) -> None:
    """In no state that the server was ever in, two pods on a node had one card, or a bound one no entry for it."""
    bound: dict[tuple[str, str], str] = {}
    by_uid: dict[str, tuple[str, str]] = {}
    for old, new in api.changes(PODS):
        item = new or old or {}
        uid, place = item["metadata"]["uid"], None
        if new and (card := new["metadata"].get("annotations", {}).get(CARD)) and new["spec"].get("nodeName"):
            place = (new["spec"]["nodeName"], card)
        if uid in by_uid and by_uid[uid] != place:
            del bound[by_uid.pop(uid)]
        if place:
            assert bound.setdefault(place, uid) == uid, f"{place} given twice"
            by_uid[uid] = place
    for (node, card), uid in bound.items():
        assert entries(api, node)[uid]["card"] == card
