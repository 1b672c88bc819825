"""Builds the handle of a controller for tests."""

from typing import Any

from nodewise.agent import NodeIndex, Snapshot
from nodewise.agent.controller_interface import Handle, ReservationCleaner, WriteCounter
from nodewise.base.clock import Clock
from nodewise.kube.api_server_interface import Api
from nodewise.kube.event_recorder import EventRecorder, EventReporter
from nodewise.kube.store import Store, StoreWriter
from nodewise.observe.metrics_registry import MetricsRegistry


class FakeRelister:
    """A `controllers.Relister` that returns the stores that a test sets."""

    def __init__(self) -> None:
        self.fresh: dict[str, Store[Any]] = {}
        self.begun = 0

    async def read(self, name: str) -> Store[Any]:
        return self.fresh.get(name) or StoreWriter[Any]().store

    def begin(self) -> None:
        self.begun += 1


def build_handle(
    api: Api,
    objects: dict[str, Store[Any]],
    nodes: Store[Any],
    clock: Clock,
    metrics_registry: MetricsRegistry | None = None,
    *,
    snapshot: Snapshot | None = None,
    relister: FakeRelister | None = None,
    reservations: ReservationCleaner | None = None,
) -> Handle:
    metrics_registry = metrics_registry or MetricsRegistry()
    recorder = EventRecorder(api, EventReporter("test", "test"), clock, metrics_registry)
    seen = snapshot or Snapshot(NodeIndex(), {}, 0.0)
    more = ("nodewise", lambda: seen, relister or FakeRelister(), reservations, api)
    return Handle(api, objects, nodes, recorder, clock, metrics_registry, WriteCounter(), *more)
