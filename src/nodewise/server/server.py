"""A server: the port of an application, from start to graceful end; and the admin port.

The listener looks at the first byte, and starts TLS or answers plain HTTP. The servers of asyncio and uvloop have no
deadline for a client that sends nothing, do not report why a handshake failed, and use one TLS context for all.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, Refused
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import connection_close_reasons, server_tls_context
from nodewise.server.application import Application, Request, Response, Route
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.http_connection import HttpConnection, OpenConnections, format_socket_address
from nodewise.server.options import AdminOptions, ServeOptions, is_loopback

if TYPE_CHECKING:
    from nodewise.server.server_certificates import ServerCertificates

_UNSPECIFIED: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104
"""Both are every address of both families, as in programs of Kubernetes: a pod may have no IPv4 address."""
_LAST_PORT: Final = 65535
_BACKLOG: Final = 1024
_AT_ONCE: Final = 64  # connections accepted in one step of the event loop
_TLS_HANDSHAKE: Final = b"\x16"  # the first byte of a TLS connection; no HTTP method begins with it
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 0.1  # of accepting while the machine has no free file descriptor
_PLAIN: Final = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"Client sent an HTTP request to an HTTPS server.\n"
)


async def bind_socket(options: ServeOptions) -> socket.socket:
    """A listening socket. BadSettings names the port or the address that cannot be used."""
    if not 0 <= options.port <= _LAST_PORT:
        # the resolver would take it modulo 65536
        raise BadSettings.of("the port cannot be opened", "port", str(options.port), f"0 to {_LAST_PORT}")
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(
            "::" if options.host in _UNSPECIFIED else options.host,
            options.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except OSError as error:
        problem = Problem("address", f"{options.host}: {error}", "an address of this machine")
        raise BadSettings("the port cannot be opened", [problem]) from error
    family, kind, protocol, _, address = addresses[0]
    try:
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        if options.host not in _UNSPECIFIED or error.errno != errno.EAFNOSUPPORT:
            raise BadSettings("the port cannot be opened", [_socket_bind_problem(options, error)]) from error
        listening = socket.socket(socket.AF_INET, kind)  # the kernel has no IPv6
        family, address = socket.AF_INET, ("0.0.0.0", options.port)  # noqa: S104
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise BadSettings("the port cannot be opened", [_socket_bind_problem(options, error)]) from error
    return listening


def _socket_bind_problem(options: ServeOptions, error: OSError) -> Problem:
    if error.errno == errno.EADDRINUSE:
        return Problem("port", f"{options.port} is in use on {options.host}", "a free port, or 0 for any")
    if error.errno == errno.EADDRNOTAVAIL:
        return Problem(
            "address", f"{options.host} is not an address of this machine", "one that is, or 0.0.0.0"
        )
    if error.errno == errno.EACCES:
        return Problem("port", f"{options.port} needs privileges", "a port from 1024 on")
    return Problem("port", f"{options.port}: {error}", "a port that can be opened")


class Listener:
    """Accepts on a socket and makes a protocol of each connection that gets through its handshake.

    Without `tls` it serves plain HTTP. `established` returns the number of connections after their handshake. The
    listener owns the socket: `stop` closes it.
    """

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        options: ServeOptions,
        tls: "ServerCertificates | None",
        recorder: CloseReasons,
        established: Callable[[], int],
    ) -> None:
        self._socket = listening
        self._protocol = protocol
        self._options = options
        self._tls = tls
        self._close_reasons = recorder
        self._established = established
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], str] = {}
        """Handshakes with their peers, the oldest first."""
        self._paused: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._paused = None
        self._loop.add_reader(self._socket, self._accept_connections)

    async def stop(self) -> None:
        """Stop accepting, and cancel handshakes."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        handshakes = list(self._handshakes)
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)

    def _accept_connections(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(error)
                return  # no more connections, or the client has left
            peer = format_socket_address(address)
            if self._established() >= self._options.max_connections:
                accepted.close()
                self._close_reasons.record("too_many", peer)
                continue
            if len(self._handshakes) >= self._options.max_handshakes:
                # regular handshakes take milliseconds, so the oldest one is the least likely to end
                oldest, oldest_peer = next(iter(self._handshakes.items()))
                del self._handshakes[oldest]
                oldest.cancel()
                self._close_reasons.record("too_many", oldest_peer)
            task = self._loop.create_task(self._handle_new_connection(accepted, peer))
            self._handshakes[task] = peer
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    def _pause_accepting(self, error: OSError) -> None:
        """Pause accepting: the socket stays readable, so the event loop would spin."""
        logs.emit("accept_failed", error=str(error))
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(_PAUSE_S, self.start)

    async def _handle_new_connection(self, accepted: socket.socket, peer: str) -> None:
        """Handle a connection until its protocol takes over. Raises only if cancelled."""
        accepted.setblocking(False)
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._protocol, accepted)
            else:
                await self._start_tls(accepted, peer, self._tls)
        except OSError as error:
            self._record_failure(error, peer)

    def _record_failure(self, error: OSError, peer: str) -> None:
        reason = connection_close_reasons.close_reason_of_error(error)
        self._close_reasons.record(reason, peer, str(error))

    async def _start_tls(self, accepted: socket.socket, peer: str, tls: "ServerCertificates") -> None:
        deadline = self._loop.time() + self._options.handshake_timeout_s
        if not await self._check_client_speaks_tls(accepted, peer):
            return
        # The transport closes its socket when the handshake fails, before the exception; the copy can still send.
        with accepted.dup() as copy:
            try:
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    accepted,
                    ssl=tls.context,
                    ssl_handshake_timeout=max(0.001, deadline - self._loop.time()),
                    ssl_shutdown_timeout=self._options.answer_timeout_s,
                )
            except server_tls_context.HandshakeFailed as failed:
                self._record_failure(failed.cause, peer)
                _send_and_shut_down(copy, failed.alert)

    async def _check_client_speaks_tls(self, accepted: socket.socket, peer: str) -> bool:
        """Whether the first byte begins a handshake; if not, answer and close the connection."""
        speaks = False
        try:
            first = await self._peek_first_byte(accepted)
            speaks = first[:1] == _TLS_HANDSHAKE
            if not first:
                self._close_reasons.record("closed_early", peer)
            elif not speaks:
                self._close_reasons.record("plain_http", peer)
                _send_and_shut_down(accepted, _PLAIN)
        finally:
            if not speaks:
                accepted.close()
        return speaks

    async def _peek_first_byte(self, accepted: socket.socket) -> bytes:
        """Peek at the first byte. TimeoutError if there is none within the deadline."""
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(1, socket.MSG_PEEK)
        readable = self._loop.create_future()
        self._loop.add_reader(accepted, _set_future_once, readable)
        try:
            async with asyncio.timeout(self._options.handshake_timeout_s):
                await readable
        finally:
            self._loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK)


def _send_and_shut_down(connection: socket.socket, data: bytes) -> None:
    """Send a few bytes and close our side. What the client sent is read first: a close with unread data is a reset,
    which overtakes the bytes.
    """
    with contextlib.suppress(OSError):
        connection.recv(65536)
    with contextlib.suppress(OSError):
        connection.send(data)
        connection.shutdown(socket.SHUT_WR)


def _set_future_once(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


_NO_FLAGS: Final[Mapping[str, str]] = MappingProxyType({})
_LOOK_S: Final = 0.01  # poll interval of a stopping server for the end of its connections


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
        host = "127.0.0.1" if self._options.host in _UNSPECIFIED else self._options.host
        scheme = "http" if self._options.unsafe else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Open the port. BadSettings names all problems of files, address and port."""
        options = self._options
        problems: list[Problem] = []
        if options.unsafe and not is_loopback(options.host) and options.unsafe_address != options.host:
            actual = f"plain HTTP on {options.host}, where anybody may call"
            expected = f"a loopback address, or --unsafe-address {options.host}"
            problems.append(Problem("address", actual, expected))
        if not options.unsafe:
            # memory: cryptography takes 10 MiB, and the admin port has no certificates
            from nodewise.server.server_certificates import ServerCertificates

            try:
                self._tls = ServerCertificates(
                    options, self._metrics_registry, self._clock, verify_clients=self._verify_clients
                )
            except BadSettings as error:
                problems.extend(error.problems)
        try:
            opened = await bind_socket(options)
        except BadSettings as error:
            raise self._start_error([*problems, *error.problems]) from error
        if problems:
            opened.close()
            raise self._start_error(problems)
        self.port = opened.getsockname()[1]
        authorizer = None
        if self._tls is not None and self._verify_clients:
            from nodewise.server.client_authorizer import ClientAuthorizer  # memory: see above

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
                while self._connections.open or self._connections.tasks:
                    await asyncio.sleep(_LOOK_S)
                    for connection in list(self._connections.open):
                        connection.abort_if_closed_idle()
        for connection in list(self._connections.open):
            connection.transport.abort()
        await asyncio.sleep(0)  # for `connection_lost` of each
        tasks = list(self._connections.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener = self._ticker = None
        self._metrics_registry.set("connections", 0, port=str(self.port))

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
        if self._tls is None:
            return
        change = self._tls.poll()
        if change.client_ca:
            # close connections whose certificate no longer verifies, and no others
            for connection in list(self._connections.open):
                if not (
                    connection.is_closing or self._tls.admits(connection.chain, verified=connection.verified)
                ):
                    self._close_reasons.record("client_ca_changed", connection.peer)
                    connection.close_when_idle()
        if change.serving:
            self._close_connections_past_max_age(0.0)
        leaves = [connection.chain[0] for connection in self._connections.open if connection.chain]
        end_s = self._tls.earliest_end_s(leaves)
        if end_s is not None:
            self._metrics_registry.set("tls_certificate_expires_seconds", end_s, certificate="clients")
        else:
            self._metrics_registry.forget("tls_certificate_expires_seconds", certificate="clients")

    def _close_connections_past_max_age(self, age_s: float) -> None:
        opened_before_s = asyncio.get_running_loop().time() - age_s
        for connection in list(self._connections.open):
            if connection.opened_s <= opened_before_s:
                connection.finish()


def admin_routes(waiting_for: Callable[[], Sequence[str]], metrics_registry: MetricsRegistry) -> list[Route]:
    """/healthz, /readyz and /metrics. `waiting_for` returns what is missing for readiness."""

    def healthz(_request: Request) -> Response:
        return Response(200, b'{"alive": true}\n')

    def readyz(_request: Request) -> Response:
        missing = list(waiting_for())
        body = {"ready": not missing, "waiting_for": missing}
        return Response(503 if missing else 200, msgspec.json.encode(body) + b"\n")

    def metrics(_request: Request) -> Response:
        return Response(200, metrics_registry.exposition(), metrics_registry.content_type)

    return [
        Route("GET", "/healthz", healthz),
        Route("GET", "/readyz", readyz),
        Route("GET", "/metrics", metrics),
    ]


def restrict_to_loopback(route: Route) -> Route:
    """The route for clients that connect to a loopback address, whatever addresses the port listens on: processes of
    this machine or pod, and `kubectl port-forward`. `Refused` for all others.
    """

    def handler(request: Request) -> Response | Awaitable[Response]:
        if not is_loopback(request.local):
            raise Refused(
                f"{route.path} shows every tenant's pods: call it on loopback, as kubectl port-forward does"
            )
        return route.handler(request)

    return route._replace(handler=handler)


_FLAGS: Final = {"address": "--health-address", "port": "--health-port"}


def admin_server(
    application: Application, options: AdminOptions, metrics_registry: MetricsRegistry
) -> HttpServer:
    """A separate server for these routes. An address beyond loopback is the operator's choice: a kubelet's probes come
    from outside the pod, and the routes show only counts.
    """
    address = options.health_address
    serve_options = ServeOptions(
        address=address, port=options.health_port, unsafe=True, unsafe_address=address, max_body_bytes=65536
    )
    return HttpServer(application, serve_options, metrics_registry, flags=_FLAGS)
