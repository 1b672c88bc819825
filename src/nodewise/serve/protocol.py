"""One connection: uvicorn's HTTP/1.1 on httptools, with the limits and deadlines that it leaves out.

A connection is always in one of three phases. HEADER: something of a request came in, not all of its
header. BODY: the header is complete, the body is not. QUIET: between requests, or one is being answered.
HEADER and BODY have a deadline; between requests uvicorn's keep-alive holds. A request that comes in with
one read, as kube-scheduler's do, never arms a timer.
"""

import asyncio
import enum
import logging
from collections.abc import Sequence
from typing import Final, Protocol, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from nodewise.errors import Problem, shown
from nodewise.serve import answers, hello
from nodewise.serve.answers import PINNED_ONLY_REFUSAL, Response
from nodewise.serve.endings import Endings
from nodewise.serve.gate import Authorization
from nodewise.serve.options import ServeOptions

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"  # what uvicorn writes before it asks for a body
_LINGER_S: Final = 1.0  # for a client to say goodbye when we close; then its connection is dropped
_OVERHEAD_BYTES: Final = (
    65536  # of chunk extensions and trailers without any body among them; a header before it counts, too
)

# What uvicorn would log here is answered, counted and logged by us; only a cancelled answer would be left.
_MUTE: Final = logging.getLogger("nodewise.serve.protocol")
_MUTE.disabled = True


class Phase(enum.Enum):
    """What of a request is still to come."""

    HEADER = "header"
    BODY = "body"
    QUIET = "quiet"


class Examiner(Protocol):
    """Decides when a connection opens what its client may call."""

    def examine(
        self, transport: asyncio.BaseTransport, chain: Sequence[bytes], peer: str
    ) -> Authorization: ...


class _Cork:
    """The part of a transport that an answer uses; keeps its header back until the body comes.

    One write is one TLS record, one packet and one waking of the client where uvicorn makes two of each.
    """

    __slots__ = ("_header", "_transport")

    def __init__(self, transport: asyncio.Transport, *, has_body: bool) -> None:
        self._transport = transport
        self._header: bytes | None = None if has_body else b""  # None before it came, empty after it went

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # uvloop would raise; whose connection it was is gone
        if data == _CONTINUE or self._header == b"":
            self._transport.write(data)
        elif self._header is None:
            self._header = data
        else:
            self._transport.write(self._header + data)
            self._header = b""

    def close(self) -> None:
        # a header still held back is dropped: no answer is better than one without its body
        self._transport.close()


class Connection(HttpToolsProtocol):
    """One client's connection. `chain` is its certificate and what it sent with it, DER; empty without TLS."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        options: ServeOptions,
        noted: Endings,
        gate: Examiner | None,
    ) -> None:
        super().__init__(config, state, {})
        self.logger = _MUTE
        self.access_log = False
        self.chain: tuple[bytes, ...] = ()
        self.opened_s = self.loop.time()
        self._is_last = False
        self.peer = ""
        self._options = options
        self._noted = noted
        self._gate = gate
        self._phase = Phase.HEADER
        self._requests = 0
        self._header_bytes = 0
        self._overhead_bytes = 0
        self._had_body = False
        self._began_s = 0.0
        self._heard_s = 0.0
        self._watched: tuple[Phase, int] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._deaf = False

    # what the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = f"{self.client[0]}:{self.client[1]}" if self.client else ""
        if len(self.connections) > self._options.max_connections:
            # the listener refuses at this number; several handshakes may end at once
            self._end("too_many")
            return
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and self._gate is not None:
            self.chain = hello.chain_of(secured)
            authorization = self._gate.examine(transport, self.chain, self.peer)
            # each request's scope has a copy: the application refuses routes for pinned clients only
            self.app_state[PINNED_ONLY_REFUSAL] = authorization.pinned_only_refusal
            if authorization.refusal is not None:
                self.app = cast("ASGI3Application", answers.always(authorization.refusal))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        self._deadline = self._write_deadline = None
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # A closing transport may still hand out what was on its way; nothing of it may be acted upon.
        if self._deaf or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        before = self._phase
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._deaf:
                self._unreadable(error)
            return
        if not self._deaf:
            self._measure(before, len(data))
            self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self._options.answer_timeout_s, self._unread)

    def resume_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        super().resume_writing()

    # what the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._requests += 1
        self._phase = Phase.HEADER
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._options.header_bytes:
            self._refuse_header(size)
        elif len(self.pipeline) >= self._options.max_pipelined:
            self._end("pipelined")
        elif self.parser.should_upgrade():
            found = Problem("Upgrade", "another protocol", "HTTP/1.1")
            self._end("bad_request", "an upgrade", answers.refusal(400, found))
        else:
            super().on_headers_complete()
            self._phase = Phase.BODY
            cork = _Cork(self.transport, has_body=self.scope["method"] != "HEAD")
            self.cycle.transport = cast("asyncio.Transport", cork)
            if self._is_last:
                self.cycle.keep_alive = False
            self._overhead_bytes = 0

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            self._had_body = True
            held = cast("bytes | bytearray", self.cycle.body)
            if not held:
                # what is taken before more comes need not be copied into a bytearray, and out of it again
                self.cycle.body = cast("bytearray", body)
                body = b""
            elif isinstance(held, bytes):
                self.cycle.body = bytearray(held)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._deaf:
            self._phase = Phase.QUIET
            super().on_message_complete()
            if not self._is_busy():
                # it was answered before its body was over; now the connection is idle
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    # what the server calls

    def retire(self) -> None:
        """Close: at once when idle, after the answer when one is under way."""
        if self._is_busy():
            self.cycle.keep_alive = False
        else:
            self._close()

    def finish(self) -> None:
        """Close with the answer to the next request, which says so: the client connects anew, and no call fails.

        An answer that is under way may have said already that the connection stays.
        """
        self._is_last = True

    # limits

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _measure(self, before: Phase, size: int) -> None:
        """Count what came in beside bodies; a header that began within this read is counted when complete."""
        if self._phase is Phase.HEADER and before is not Phase.BODY:
            self._header_bytes += size
            if self._header_bytes > self._options.header_bytes:
                self._refuse_header(self._header_bytes)
        elif self._phase is Phase.BODY:
            self._overhead_bytes = 0 if self._had_body else self._overhead_bytes + size
            self._had_body = False
            if self._overhead_bytes > _OVERHEAD_BYTES:
                found = Problem("body", "chunk extensions or trailers without end", "a body")
                self._end("bad_request", found.seen, answers.refusal(400, found))

    def _refuse_header(self, size: int) -> None:
        found = Problem("header", f"{size} bytes or more", f"at most {self._options.header_bytes}")
        self._end("header_size", found.seen, answers.refusal(431, found))

    def _unreadable(self, error: Exception) -> None:
        seen = shown(str(error))
        self._end("bad_request", seen, answers.refusal(400, Problem("request", seen, "HTTP/1.1")))

    # deadlines

    def _watch(self) -> None:
        """Have the timer that the phase needs, and no other."""
        phase = self._phase
        if phase is Phase.QUIET and not self._is_busy() and self.timeout_keep_alive_task is None:
            phase = Phase.HEADER  # empty lines between requests: the next one has begun in a way
        watched = None if phase is Phase.QUIET else (phase, self._requests)
        if watched is not None:
            self._heard_s = self.loop.time()
        if watched == self._watched:
            return
        self._watched = watched
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if watched is not None:
            self._began_s = self._heard_s
            wait_s = (
                self._options.header_timeout_s if phase is Phase.HEADER else self._options.body_idle_timeout_s
            )
            self._deadline = self.loop.call_later(wait_s, self._late)

    def _late(self) -> None:
        self._deadline = None
        if self._phase is not Phase.BODY:
            found = Problem(
                "header", "not complete", f"all of it within {self._options.header_timeout_s:g} s"
            )
            said_anything = self._header_bytes > 0
            self._end("header_deadline", response=answers.refusal(408, found) if said_anything else None)
            return
        left_s = self._body_left_s()
        if left_s > 0:
            self._deadline = self.loop.call_later(left_s, self._late)
        else:
            whole_s, pause_s = self._options.body_timeout_s, self._options.body_idle_timeout_s
            wanted = f"all of it within {whole_s:g} s, no pause over {pause_s:g} s"
            self._end("body_deadline", response=answers.refusal(408, Problem("body", "not complete", wanted)))

    def _body_left_s(self) -> float:
        """Seconds until the body is late, as things stand."""
        now_s = self.loop.time()
        if self.flow.read_paused:
            # it is we who do not listen: that time does not count
            self._began_s += now_s - self._heard_s
            self._heard_s = now_s
        return (
            min(
                self._heard_s + self._options.body_idle_timeout_s,
                self._began_s + self._options.body_timeout_s,
            )
            - now_s
        )

    def _unread(self) -> None:
        self._write_deadline = None
        self._deaf = True
        self._noted.note("answer_deadline", self.peer)
        self.transport.abort()

    # ending

    def _end(self, reason: str, detail: str = "", response: Response | None = None) -> None:
        """Note why, say so where it does not land in the middle of another answer, and close.

        What is wrong with a request that was sent ahead does not take the answer of the one before it.
        """
        self._noted.note(reason, self.peer, detail)
        if self._is_busy() and self._phase is not Phase.BODY and not self.pipeline:
            self._deaf = True
            self.cycle.keep_alive = False
            return
        begun = self._is_busy() and (self.cycle.response_started or bool(self.pipeline))
        if response is not None and not begun and not self.transport.is_closing():
            self._say_last(answers.wire(response))
        else:
            self._close()

    def _say_last(self, words: bytes) -> None:
        """Write and close, without a reset that would overtake the words while the client is still sending."""
        self._deaf = True
        self.transport.write(words)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self._close()  # TLS says goodbye by itself, and reads until the client has done so

    def _close(self) -> None:
        self._deaf = True
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)
