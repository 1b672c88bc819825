"""HTTP server for the API server in memory, on loopback and in its own thread, for processes that need one.

It serves trusted clients of this machine, without limits and deadlines, and unlike `server` it streams watches.
"""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import Expired, NotFound, Patch
from nodewise.scheduling_model.in_memory_api import FakeApi

T = TypeVar("T")

_CODES: Final[tuple[tuple[type[NodewiseError], int], ...]] = (
    (NotFound, 404),
    (Expired, 410),
    (Conflict, 409),
    (Refused, 403),
    (BadInput, 400),
    (Unavailable, 503),
)
_PATCHES: Final[dict[str, Patch]] = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/apply-patch+yaml": "apply",
    "application/strategic-merge-patch+json": "strategic",
}


class ApiRequest(NamedTuple):
    method: str
    path: str
    """As sent, without the query."""
    params: dict[str, str]
    content_type: str
    body: bytes


class ApiServer:
    """Serves a `FakeApi` at `url`. Change objects only through `call`, because they belong to the server's thread."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._opened = socket.create_server(("127.0.0.1", 0))
        self._loop = asyncio.new_event_loop()
        self.url = f"http://127.0.0.1:{self._opened.getsockname()[1]}"
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def call(self, work: Callable[[FakeApi], T]) -> T:
        """Run `work` in the server's thread and return its result."""

        async def run() -> T:
            return work(self._api)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig for this server."""
        file = folder / "kubeconfig"
        entry = {"name": "here"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [entry | {"cluster": {"server": self.url}}],
            "users": [entry | {"user": {}}],
            "contexts": [entry | {"context": {"cluster": "here", "user": "here"}}],
            "current-context": "here",
        }
        file.write_text(json.dumps(document))
        file.chmod(0o600)
        return file

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve_connection, sock=self._opened, limit=2**20)
        )
        self._loop.run_forever()

    async def _close(self) -> None:
        """End all watches, then all connections."""
        self._server.close()
        self._api.cut()
        await asyncio.sleep(0)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                await self.serve_request(await _read_request(reader), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, maybe within a request, or the server stops
        finally:
            self._connections.discard(task)
            writer.close()

    async def serve_request(
        self, request: ApiRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Write the response to a request. ConnectionError if the client disconnects."""
        if request.params.pop("watch", "") in {"1", "true"}:
            await self._send_watch_events(request, reader, writer)
            return
        try:
            code, body = 200, await self._answer_request(request)
        except NodewiseError as error:
            code, body = encode_error(error)
        await _send_response(writer, code, body)

    async def _answer_request(self, request: ApiRequest) -> bytes:
        method, path, params, content_type, body = request
        match method:
            case "GET":
                return await self._api.get(path, params)
            case "POST":
                return await self._api.create(path, body, params)
            case "PUT":
                return await self._api.replace(path, body, params)
            case "PATCH":
                return await self._api.patch(path, body, _PATCHES[content_type], params)
        return await self._api.delete(path, body, params)

    async def _send_watch_events(
        self, request: ApiRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send watch events in chunks until the client disconnects, which ends the connection, or the watch ends."""
        disconnected = watch_disconnection(reader)
        try:
            async with contextlib.aclosing(self._api.watch(request.path, request.params)) as lines:
                line = asyncio.ensure_future(anext(lines, b""))
                await asyncio.wait({line}, timeout=0.01)  # a watch that is refused fails at once
                if line.done() and isinstance(error := line.exception(), NodewiseError):
                    await _send_response(writer, *encode_error(error))
                    return
                writer.write(status_line(200) + b"transfer-encoding: chunked\r\n\r\n")
                while True:
                    await asyncio.wait({line, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                    if disconnected.done() or not line.result():
                        line.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await line
                        break
                    writer.write(b"%x\r\n%b\n\r\n" % (len(line.result()) + 1, line.result()))
                    await writer.drain()
                    line = asyncio.ensure_future(anext(lines, b""))
            writer.write(b"0\r\n\r\n")
        finally:
            disconnected.cancel()


def watch_disconnection(reader: asyncio.StreamReader) -> asyncio.Task[bytes]:
    """Done when the client disconnects. An error of the connection is retrieved, so that asyncio does not log it."""
    task = asyncio.ensure_future(reader.read(1))
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


async def _read_request(reader: asyncio.StreamReader) -> ApiRequest:
    """The next request of a connection; IncompleteReadError at its end. A body has a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    body = await reader.readexactly(int(fields.get("content-length", "0")))
    return ApiRequest(method, path, dict(parse_qsl(query)), fields.get("content-type", ""), body)


def encode_error(error: NodewiseError) -> tuple[int, bytes]:
    """The HTTP status of an error, and a Status as JSON."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    causes = [
        {"field": problem.field, "message": problem.found} for problem in error.problems if problem.field
    ]
    status = {"kind": "Status", "code": code, "message": str(error), "details": {"causes": causes}}
    return code, json.dumps(status).encode()


async def _send_response(writer: asyncio.StreamWriter, code: int, body: bytes) -> None:
    header = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    writer.write(status_line(code) + header + body)
    await writer.drain()


def status_line(code: int) -> bytes:
    """The first line of a response."""
    return b"HTTP/1.1 %d %s\r\n" % (code, HTTPStatus(code).phrase.encode())


@contextlib.contextmanager
def serving(api: FakeApi) -> Iterator[ApiServer]:
    """Serve until the block ends."""
    server = ApiServer(api)
    server.start()
    try:
        yield server
    finally:
        server.stop()
