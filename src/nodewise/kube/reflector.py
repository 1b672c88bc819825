"""Keeps a store equal to what the API server holds of one kind: the runner around `watching`'s pure step."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final, Generic, NamedTuple, TypeVar

from nodewise import cooperative
from nodewise.clock import Clock
from nodewise.errors import NodewiseError, Problem, Unavailable
from nodewise.kube import watching
from nodewise.kube.api import Api, Expired
from nodewise.kube.intake import Intake
from nodewise.kube.pace import Backoff
from nodewise.kube.resources import Resource
from nodewise.kube.store import Named, Store
from nodewise.kube.watching import Checking, Listing, State, Watching
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T", bound=Named)

PAGE_S: Final = 60.0
"""A page's deadline. A cold API server under load takes its time, and asking again would make it worse."""

BACKOFF: Final = Backoff(most_s=5.0, reset_s=10.0)
"""After an API server came back everything is to be right within two periods, so nobody waits longer than one. It is
one small call a kind and replica, which a server that has just started bears; client-go waits up to 30 s."""

MOST_ASKED_S: Final = 60.0
"""A server that asks for more patience than this is asked again nevertheless."""

_AT_ONCE_S: Final = 1.0
"""A watch that ends so soon and without a word was as good as refused (client-go: VeryShortWatchError)."""


class Target(NamedTuple, Generic[T]):
    """What to reflect: a kind, as which slim type, of which namespace (empty: all), by which selectors."""

    resource: Resource
    type: type[T]
    namespace: str = ""
    selectors: Mapping[str, str] = {}
    """`fieldSelector` and `labelSelector`, as the API takes them."""
    keep: Callable[[T], T | None] | None = None
    """What is held of each, None for nothing; without it all."""


class Reflector(Generic[T]):
    """Run one a kind, as a task that is cancelled at the end. It ends by itself only by a defect."""

    def __init__(
        self,
        api: Api,
        target: Target[T],
        clock: Clock,
        meters: MetricsRegistry,
        random: Callable[[], float],
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._api = api
        self._target = target
        self._clock = clock
        self._meters = meters
        self._random = random
        self._backoff = backoff
        self._kind = target.resource.kind
        self._path = target.resource.path(target.namespace)
        self._intake = Intake(self._kind, target.type, meters, target.keep)
        self._state: State = Listing()
        self._limit = watching.FIRST_LIMIT
        self._failures = 0
        self._failed_by: type[NodewiseError] | None = None
        self._failed_at_s = float("-inf")
        self._contact_at_s = float("-inf")
        self._trouble = ""
        self._synced = asyncio.Event()
        self._is_doubted = False
        self._pace = cooperative.Pacer()

    @property
    def store(self) -> Store[T]:
        return self._intake.store

    @property
    def synced(self) -> bool:
        return self.store.synced

    @property
    def trouble(self) -> str:
        """Why the store ages; empty while all is well."""
        return self._trouble

    def apply_response(self, response: bytes) -> T | None:
        """Apply the server's response to a write of ours; the object that the store has then, or None."""
        return self._intake.apply_response(response)

    def renew(self) -> None:
        """List anew when the server says something next; a quiet watch says something every minute."""
        self._is_doubted = True

    def age_s(self) -> float:
        """Since the server last said anything; infinite before. A quiet watch says something every minute."""
        return self._clock.monotonic() - self._contact_at_s

    async def until_synced(self) -> None:
        """Wait for the first whole list."""
        await self._synced.wait()

    async def run(self) -> None:
        """List, then watch, for ever; after a failure, from where it was."""
        while True:
            try:
                await self._advance(self._state)
            except NodewiseError as error:
                self._state = watching.failed(self._state, error)
                await self._wait(error)

    async def _advance(self, state: State) -> None:
        """One request: a page, a look at the version, or a watch till it ends."""
        if self._is_doubted:
            self._is_doubted = False
            state = self._state = Listing(reason="doubt")
        asked = watching.request(state, self._limit, self._random)
        if isinstance(state, Listing):
            await self._list(state, {**self._target.selectors, **asked})
        elif isinstance(state, Checking):
            await self._check(state, asked)
        else:
            await self._watch({**self._target.selectors, **asked})

    async def _check(self, state: Checking, params: Mapping[str, str]) -> None:
        body = await self._api.get(self._path, params)
        self._heard()
        self._state = watching.checked(state, body)

    async def _list(self, state: Listing, params: Mapping[str, str]) -> None:
        body = await self._api.get(self._path, params, timeout_s=PAGE_S)
        self._heard()
        # to find a page's objects and to decode them are half a millisecond each; together it would be too long
        await asyncio.sleep(0)
        after, page = watching.page(state, body)
        self._limit = watching.next_limit(self._limit, len(page.items), len(body))
        if page.is_first:
            self._meters.count("kube_lists_total", kind=self._kind, reason=state.reason)
            self._intake.restart()
        await asyncio.sleep(0)
        async for item in cooperative.iterate(page.items):
            self._intake.add(item)
        self._state = after
        if isinstance(after, Watching):
            self._intake.finish(after.version)
            self._synced.set()

    async def _watch(self, params: Mapping[str, str]) -> None:
        began_s = self._clock.monotonic()
        said_nothing = True
        async with aclosing(self._api.watch(self._path, params)) as lines:
            async for line in lines:
                said_nothing = False
                await self._pace.pause()
                self._heard()
                self._step(line)
                if self._is_doubted:
                    break
        if said_nothing and self._clock.monotonic() - began_s < _AT_ONCE_S:
            raise Unavailable(f"watch {self._path}", [Problem("", "it ended at once", "")])
        self._heard()

    def _step(self, line: bytes) -> None:
        if isinstance(self._state, Watching):
            self._state, frame = watching.line(self._state, line)
            self._intake.take(frame)

    def _heard(self) -> None:
        """The server said something."""
        self._contact_at_s = self._clock.monotonic()
        self._meters.set("kube_contact_timestamp_seconds", self._clock.now(), kind=self._kind)
        if self._trouble:
            self._trouble = ""
            logs.emit("kube_back", kind=self._kind)

    async def _wait(self, error: NodewiseError) -> None:
        """Before another try: longer with each failure of one kind, as long as the server asks; told once.

        A server that starts refuses connections, then rights, then versions: each is a step forward.
        """
        now_s = self._clock.monotonic()
        recent = now_s - self._failed_at_s < self._backoff.reset_s
        self._failures = self._failures + 1 if recent and type(error) is self._failed_by else 1
        self._failed_by = type(error)
        asked_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
        delay_s = self._backoff.delay_s(self._failures, self._random, asked_s)
        delay_s = max(delay_s, min(asked_s, MOST_ASKED_S))
        if str(error) != self._trouble and not isinstance(error, Expired):
            self._trouble = str(error)
            logs.emit("kube_lost", kind=self._kind, error=self._trouble, again_in_s=round(delay_s, 1))
        await self._clock.sleep(delay_s)
        self._failed_at_s = self._clock.monotonic()
