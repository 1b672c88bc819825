"""The listening socket: accepts connections, looks at the first byte, and starts TLS or answers plain HTTP.

The servers of asyncio and uvloop have no deadline for a client that sends nothing, do not report why a handshake
failed, and use one TLS context for all connections.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Final

from nodewise.base.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.server import connection_close_reasons, tls_handshake
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.options import ServeOptions
from nodewise.server.server_tls_context import ServerCertificates

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
        problem = Problem("port", str(options.port), f"0 to {_LAST_PORT}")
        raise BadSettings("the port cannot be opened", [problem])
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        problem = Problem("address", f"{options.host}: {error}", "an address of this machine")
        raise BadSettings("the port cannot be opened", [problem]) from error
    family, kind, protocol, _, address = addresses[0]
    listening = socket.socket(family, kind, protocol)
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
        tls: ServerCertificates | None,
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
            peer = f"{address[0]}:{address[1]}"
            if self._established() >= self._options.max_connections:
                accepted.close()
                self._close_reasons.record("too_many", peer)
                continue
            if len(self._handshakes) >= self._options.max_handshakes:
                self._cancel_oldest_handshake()
            task = self._loop.create_task(self._handle_new_connection(accepted, peer))
            self._handshakes[task] = peer
            task.add_done_callback(self._forget_handshake)

    def _cancel_oldest_handshake(self) -> None:
        """Cancel the oldest handshake: regular ones take milliseconds, so it is the least likely to end."""
        task, peer = next(iter(self._handshakes.items()))
        self._forget_handshake(task)
        task.cancel()
        self._close_reasons.record("too_many", peer)

    def _forget_handshake(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

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
            self._close_reasons.record(
                connection_close_reasons.close_reason_of_error(error), peer, str(error)
            )

    async def _start_tls(self, accepted: socket.socket, peer: str, tls: ServerCertificates) -> None:
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
            except tls_handshake.HandshakeFailed as failed:
                self._close_reasons.record(
                    connection_close_reasons.close_reason_of_error(failed.cause), peer, str(failed.cause)
                )
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
