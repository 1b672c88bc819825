"""The node agent: serves allocations at its socket, collects garbage, and runs publishers. Its admin port."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from socket import socket
from typing import Final, Protocol

from nodewise.base.errors import NodewiseError, Unavailable
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions
from nodewise.server.server import admin_routes, admin_server
from nodewise_cpu.agent import socket_server
from nodewise_cpu.agent.allocation_service import AllocationService
from nodewise_cpu.agent.socket_server import ConnectionLimits, PeerProcess, SocketServer
from nodewise_cpu.node import task_garbage_collection
from nodewise_cpu.node.task_garbage_collection import CollectionRound
from nodewise_cpu.pool_allocations import Task

_END_OF_PROCESS_S: Final = 1.0
"""How long to wait for the end of a process after the end of its connection."""
_MIN_GAP_S: Final = 0.2
"""The least time between garbage collections, however many connections end."""
_OVERDUE_PERIODS: Final = 3
_OVERDUE_S: Final = 10.0
_MAX_ADMIN_BYTES: Final = 2**16
_DEFECT: Final = "a defect of ours"


class Publisher(Protocol):
    """Work after each garbage collection. An error is logged, and the next collection tries again."""

    @property
    def name(self) -> str:
        """The name in logs and metrics."""
        ...

    def publish(self, collection: CollectionRound) -> None: ...


class NodeAgent:
    """The agent of one node. `stop` ends `run`, from any thread."""

    def __init__(
        self,
        service: AllocationService,
        publishers: Sequence[Publisher],
        limits: ConnectionLimits,
        interval_s: float,
        registry: MetricsRegistry,
    ) -> None:
        self._service = service
        self._publishers = publishers
        self._limits = limits
        self._interval_s = interval_s
        self._registry = registry
        self._lock = threading.Lock()
        self._disconnected: set[Task] = set()
        """Tasks whose connection ended since the last garbage collection."""
        self._wake = threading.Event()
        self._stopped = False
        self._collected_s = float("-inf")
        """The time of the last successful garbage collection."""
        self._errors: dict[str, str] = {}
        """The last error of each operation that failed last time, so that it is logged once."""

    def waiting_for(self) -> Sequence[str]:
        """What is missing for readiness."""
        age_s = time.monotonic() - self._collected_s
        is_overdue = age_s > _OVERDUE_PERIODS * self._interval_s + _OVERDUE_S
        return [f"a sweep: {self._errors.get('sweep', 'not yet')}"] if is_overdue else []

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def run(self, path: Path) -> None:
        """Serve at `path` and collect garbage until `stop`; then finish requests in progress and keep the allocations.

        BadSettings or Unavailable if it cannot listen there.
        """
        with socket_server.opened_socket(path) as listening:
            server = SocketServer(
                listening,
                self._identify_client_process,
                self._service.answer,
                self._record_disconnected_task,
                self._limits,
                self._registry,
            )
            thread = threading.Thread(target=server.run, name="connections")
            thread.start()
            logs.emit("listening", url=f"unix:{path}")
            try:
                self._collect_garbage_until_stopped(thread)
            finally:
                server.stop()
                thread.join()

    def _identify_client_process(self, connected: socket) -> PeerProcess:
        return socket_server.identify_peer(connected, self._service.node.proc, self._service.node.boot)

    def _record_disconnected_task(self, peer: PeerProcess) -> None:
        with self._lock:
            self._disconnected.add(peer.task)
        self._wake.set()

    def _collect_garbage_until_stopped(self, serving: threading.Thread) -> None:
        while not self._stopped:
            if not serving.is_alive():
                raise Unavailable("the node agent's socket is no longer served, by a defect of ours")
            self._collect_and_publish()
            self._wait_for_next_collection()

    def _wait_for_next_collection(self) -> None:
        """Until the next collection is due, or the connection of a task ends."""
        time.sleep(min(_MIN_GAP_S, self._interval_s))
        if self._wake.wait(max(0.0, self._interval_s - _MIN_GAP_S)):
            self._wake.clear()
        with self._lock:
            disconnected, self._disconnected = self._disconnected, set()
        for task in disconnected:
            patience_s = _END_OF_PROCESS_S / len(disconnected)
            task_garbage_collection.wait_for_wrapper_end(self._service.node.proc, task, patience_s)

    def _collect_and_publish(self) -> None:
        collections: list[CollectionRound] = []
        # metrics and readiness have called this operation a sweep since the first release
        self._run_and_log_error_changes("sweep", lambda: collections.append(self._collect_garbage()))
        for collection in collections:
            for publisher in self._publishers:
                if not self._stopped:
                    self._run_and_log_error_changes(publisher.name, partial(publisher.publish, collection))

    def _collect_garbage(self) -> CollectionRound:
        begin_s = time.monotonic()
        collection = self._service.collector.collect()
        self._collected_s = time.monotonic()
        self._registry.observe("cpu_sweep_seconds", self._collected_s - begin_s)
        return collection

    def _run_and_log_error_changes(self, name: str, operation: Callable[[], None]) -> None:
        """Run an operation. Log its error if it is a new one, and its recovery."""
        try:
            operation()
        except NodewiseError as error:
            self._registry.count("cpu_failures_total", what=name)
            if self._errors.get(name) != str(error):
                self._errors[name] = str(error)
                logs.emit("cpu_chore_failed", what=name, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in one publisher must not stop the others
            self._registry.count("cpu_failures_total", what=name)
            self._errors[name] = _DEFECT
            logs.emit("task_failed", task=name, exc_info=True)
        else:
            if self._errors.pop(name, None) is not None:
                logs.emit("cpu_chore_back", what=name)


@contextlib.contextmanager
def serve_admin_port(
    waiting_for: Callable[[], Sequence[str]], options: AdminOptions, registry: MetricsRegistry
) -> Iterator[str]:
    """Serve health, readiness and metrics within the context; yields the URL. BadSettings if the port is taken.

    The agent has no event loop, so the server runs in one of its own, in a thread.
    """
    opened: Future[str] = Future()
    ended = threading.Event()

    async def serve() -> None:
        app = Application(admin_routes(waiting_for, registry), registry, max_body_bytes=_MAX_ADMIN_BYTES)
        server = admin_server(app, options, registry)
        try:
            await server.start()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            opened.set_exception(error)
            return
        opened.set_result(server.url)
        await asyncio.to_thread(ended.wait)
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="admin", daemon=True)
    thread.start()
    try:
        yield opened.result()
    finally:
        ended.set()
        thread.join()
