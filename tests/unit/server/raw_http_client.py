"""A client that sends exactly the given bytes, and a server for tests."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, Request, Response, Route
from nodewise.server.options import ServeOptions
from nodewise.server.server import HttpServer

PATIENCE_S = 60.0
JSON = {"Content-Type": "application/json"}


class ParsedResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def field(self) -> str:
        """The first field that an error response names."""
        return self.json()["problems"][0]["field"]


class RawClient:
    """A client with one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head: bool = False) -> ParsedResponse:
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])
            }
            length = 0 if head else int(headers.get("content-length", 0))
            return ParsedResponse(int(lines[0].split()[1]), headers, await self.reader.readexactly(length))

    async def ask(
        self, path: str, body: bytes = b"{}", method: str = "POST", headers: dict[str, str] | None = None
    ) -> ParsedResponse:
        await self.send(encode_request(path, body, method, headers))
        return await self.answer(head=method == "HEAD")

    async def rest(self) -> bytes:
        """The remaining bytes until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def encode_request(
    path: str, body: bytes = b"{}", method: str = "POST", headers: dict[str, str] | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: extender", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (JSON if headers is None else headers).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.asynccontextmanager
async def open_client(server: HttpServer, context: ssl.SSLContext | None = None) -> AsyncIterator[RawClient]:
    """A connection to the server. Without a TLS context it is plain text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    caller = RawClient(reader, writer)
    try:
        yield caller
    finally:
        await caller.close()


class RefusedError(Exception):
    """The server closed the connection without a response."""


async def send_request(server: HttpServer, context: ssl.SSLContext) -> ParsedResponse:
    """Send a request on a new connection. RefusedError contains the client's error."""
    try:
        async with open_client(server, context) as caller:
            return await caller.ask("/echo")
    except (OSError, EOFError) as error:
        raise RefusedError(str(error)) from error


async def send_request_until_served(server: HttpServer, context: ssl.SSLContext) -> ParsedResponse:
    """Repeat `send_request` until it succeeds. A suspended machine can let the short timeouts of a test expire."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(RefusedError):
                return await send_request(server, context)


def echo(encode_request: Request) -> Response:
    return Response(200, encode_request.body)


ECHO = Route("POST", "/echo", echo)


class BlockingHandler:
    """A handler that waits for the event `go`."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, _request: Request) -> Response:
        self.begun.set()
        await self.go.wait()
        return Response(200, b"at last")

    @property
    def route(self) -> Route:
        return Route("POST", "/slow", self)


@contextlib.asynccontextmanager
async def run_server(
    options: ServeOptions,
    routes: Sequence[Route] = (ECHO,),
    metrics_registry: MetricsRegistry | None = None,
    *,
    verify_clients: bool = True,
) -> AsyncIterator[HttpServer]:
    metrics_registry = metrics_registry or MetricsRegistry()
    app = Application(routes, metrics_registry, max_body_bytes=options.max_body_bytes)
    server = HttpServer(app, options, metrics_registry, verify_clients=verify_clients)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(grace_s=0.1)


PLAIN = ServeOptions(
    unsafe=True, port=0, reload_period_s=0.02, header_timeout_s=PATIENCE_S, body_idle_timeout_s=PATIENCE_S
)


def metric_value(metrics_registry: MetricsRegistry, name: str, **labels: str) -> float:
    """The value of one series, or 0 if it does not exist."""
    value = metrics_registry._registry.get_sample_value(f"nodewise_{name}", labels)
    return value or 0.0


def counted_close_reasons(metrics_registry: MetricsRegistry) -> list[str]:
    """The close reasons that the server counted."""
    (family,) = (
        family
        for family in metrics_registry._registry.collect()
        if family.name == "nodewise_connections_ended"
    )
    return [sample.labels["reason"] for sample in family.samples if sample.name.endswith("_total")]


async def wait_until(what, within_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(within_s):
        while not what():
            await asyncio.sleep(0.005)


def count_reloads(metrics_registry: MetricsRegistry, certificate: str) -> float:
    """The successful reloads of `serving` or `client_ca`."""
    return metric_value(metrics_registry, "tls_reloads_total", certificate=certificate, outcome="done")


def is_reload_failing(metrics_registry: MetricsRegistry, certificate: str) -> float:
    return metric_value(metrics_registry, "tls_reload_failing", certificate=certificate)


def count_ended(metrics_registry: MetricsRegistry, reason: str) -> float:
    return metric_value(metrics_registry, "connections_ended_total", reason=reason)
