"""Connections that are made anew when the certificates change which they are opened with.

A connection proves who we are once, in its handshake, and the API server asks of each later call whether that
certificate is still valid. So new calls go out on new connections, and old ones are closed when the call on
them is over; client-go closes them at once (client-go v0.36 transport/cert_rotation.go), which here would be
failed calls.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx2

RETIRED: Final = "nodewise_retired"
"""An extension of each response: a function that tells whether its connection is on its way out."""


class _Generation:
    """The connections that were opened with the same certificates."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.calls = 0


class _Body(httpx2.AsyncByteStream):
    """A response's body that tells when nobody reads it any more."""

    def __init__(self, inner: httpx2.AsyncByteStream, generation: _Generation) -> None:
        self._inner = inner
        self._generation: _Generation | None = generation

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            yield piece

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if self._generation is not None:
                self._generation.calls -= 1
                self._generation = None


class Renewing(httpx2.AsyncBaseTransport):
    """A transport behind which others take turns. `make` opens nothing yet, and may raise what is wrong."""

    def __init__(self, make: Callable[[], httpx2.AsyncBaseTransport], has_news: Callable[[], bool]) -> None:
        """`has_news` is asked at each call: does `make` give something else than the last time?"""
        self._make = make
        self._has_news = has_news
        self._current = _Generation(make())
        self._old: list[_Generation] = []

    def renew(self) -> None:
        """From now on new connections; who calls on an old one finishes first."""
        made = _Generation(self._make())
        self._old.append(self._current)
        self._current = made

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._look()
        generation = self._current
        generation.calls += 1
        try:
            await self._close_old()
            response = await generation.transport.handle_async_request(request)
        except BaseException:
            generation.calls -= 1
            raise
        response.extensions[RETIRED] = lambda: self._is_retired(generation)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, generation)
        return response

    async def aclose(self) -> None:
        for generation in (*self._old, self._current):
            await generation.transport.aclose()
        self._old = []

    def _is_retired(self, generation: _Generation) -> bool:
        self._look()
        return generation is not self._current

    def _look(self) -> None:
        if self._has_news():
            self.renew()

    async def _close_old(self) -> None:
        over = [generation for generation in self._old if not generation.calls]
        self._old = [generation for generation in self._old if generation.calls]
        for generation in over:
            await generation.transport.aclose()


def is_retired(response: httpx2.Response) -> bool:
    """Whether the connection of a response was opened with certificates that are no longer ours."""
    ask: Callable[[], bool] | None = response.extensions.get(RETIRED)
    return ask is not None and ask()
