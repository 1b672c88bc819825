"""A transport that opens new connections when its certificates change.

A connection presents the client certificate once, in its handshake, and the API server checks for each later call
whether that certificate is still valid. So new calls use new connections, and an old connection is closed when its
call has ended. client-go closes old connections at once (client-go v0.36 transport/cert_rotation.go), which would fail
the calls in flight.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx2

RETIRED: Final = "nodewise_retired"
"""Extension of each response: a function that returns whether the connection uses old certificates."""


class _Generation:
    """The connections that use the same certificates."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.calls = 0


class _CountedBody(httpx2.AsyncByteStream):
    """Body of a response that decrements the generation's count of calls when it is closed."""

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


class RenewingTransport(httpx2.AsyncBaseTransport):
    """Transport that replaces its inner transport. `make` creates one without connecting; it may raise errors."""

    def __init__(
        self, make: Callable[[], httpx2.AsyncBaseTransport], has_changed: Callable[[], bool]
    ) -> None:
        """`has_changed` is called before each request: whether `make` would use other certificates than before."""
        self._make = make
        self._has_changed = has_changed
        self._current = _Generation(make())
        self._old: list[_Generation] = []

    def renew(self) -> None:
        """Use new connections from now on. Calls in flight finish on their old connection."""
        made = _Generation(self._make())
        self._old.append(self._current)
        self._current = made

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._renew_if_certificates_changed()
        generation = self._current
        generation.calls += 1
        try:
            await self._close_retired_connections()
            response = await generation.transport.handle_async_request(request)
        except BaseException:
            generation.calls -= 1
            raise
        response.extensions[RETIRED] = lambda: self._is_retired_connection_generation(generation)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CountedBody(response.stream, generation)
        return response

    async def aclose(self) -> None:
        for generation in (*self._old, self._current):
            await generation.transport.aclose()
        self._old = []

    def _is_retired_connection_generation(self, generation: _Generation) -> bool:
        self._renew_if_certificates_changed()
        return generation is not self._current

    def _renew_if_certificates_changed(self) -> None:
        if self._has_changed():
            self.renew()

    async def _close_retired_connections(self) -> None:
        over = [generation for generation in self._old if not generation.calls]
        self._old = [generation for generation in self._old if generation.calls]
        for generation in over:
            await generation.transport.aclose()


def is_on_retired_connection(response: httpx2.Response) -> bool:
    """Whether the connection of a response uses certificates that have been replaced."""
    ask: Callable[[], bool] | None = response.extensions.get(RETIRED)
    return ask is not None and ask()
