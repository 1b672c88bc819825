"""One connection: HTTP/1.1 on httptools, with limits and deadlines for everything that a client may do slowly.

The parser's callbacks only record input. `_advance_first_exchange` answers it after the whole read is parsed, so that
the response can announce the end of the connection if a request is followed by bytes that are not HTTP.
"""

import asyncio
import enum
import urllib.parse
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import httptools

from nodewise.base.errors import Problem, shown
from nodewise.server import server_tls_context
from nodewise.server.application import (
    Application,
    HttpExchange,
    RemotePeer,
    RequestHeader,
    Response,
    encode_response,
    refusal_response,
)
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.options import ServeOptions

if TYPE_CHECKING:
    from nodewise.server.client_authorizer import ClientAuthorizer


class Authorization(NamedTuple):
    """What a connection's client may call."""

    refusal: Response | None = None
    """The response to every request; None if the client may call."""
    pinned_only_refusal: Response | None = None
    """The response of routes for pinned clients only; None for a pinned client."""


def unmapped_address(address: str) -> str:
    """An IPv4 address without the prefix that it has on a socket for both families."""
    return address.removeprefix("::ffff:") if "." in address else address


def format_socket_address(socket_address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """`10.0.0.7:4711` or `[fd00::7]:4711`."""
    address = unmapped_address(socket_address[0])
    return f"[{address}]:{socket_address[1]}" if ":" in address else f"{address}:{socket_address[1]}"


class Phase(enum.Enum):
    """What happens next on a connection. HEADER, BODY and IDLE have deadlines."""

    HEADER = "header"  # a request header is incomplete
    BODY = "body"  # the header is complete, the body is not
    ANSWERING = "answering"  # requests are complete and are being answered
    IDLE = "idle"  # between requests
    CLOSING = "closing"  # nothing more is written


_DEADLINE_PHASES: Final = frozenset({Phase.HEADER, Phase.BODY, Phase.IDLE})


class PhaseTimer:
    """The timer of the phase that a connection is in.

    A header must be complete within `header_timeout_s`, an idle connection be used within `keep_alive_s`. A body must
    be complete within `body_timeout_s`, without a pause over `body_idle_timeout_s`; the time during which the server
    itself does not read is excluded.
    """

    def __init__(self, options: ServeOptions, on_timeout: Callable[[Phase], None]) -> None:
        self._options = options
        self._on_timeout = on_timeout
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._watched: tuple[Phase, int] | None = None
        """The phase with a deadline, and the number of the request."""
        self._began_s = 0.0
        self._last_read_s = 0.0
        self._is_reading_paused = False

    def watch(self, phase: Phase, request: int) -> None:
        """Arm the timer that the phase of this request needs, and no other."""
        watched = (phase, request) if phase in _DEADLINE_PHASES else None
        if watched == self._watched:
            return
        self._watched = watched
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if watched is not None:
            wait_s = {
                Phase.HEADER: self._options.header_timeout_s,
                Phase.BODY: self._options.body_idle_timeout_s,
                Phase.IDLE: self._options.keep_alive_s,
            }[phase]
            self._began_s = self._last_read_s = self._loop.time()
            self._deadline = self._loop.call_later(wait_s, self._handle_timeout, phase)

    def record_read(self) -> None:
        """The client sent something."""
        self._last_read_s = self._loop.time()

    def pause(self) -> None:
        """The server does not read until `resume`."""
        self._is_reading_paused = True

    def resume(self) -> None:
        """The server reads again."""
        self._is_reading_paused = False
        self._exclude_read_pause()

    def stop(self) -> None:
        """End for good, and release the connection: until it is freed, OpenSSL keeps its session."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        self._on_timeout = _ignore

    def _handle_timeout(self, phase: Phase) -> None:
        self._deadline = None
        if phase is Phase.BODY and (left_s := self._seconds_until_body_deadline()) > 0:
            self._deadline = self._loop.call_later(left_s, self._handle_timeout, phase)
        else:
            self._on_timeout(phase)

    def _seconds_until_body_deadline(self) -> float:
        """Seconds until the body is late, as things stand."""
        if self._is_reading_paused:
            self._exclude_read_pause()
        idle_s = self._last_read_s + self._options.body_idle_timeout_s
        return min(idle_s, self._began_s + self._options.body_timeout_s) - self._loop.time()

    def _exclude_read_pause(self) -> None:
        now_s = self._loop.time()
        self._began_s += now_s - self._last_read_s
        self._last_read_s = now_s


def _ignore(_phase: Phase) -> None:
    """The connection has ended."""


_OVERHEAD_BYTES: Final = 65536
"""Of chunk extensions and trailers without any body among them; a header in front of them counts, too."""


class InputViolation(NamedTuple):
    """Why a connection ends because of what its client sent."""

    reason: str
    """One of `connection_close_reasons`."""
    status: int
    """Of the response, if one can be sent."""
    problem: Problem


class RequestHeaderCollector:
    """The header of one request after another. `on_url` and `on_header` are callbacks of the parser."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self.received_bytes = 0
        """Bytes of the header that came in so far."""
        self._overhead_bytes = 0
        self.had_body = False
        """Whether the read that is being parsed contains a part of a body."""

    def begin(self) -> None:
        """A new request begins."""
        self.received_bytes = 0
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def complete(self) -> InputViolation | None:
        """The header is complete; returns a violation if it is too large."""
        self._overhead_bytes = 0
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        return self._oversized(size) if size > self._max_bytes else None

    def build(self, parser: httptools.HttpRequestParser) -> RequestHeader:
        """The collected header. `parser` has just parsed its end."""
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        fields = dict(self._fields)
        length, content_type = fields.get(b"content-length"), fields.get(b"content-type")
        return RequestHeader(
            parser.get_method().decode("ascii"),
            urllib.parse.unquote(path) if "%" in path else path,
            url.query or b"",
            None if length is None else int(length),
            None if content_type is None else content_type.decode("latin-1"),
            fields.get(b"content-encoding", b"").decode("latin-1"),
            keep_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
            expects_continue=fields.get(b"expect", b"").lower() == b"100-continue",
            traceparent=fields.get(b"traceparent", b"").decode("latin-1"),
        )

    def count(self, before: Phase, now: Phase, size: int) -> InputViolation | None:
        """Count a read of `size` bytes, with the phases before and after it.

        A header that began within this read is counted when it is complete.
        """
        if now is Phase.HEADER and before is not Phase.BODY:
            self.received_bytes += size
            if self.received_bytes > self._max_bytes:
                return self._oversized(self.received_bytes)
        elif now is Phase.BODY:
            self._overhead_bytes = 0 if self.had_body else self._overhead_bytes + size
            self.had_body = False
            if self._overhead_bytes > _OVERHEAD_BYTES:
                problem = Problem("body", "chunk extensions or trailers without end", "a body")
                return InputViolation("bad_request", 400, problem)
        return None

    def _oversized(self, size: int) -> InputViolation:
        problem = Problem("header", f"{size} bytes or more", f"at most {self._max_bytes}")
        return InputViolation("header_size", 431, problem)


_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LINGER_S: Final = 1.0  # for a client to close its side after ours is closed; then its connection is dropped


class OpenConnections:
    """The open connections of a server, and what their responses have in common."""

    def __init__(self) -> None:
        self.open: set[HttpConnection] = set()
        self.tasks: set[asyncio.Future[None]] = set()
        """Handlers that are awaited."""
        self.date = b""
        """The value of the header field Date."""
        self.is_draining = False
        """Each response ends its connection."""


class HttpConnection(asyncio.Protocol):
    """One client's connection. `chain` is its certificate and what it sent with it, DER; empty without TLS."""

    transport: asyncio.Transport
    _write_deadline: asyncio.TimerHandle | None = None

    def __init__(
        self,
        application: Application,
        connections: OpenConnections,
        options: ServeOptions,
        close_reasons: CloseReasons,
        authorizer: "ClientAuthorizer | None",
    ) -> None:
        self.chain: tuple[bytes, ...] = ()
        self.verified: tuple[bytes, ...] = ()
        """The chain from its certificate to a trusted one, DER; empty if its session was resumed."""
        self.peer = ""
        """host:port; empty if unknown."""
        self._application = application
        self._connections = connections
        self._options = options
        self._close_reasons = close_reasons
        self._authorizer = authorizer
        self._loop = asyncio.get_running_loop()
        self.opened_s = self._loop.time()
        self._client = RemotePeer()
        self._header = RequestHeaderCollector(options.header_bytes)
        self.on_url, self.on_header = self._header.on_url, self._header.on_header
        self._parser = httptools.HttpRequestParser(self)
        # bytes after a request with `Connection: close` must not cost that request its response
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

        self._phase = Phase.HEADER
        self._timer = PhaseTimer(options, self._handle_timeout)
        self._requests = 0
        self._ignores_input = False
        """Drop whatever comes in: the connection is about to end."""

        self._exchanges: deque[HttpExchange] = deque()
        """Requests without a complete response, in order; the first is the one that is answered."""
        self._receiving: HttpExchange | None = None
        """The request whose body comes in; None if it is complete or refused."""
        self._awaiting: HttpExchange | None = None
        """The request whose handler is awaited."""
        self._pieces: Iterator[bytes] | None = None
        """The rest of the response that is being written."""
        self._is_last = False
        """The next response announces that the connection ends with it."""
        self._closes = False
        """Close after the response of the first exchange, whether or not it announces that."""
        self._was_closed_idle = False
        self._is_reading_paused = False
        self._is_writing_paused = False

    # called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._connections.open.add(self)
        if peer := transport.get_extra_info("peername"):
            self.peer = format_socket_address(peer)
        local = transport.get_extra_info("sockname")
        if len(self._connections.open) > self._options.max_connections:
            # the listener refuses at this number; several handshakes may end at once
            self._end_connection("too_many")
            return
        authorization = Authorization()
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and self._authorizer is not None:
            self.chain = server_tls_context.peer_certificates(secured)
            self.verified = server_tls_context.verified_certificates(secured)
            authorization = self._authorizer.examine(transport, self.chain, self.peer, self.verified)
            if authorization.refusal is None:
                # Go opens connections that it may use only later. A POST that it sends on one that the server is
                # closing fails, so they are closed after the time of idle connections, not after that of a header.
                self._phase = Phase.IDLE
        self._client = RemotePeer(
            self.peer,
            unmapped_address(local[0]) if local else "",
            authorization.refusal,
            authorization.pinned_only_refusal,
        )
        self._timer.watch(self._phase, self._requests)

    def connection_lost(self, _error: Exception | None) -> None:
        self._ignores_input = True
        self._connections.open.discard(self)
        self._timer.stop()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        self._write_deadline = self._pieces = self._receiving = None
        for exchange in self._exchanges:
            if exchange is not self._awaiting:
                exchange.close(sent=False)
        self._exchanges.clear()
        # Break the reference cycle now, not at the next garbage collection: OpenSSL drops a session that ended without
        # close_notify, which must not be resumed, only when the connection is freed.
        del self._parser

    def data_received(self, data: bytes) -> None:
        # A closing transport may still deliver what was on its way; it must have no effect.
        if self._ignores_input or self.transport.is_closing():
            return
        if self._phase is Phase.IDLE:
            self._phase = Phase.HEADER
            self._header.received_bytes = 0
        before = self._phase
        self._timer.record_read()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._ignores_input:
                problem = Problem("request", shown(str(error)), "HTTP/1.1")
                self._refuse_input(InputViolation("bad_request", 400, problem))
        if not self._ignores_input and (violation := self._header.count(before, self._phase, len(data))):
            self._refuse_input(violation)
        self._advance_first_exchange()
        self._timer.watch(self._phase, self._requests)

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        if self._write_deadline is None:
            self._write_deadline = self._loop.call_later(
                self._options.answer_timeout_s, self._abort_unread_response
            )

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        self._write_response_pieces()

    # called by the parser

    def on_message_begin(self) -> None:
        self._requests += 1
        self._phase = Phase.HEADER
        self._header.begin()

    def on_headers_complete(self) -> None:
        if self._ignores_input:
            return
        if violation := self._header.complete():
            self._refuse_input(violation)
        elif len(self._exchanges) > self._options.max_pipelined:
            self._end_connection("pipelined")
        elif self._parser.should_upgrade():
            problem = Problem("Upgrade", "another protocol", "HTTP/1.1")
            self._end_connection("bad_request", "an upgrade", refusal_response(400, problem))
        else:
            self._receiving = exchange = self._application.open(
                self._header.build(self._parser), self._client
            )
            self._phase = Phase.BODY
            self._exchanges.append(exchange)
            if len(self._exchanges) > 1:
                self._pause_reading()

    def on_body(self, body: bytes) -> None:
        self._header.had_body = True
        if not self._ignores_input and self._receiving is not None:
            self._receiving.receive(body)

    def on_message_complete(self) -> None:
        if self._ignores_input:
            return
        self._receiving = None
        self._phase = Phase.ANSWERING if self._exchanges else Phase.IDLE

    # called by the server

    @property
    def is_closing(self) -> bool:
        """Whether the end of the connection has begun. The client may still be reading the last response."""
        return self._phase is Phase.CLOSING

    def close_when_idle(self) -> None:
        """Close: at once when idle, after the response when a request is being answered."""
        self._is_last = self._closes = True
        if not self._exchanges:
            self._was_closed_idle = self._phase is not Phase.BODY  # a refusal of a body may not have arrived
            self._close()

    def abort_if_closed_idle(self) -> None:
        """Do not wait for the client to close its side of a connection that was closed while idle.

        A client that reads only responses, such as one with a pool of connections, does not close its side. No response
        can be lost. Call it after the event loop has written the end of TLS.
        """
        if self._was_closed_idle and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def finish(self) -> None:
        """Close with the next response, which announces it: the client connects again, and no call fails.

        A response that is being written may have announced already that the connection stays open.
        """
        self._is_last = True

    # requests and responses

    def _advance_first_exchange(self) -> None:
        """Do what can be done for the first exchange."""
        if not self._exchanges or self._phase is Phase.CLOSING or self._pieces or self._awaiting:
            return
        exchange = self._exchanges[0]
        is_new = not exchange.is_started
        if is_new:
            exchange.start()
        if exchange.response is not None:
            self._write_response(exchange)
        elif exchange is self._receiving:
            if is_new and exchange.head.expects_continue:
                self.transport.write(_CONTINUE)
        elif (pending := exchange.finish()) is None:
            self._write_response(exchange)
        else:
            self._awaiting = exchange
            task = self._loop.create_task(self._await_handler(exchange, pending))
            self._connections.tasks.add(task)
            task.add_done_callback(self._connections.tasks.discard)

    async def _await_handler(self, exchange: HttpExchange, pending: Awaitable[None]) -> None:
        try:
            await pending
        finally:
            self._awaiting = None
            if not self._exchanges:
                exchange.close(sent=False)  # the client has left
        if self._exchanges:
            self._write_response(exchange)

    def _write_response(self, exchange: HttpExchange) -> None:
        """Write the response of the first exchange. The rest of a body that it refuses is dropped."""
        if exchange is self._receiving:
            self._receiving = None
        if exchange.response is None or self._phase is Phase.CLOSING or self.transport.is_closing():
            return  # `connection_lost` closes the exchange
        self._closes |= (
            self._is_last
            or self._connections.is_draining
            or self._client.refusal is not None
            or not exchange.head.keep_alive
        )
        try:
            self._pieces = encode_response(
                exchange.response,
                close=self._closes,
                date=self._connections.date,
                with_body=exchange.head.method != "HEAD",
            )
        except Exception:  # noqa: BLE001 - a handler's response may be anything
            exchange.log_exception()
            self._close()
            return
        self._write_response_pieces()

    def _write_response_pieces(self) -> None:
        while self._pieces is not None and not (self._is_writing_paused or self.transport.is_closing()):
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
                self._start_next_exchange()
            else:
                self.transport.write(piece)

    def _start_next_exchange(self) -> None:
        self._exchanges.popleft().close(sent=True)
        if self._closes:
            self._ignores_input = True
            self._phase = Phase.CLOSING
            self.transport.close()
            return
        if len(self._exchanges) <= 1:
            self._resume_reading()
        if self._exchanges:
            self._loop.call_soon(self._advance_first_exchange)  # other connections go first
        elif self._phase is Phase.ANSWERING:
            self._phase = Phase.IDLE
        self._timer.watch(self._phase, self._requests)

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._timer.pause()
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._timer.resume()
            self.transport.resume_reading()

    # deadlines

    def _handle_timeout(self, phase: Phase) -> None:
        if phase is Phase.IDLE:
            self._close()
        elif phase is Phase.HEADER:
            timeout_s = self._options.header_timeout_s
            problem = Problem("header", "not complete", f"all of it within {timeout_s:g} s")
            refusal = refusal_response(408, problem) if self._header.received_bytes else None
            self._end_connection("header_deadline", response=refusal)
        else:
            timeout_s, idle_s = self._options.body_timeout_s, self._options.body_idle_timeout_s
            expected = f"all of it within {timeout_s:g} s, no pause over {idle_s:g} s"
            problem = Problem("body", "not complete", expected)
            self._end_connection("body_deadline", response=refusal_response(408, problem))

    def _abort_unread_response(self) -> None:
        self._write_deadline = None
        self._ignores_input = True
        self._close_reasons.record("answer_deadline", self.peer)
        self.transport.abort()

    # end of the connection

    def _refuse_input(self, violation: InputViolation) -> None:
        problem = violation.problem
        self._end_connection(violation.reason, problem.found, refusal_response(violation.status, problem))

    def _end_connection(self, reason: str, detail: str = "", response: Response | None = None) -> None:
        """Record why, send the response where it does not get into the middle of another one, and close.

        What is wrong with a request that was sent ahead does not cost the one before it its response.
        """
        self._close_reasons.record(reason, self.peer, detail)
        is_incomplete = self._phase is Phase.BODY
        if len(self._exchanges) == 1 and not is_incomplete:
            self._ignores_input = self._is_last = self._closes = True
            return
        is_answered = is_incomplete and not self._exchanges
        is_behind = self._pieces is not None or len(self._exchanges) > 1
        if response is None or is_answered or is_behind or self.transport.is_closing():
            self._close()
        else:
            self._send_last_response_and_close(b"".join(encode_response(response, close=True)))

    def _send_last_response_and_close(self, response: bytes) -> None:
        """Write and close, without a reset that would overtake the response while the client is still sending."""
        self._ignores_input = True
        self._phase = Phase.CLOSING
        self.transport.write(response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self._close()  # TLS announces the end by itself, and reads until the client has done so

    def _close(self) -> None:
        self._ignores_input = True
        self._phase = Phase.CLOSING
        self.transport.close()
        self._loop.call_later(_LINGER_S, self.transport.abort)
