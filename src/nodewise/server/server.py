"""A server: the port of an application, from start to graceful end."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import partial
from types import MappingProxyType
from typing import Final

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import listener
from nodewise.server.application import Application
from nodewise.server.client_authorizer import ClientAuthorizer
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.http_connection import HttpConnection, OpenConnections
from nodewise.server.listener import Listener
from nodewise.server.options import ServeOptions, is_loopback
from nodewise.server.server_tls_context import ServerCertificates, end_s

_NO_FLAGS: Final[Mapping[str, str]] = MappingProxyType({})
_LOOK_S: Final = 0.01
"""Poll interval of a stopping server for the end of its connections."""


def _unsafe_option_problems(options: ServeOptions) -> list[Problem]:
    if not options.unsafe or is_loopback(options.host) or options.unsafe_address == options.host:
        return []
    actual = f"plain HTTP on {options.host}, where anybody may call"
    return [Problem("address", actual, f"a loopback address, or --unsafe-address {options.host}")]


class HttpServer:
    """Serves an application: mutual TLS, TLS without client certificates, or plain HTTP with `unsafe`.

    `port` and `url` are valid after `start`.
    """

    def __init__(
        self,
        application: Application,
        options: ServeOptions,
        metrics_registry: MetricsRegistry,
        *,
        verify_clients: bool = True,
        flags: Mapping[str, str] = _NO_FLAGS,
    ) -> None:
        """`flags`: by field of the options, the flags that errors name instead."""
        self.port = options.port
        self._flags = flags
        self._verify_clients = verify_clients
        self._options = options
        self._metrics_registry = metrics_registry
        self._clock = SystemClock()
        self._close_reasons = CloseReasons(metrics_registry, self._clock)
        self._connections = OpenConnections()
        self._application = application
        self._tls: ServerCertificates | None = None
        self._listener: Listener | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Scheme, address and port, as a client on this machine can use them."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._options.host, self._options.host)  # noqa: S104
        scheme = "http" if self._options.unsafe else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Open the port. BadSettings names all problems of files, address and port."""
        options = self._options
        problems = _unsafe_option_problems(options)
        if not options.unsafe:
            try:
                self._tls = ServerCertificates(
                    options, self._metrics_registry, self._clock, verify_clients=self._verify_clients
                )
            except BadSettings as error:
                problems.extend(error.problems)
        try:
            opened = await listener.bind_socket(options)
        except BadSettings as error:
            raise self._start_error([*problems, *error.problems]) from error
        if problems:
            opened.close()
            raise self._start_error(problems)
        self.port = opened.getsockname()[1]
        authorizer = None
        if self._tls is not None and self._verify_clients:
            authorizer = ClientAuthorizer(options, self._tls, self._close_reasons, self._metrics_registry)
        make = partial(
            HttpConnection, self._application, self._connections, options, self._close_reasons, authorizer
        )
        self._listener = Listener(
            opened, make, options, self._tls, self._close_reasons, lambda: len(self._connections.open)
        )
        self._run_periodic_work()
        self._ticker = asyncio.create_task(self._repeat_periodic_work())
        self._listener.start()
        logs.emit("listening", url=self.url)

    def _start_error(self, problems: Iterable[Problem]) -> BadSettings:
        named = [
            problem._replace(field=self._flags.get(problem.field, problem.field)) for problem in problems
        ]
        return BadSettings("the server cannot start", named)

    def drain(self) -> None:
        """Go on serving, but end each connection with its next response, so that clients connect to another replica.

        A Go client does not repeat a POST that it has begun to write on a connection that is closed meanwhile, so a
        response must announce the end.
        """
        self._connections.is_draining = True

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop accepting, complete responses within `grace_s`, close. Does nothing if the server does not run."""
        if self._listener is None or self._ticker is None:
            return
        await self._listener.stop()
        self._ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticker
        for connection in list(self._connections.open):
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._wait_for_connections_to_end()
        await self._abort_connections()
        self._listener = self._ticker = None
        self._metrics_registry.set("connections", 0, port=str(self.port))

    async def _wait_for_connections_to_end(self) -> None:
        while self._connections.open or self._connections.tasks:
            await asyncio.sleep(_LOOK_S)
            for connection in list(self._connections.open):
                connection.abort_if_closed_idle()

    async def _abort_connections(self) -> None:
        for connection in list(self._connections.open):
            connection.transport.abort()
        await asyncio.sleep(0)  # for `connection_lost` of each
        tasks = list(self._connections.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat_periodic_work(self) -> None:
        while True:
            await self._clock.sleep(self._options.reload_period_s)
            try:
                self._run_periodic_work()
            except Exception:  # noqa: BLE001 - one failed check must not end the checks
                logs.emit("task_failed", task="serve", exc_info=True)

    def _run_periodic_work(self) -> None:
        """Update what changes with time: the date of responses, the count of connections, the certificate files."""
        self._connections.date = formatdate(self._clock.now(), usegmt=True).encode()
        self._metrics_registry.set("connections", len(self._connections.open), port=str(self.port))
        self._close_connections_past_max_age(self._options.connection_age_s)
        if self._tls is not None:
            self._reload_changed_certificates(self._tls)

    def _reload_changed_certificates(self, tls: ServerCertificates) -> None:
        """Reload changed certificate files, and set the metric of the client certificate that expires first."""
        change = tls.poll()
        if change.client_ca:
            self._close_untrusted_connections(tls)
        if change.serving:
            self._close_connections_past_max_age(0.0)
        ends = [end_s(connection.chain[0]) for connection in self._connections.open if connection.chain]
        if ends:
            self._metrics_registry.set("tls_certificate_expires_seconds", min(ends), certificate="clients")
        else:
            self._metrics_registry.forget("tls_certificate_expires_seconds", certificate="clients")

    def _close_connections_past_max_age(self, age_s: float) -> None:
        opened_before_s = asyncio.get_running_loop().time() - age_s
        for connection in list(self._connections.open):
            if connection.opened_s <= opened_before_s:
                connection.finish()

    def _close_untrusted_connections(self, tls: ServerCertificates) -> None:
        """After a change of the client CA: close connections whose certificate no longer verifies, and no others."""
        for connection in list(self._connections.open):
            if not (connection.is_closing or tls.admits(connection.chain, verified=connection.verified)):
                self._close_reasons.record("client_ca_changed", connection.peer)
                connection.close_when_idle()
