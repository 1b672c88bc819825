"""HTTP server for the API server in memory, on loopback and in its own thread, for processes that need one."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import uvicorn

from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube.api_server_interface import Expired, NotFound, Patch
from nodewise.scheduling_model.in_memory_api import FakeApi

T = TypeVar("T")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

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


class ApiServer:
    """Serves a `FakeApi` at `url`. Change objects only through `call`, because they belong to the server's thread."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._opened = socket.create_server(("127.0.0.1", 0))
        # A response is sent as head and body: with Nagle's algorithm the body would wait 40 ms for the client's ACK.
        self._opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.new_event_loop()
        self.url = f"http://127.0.0.1:{self._opened.getsockname()[1]}"
        config = uvicorn.Config(self, loop="none", lifespan="off", log_config=None, access_log=False)
        self._server = uvicorn.Server(config)
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
        self._loop.call_soon_threadsafe(self._api.cut)
        self._server.should_exit = True
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve(sockets=[self._opened]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        params = dict(parse_qsl(scope["query_string"].decode()))
        path = scope["raw_path"].decode() if scope.get("raw_path") else scope["path"]
        try:
            if params.pop("watch", "") in {"1", "true"}:
                await self._send_watch_events(path, params, receive, send)
                return
            answer = await self._answer_request(scope, path, params, await _request_body(receive))
        except NodewiseError as error:
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            causes = [
                {"field": problem.field, "message": problem.found}
                for problem in error.problems
                if problem.field
            ]
            status = {"kind": "Status", "code": code, "message": str(error), "details": {"causes": causes}}
            await _send_response(send, code, json.dumps(status).encode())
        else:
            await _send_response(send, 200, answer)

    async def _answer_request(self, scope: Scope, path: str, params: dict[str, str], body: bytes) -> bytes:
        method = scope["method"]
        if method == "GET":
            return await self._api.get(path, params)
        if method == "POST":
            return await self._api.create(path, body, params)
        if method == "PUT":
            return await self._api.replace(path, body, params)
        if method == "PATCH":
            kind = _PATCHES[dict(scope["headers"]).get(b"content-type", b"").decode()]
            return await self._api.patch(path, body, kind, params)
        return await self._api.delete(path, body, params)

    async def _send_watch_events(
        self, path: str, params: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Send watch events until the client disconnects."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        async with contextlib.aclosing(self._api.watch(path, params)) as lines:
            while True:
                line = asyncio.ensure_future(anext(lines, b""))
                await asyncio.wait({line, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if disconnected.done() or not line.result():
                    line.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await line
                    break
                await send({"type": "http.response.body", "body": line.result() + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _request_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _send_response(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(api: FakeApi) -> Iterator[ApiServer]:
    """Serve until the block ends."""
    server = ApiServer(api)
    server.start()
    try:
        yield server
    finally:
        server.stop()
