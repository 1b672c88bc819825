"""A server: options and an ASGI callable in, an open port out.

uvicorn's own server (signals, lifespan, sockets) is not used, only its configuration and connection state.
"""

import asyncio
import contextlib
from email.utils import formatdate
from functools import partial
from typing import Final, cast

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.server import ServerState

from nodewise.clock import Clock, SystemClock
from nodewise.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve import listener
from nodewise.serve.answers import Asgi
from nodewise.serve.endings import Endings
from nodewise.serve.gate import Gate
from nodewise.serve.listener import Listener
from nodewise.serve.options import ServeOptions, is_loopback
from nodewise.serve.protocol import Connection
from nodewise.serve.tls import Tls, end_s

_SYSTEM: Final = SystemClock()
_LOOK_S: Final = 0.01  # how often an ending server looks whether the last answer is out


def _check_unsafe(options: ServeOptions) -> list[Problem]:
    if not options.unsafe or is_loopback(options.host) or options.unsafe_address == options.host:
        return []
    seen = f"plain HTTP on {options.host}, where anybody may call"
    return [Problem("address", seen, f"a loopback address, or unsafe_address {options.host}")]


class Server:
    """Serves an ASGI callable: mutual TLS, TLS without client certificates, or plain HTTP with `unsafe`.

    `port` and `url` hold after `start`.
    """

    def __init__(
        self,
        app: Asgi,
        options: ServeOptions,
        meters: MetricsRegistry,
        clock: Clock = _SYSTEM,
        *,
        verify_clients: bool = True,
    ) -> None:
        self.port = options.port
        self._verify_clients = verify_clients
        self._options = options
        self._meters = meters
        self._clock = clock
        self._noted = Endings(meters, clock)
        self._state = ServerState()
        self._config = _config(app, options)
        self._tls: Tls | None = None
        self._listener: Listener | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._draining = False

    @property
    def url(self) -> str:
        """Scheme, address and port, as a client on this machine can use them."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._options.host, self._options.host)  # noqa: S104
        scheme = "http" if self._options.unsafe else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Open the port. BadSettings names all that is wrong with files, address and port together."""
        options = self._options
        problems = _check_unsafe(options)
        if not options.unsafe:
            try:
                self._tls = Tls(options, self._meters, self._clock, verify_clients=self._verify_clients)
            except BadSettings as error:
                problems.extend(error.problems)
        try:
            opened = await listener.bound(options)
        except BadSettings as error:
            raise BadSettings("the server cannot start", [*problems, *error.problems]) from error
        if problems:
            opened.close()
            raise BadSettings("the server cannot start", problems)
        self.port = opened.getsockname()[1]
        gated = self._tls is not None and self._verify_clients
        gate = Gate(options, self._tls, self._noted, self._meters) if gated and self._tls else None
        make = partial(Connection, self._config, self._state, options, self._noted, gate)
        self._listener = Listener(
            opened, make, options, self._tls, self._noted, lambda: len(self._state.connections)
        )
        self._tick()
        self._ticking = asyncio.create_task(self._tick_for_ever())
        self._listener.start()
        logs.emit("listening", url=self.url)

    def drain(self) -> None:
        """Serve on, but let each connection end with its next answer, so that its client goes elsewhere.

        A Go client neither repeats a POST that it has begun to write nor looks twice at a connection that is
        closed under it: the end has to be said in an answer.
        """
        self._draining = True
        self._tick()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Accept no more, answer what is under way within `grace_s`, close. Does nothing where nothing
        runs.
        """
        if self._listener is None or self._ticking is None:
            return
        await self._listener.stop()
        self._ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticking
        for connection in self._connections():
            connection.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._emptied()
        await self._cut_off()
        self._listener = self._ticking = None
        self._meters.set("connections", 0, port=str(self.port))

    def _connections(self) -> list[Connection]:
        return [cast("Connection", connection) for connection in self._state.connections]

    async def _emptied(self) -> None:
        while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - both sets are uvicorn's
            await asyncio.sleep(_LOOK_S)

    async def _cut_off(self) -> None:
        for connection in self._connections():
            connection.transport.abort()
        await asyncio.sleep(0)  # the event loop tells each connection that it is lost
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick_for_ever(self) -> None:
        while True:
            await self._clock.sleep(self._options.reload_period_s)
            try:
                self._tick()
            except Exception:  # noqa: BLE001 - a certificate that cannot be looked at must not end the looking
                logs.emit("task_failed", task="serve", exc_info=True)

    def _tick(self) -> None:
        """What happens every second: the headers of every answer, the count of connections, the certificate files."""
        stamp = formatdate(self._clock.now(), usegmt=True)
        ending = [(b"connection", b"close")] if self._draining else []
        self._state.default_headers = [(b"date", stamp.encode()), *ending]
        self._meters.set("connections", len(self._state.connections), port=str(self.port))
        self._have_old_ones_finish(self._options.connection_age_s)
        if self._tls is not None:
            self._look(self._tls)

    def _look(self, tls: Tls) -> None:
        """The certificate files; and whose certificate among the clients' ends first, for who runs them."""
        before = tls.context
        if tls.poll():
            self._drop_strangers(tls)
        if tls.context is not before:
            self._have_old_ones_finish(0.0)
        ends = [end_s(connection.chain[0]) for connection in self._connections() if connection.chain]
        if ends:
            self._meters.set("tls_certificate_expires_seconds", min(ends), certificate="clients")
        else:
            self._meters.forget("tls_certificate_expires_seconds", certificate="clients")

    def _have_old_ones_finish(self, age_s: float) -> None:
        opened_before_s = asyncio.get_running_loop().time() - age_s
        for connection in self._connections():
            if connection.opened_s <= opened_before_s:
                connection.finish()

    def _drop_strangers(self, tls: Tls) -> None:
        """After a swap of the client CA: who would not get in now does not stay."""
        for connection in self._connections():
            if not tls.admits(connection.chain):
                self._noted.note("client_ca_changed", connection.peer)
                connection.retire()


def _config(app: Asgi, options: ServeOptions) -> Config:
    """The configuration of uvicorn, with everything off that we do ourselves or do not want."""
    made = Config(
        cast("ASGI3Application", app),
        loop="none",
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=options.keep_alive_s,  # type: ignore[arg-type]  # a timer's seconds
    )
    made.load()
    return made
