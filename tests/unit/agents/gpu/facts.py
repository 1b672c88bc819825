"""Nodes, pods, ledgers and worlds, in few words."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu.books import CARDS, TILES
from nodewise.agents.gpu.cards import GpuNode
from nodewise.agents.gpu.ledger import Entry
from nodewise.agents.gpu.pods import BookedPod
from nodewise.agents.gpu.profile import INTEL
from nodewise.agents.gpu.state import LEDGERS, PODS, GpuState, Slot
from nodewise.binder import HOLDINGS, LedgerLease
from nodewise.metrics.snapshot import MetricsSnapshot
from tests.unit.changes import built

PREFIX = "gpu.intel.com/"
SHORT = {"mc": "millicores", "mem": "memory.max", "t": "tiles", "mon": "i915_monitoring"}
ONE = "i915=1 mc=100"


def amounts(text: str) -> dict[str, int]:
    """`i915=1 mc=100` with full names."""
    pairs = (part.split("=") for part in text.split())
    return {PREFIX + SHORT.get(name, name): int(value) for name, value in pairs}


def node(
    allocatable: str = "i915=4 mc=2000", numbers: str = "0.1", *, cpu: str = "", **labels: str
) -> GpuNode:
    metadata = {"labels": {f"{PREFIX}gpu-numbers": numbers, **labels}}
    given = {name: str(amount) for name, amount in amounts(allocatable).items()}
    given |= {"cpu": cpu} if cpu else {}
    return read(GpuNode, {"metadata": metadata, "status": {"allocatable": given}})


def pod(
    name: str,
    on: str = "",
    cards: str | None = None,
    requests: Iterable[str] = (ONE,),
    *,
    tiles: str | None = None,
    uid: str = "",
    phase: str = "Running",
    cpu: str = "",
) -> BookedPod:
    """Each of its containers requests as much CPU."""
    notes = {key: value for key, value in {CARDS: cards, TILES: tiles}.items() if value is not None}
    containers = [
        {"name": f"c{number}", "resources": {"requests": amounts(text) | ({"cpu": cpu} if cpu else {})}}
        for number, text in enumerate(requests)
    ]
    metadata = {"name": name, "namespace": "d", "uid": uid or f"uid-{name}", "annotations": notes}
    spec = {"nodeName": on, "containers": containers}
    return read(BookedPod, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def entry(name: str, cards: str, seen: str = "5", charged: Iterable[str] = (ONE,), tiles: str = "") -> Entry:
    return Entry(f"d/{name}", cards, tiles, 7.0, seen, tuple(amounts(text) for text in charged))


def lease(on: str, version: str = "1", **entries: Entry | Any) -> LedgerLease:
    """By pod uid; what is no entry is taken as it is."""
    plain = {
        uid.replace("_", "-"): dict(ledgers.wire(one)) if isinstance(one, Entry) else one
        for uid, one in entries.items()
    }
    return lease_of(on, json.dumps(plain), version)


def lease_of(on: str, text: str, version: str = "1") -> LedgerLease:
    metadata = {"name": f"gpu-{on}", "namespace": "nw", "resourceVersion": version}
    return read(LedgerLease, {"metadata": {**metadata, "annotations": {HOLDINGS: text}}})


def read(type_: type[Any], value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type_)


def cluster_state(
    nodes: Mapping[str, GpuNode],
    pods: Iterable[BookedPod] = (),
    leases: Iterable[LedgerLease] = (),
    version: str = "10",
    index: NodeIndex | None = None,
) -> ClusterState:
    objects: dict[str, Any] = {
        PODS: {(one.metadata.namespace, one.metadata.name): one for one in pods},
        LEDGERS: {(one.metadata.namespace, one.metadata.name): one for one in leases},
    }
    by_key = {("", name): one for name, one in nodes.items()}
    return ClusterState(
        index or NodeIndex(nodes), objects, MetricsSnapshot(), 0.0, by_key, {PODS: version, LEDGERS: version}
    )


def agent_state(given: ClusterState, state: GpuState | None = None) -> Slot:
    found: Slot = built(state or GpuState(INTEL), given)
    return found


def charged(found: Slot, on: str = "n1") -> dict[str, dict[str, int]]:
    """What is held of each card, resources without their prefix."""
    books = found.nodes[on].books
    return {
        card: {name.removeprefix(PREFIX): amount for name, amount in held.items()}
        for card, held in books.amounts.items()
    }


def cpu_free(found: Slot) -> dict[str, int]:
    """By node with cards."""
    assert found.cpu_free is not None
    return {name: int(found.cpu_free[row]) for name, row in found.rows.items()}


def laid_out(found: Slot) -> dict[str, Any]:
    """By node with cards: each card's free amounts of what it has, as the layout has them."""
    layout = found.layout
    return {
        name: {
            card: {
                resource: int(layout.free[resource][place, row])
                for resource in sorted(layout.free)
                if layout.capacity[resource][place, row]
            }
            for place, card in enumerate(layout.cards(row))
        }
        for name, row in found.rows.items()
    }
