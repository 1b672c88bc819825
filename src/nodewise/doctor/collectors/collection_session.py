"""One run of doctor: what to examine, and the facts that were collected so far.

A collector reads one fact. It gets further facts from the session, which runs each collector once.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import httpx2

from nodewise.doctor.collectors.cluster_reader import ClusterReader
from nodewise.doctor.collectors.container_files import FileReader
from nodewise.doctor.facts import UnavailableFact
from nodewise.kube.api_server_interface import Api

T = TypeVar("T")

SYSTEM_NAMESPACE: Final = "kube-system"

Collector = Callable[["Session"], Awaitable[T | UnavailableFact]]


class SchedulerClient(NamedTuple):
    """How doctor authenticates to kube-scheduler: with the kubeconfig's certificate or headers."""

    context: ssl.SSLContext
    auth: httpx2.Auth | None


class ExaminationTarget(NamedTuple):
    """What to examine, according to the command line."""

    scheduler_files: Sequence[str] = ()
    scheduler_url: str = ""
    scheduler_client: SchedulerClient | None = None
    """Set with `scheduler_url`."""
    namespaces: Sequence[str] = ()
    """The namespaces of nodewise and what belongs to it, besides kube-system."""
    connect_as_node: Callable[[str], Api] | None = None
    """Connects as a user of the group system:nodes; None if the kubeconfig impersonates a user itself."""


class MissingFact(Exception):
    """A collector needs a fact that is unavailable."""

    def __init__(self, unavailable: UnavailableFact) -> None:
        super().__init__(unavailable.reason)
        self.unavailable = unavailable


class Session:
    """Runs collectors."""

    def __init__(self, reader: ClusterReader, target: ExaminationTarget) -> None:
        self.reader = reader
        self.files = FileReader(reader)
        self.target = target
        self._tasks: dict[Collector[Any], asyncio.Task[Any]] = {}

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (*self.target.namespaces, SYSTEM_NAMESPACE)

    async def get(self, collector: Collector[T]) -> T | UnavailableFact:
        """A fact, or why it is unavailable."""
        if collector not in self._tasks:
            self._tasks[collector] = asyncio.create_task(self._run_collector_once(collector))
        return cast("T | UnavailableFact", await self._tasks[collector])

    async def require(self, collector: Collector[T]) -> T:
        """A fact. If it is unavailable, the fact of the collector that requires it is so, too, for the same reason."""
        value = await self.get(collector)
        if isinstance(value, UnavailableFact):
            raise MissingFact(value)
        return value

    async def _run_collector_once(self, collector: Collector[T]) -> T | UnavailableFact:
        try:
            return await collector(self)
        except MissingFact as missing:
            return missing.unavailable

    async def close(self) -> None:
        """End collectors that still run after an error."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
