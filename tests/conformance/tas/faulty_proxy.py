"""A proxy between a process and the API server that counts requests and fails some of them.

Faults and counts are by the path of a collection, such as /api/v1/nodes, or by the name of a node.
"""

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import httpx2
import msgspec

from tests.cluster import asgi_server_thread
from tests.cluster.asgi_server_thread import Receive, Scope, Send

NODES = "/api/v1/nodes"
METRICS = "/apis/custom.metrics.k8s.io"
_PASSED = (b"content-type", b"accept", b"user-agent")


class ForwardedRequest(NamedTuple):
    """A request that the proxy received."""

    method: str
    path: str
    query: str


class TasFaultyProxy:
    """An ASGI application.

    The process connects to it by plain HTTP. It connects to the API server with the certificate of the process's user.
    """

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._url, self._context = url, context
        self._client: httpx2.AsyncClient | None = None
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        self._expired: set[str] = set()
        self._refused: dict[str, int] = {}
        self._versions: dict[str, str] = {}
        self.requests: list[ForwardedRequest] = []
        self.in_vain: Counter[str] = Counter()
        """Lists and watches that got the status 503, by collection."""
        self.watched: Counter[str] = Counter()
        """Open watches, by collection."""
        self.patches: Counter[str] = Counter()
        """Server-side applies that the API server accepted, by node."""
        self.idle: list[str] = []
        """The nodes of applies that changed nothing."""

    def lose(self, *collections: str) -> None:
        """Fail lists and watches of these collections from now on, and end open watches."""
        self._lost.update(collections)

    def find(self, *collections: str, expired: bool = False) -> None:
        """End the faults of these collections. `expired`: their next watch fails with status 410."""
        if expired:
            self._expired.update(collections)
        self._lost.difference_update(collections)

    def refuse(self, node: str, status: int) -> None:
        """Fail patches of a node with this status; 0 ends the fault."""
        self._refused[node] = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        body = await asgi_server_thread.body_of(receive)
        request = ForwardedRequest(scope["method"], path, query)
        with self._lock:
            self.requests.append(request)
        if request.method == "GET" and path in self._lost:
            self.in_vain[path] += 1
            return await asgi_server_thread.answer(send, 503, _status(503))
        if path in self._expired and "watch=" in query:
            self._expired.discard(path)
            return await asgi_server_thread.answer(send, 200, {"type": "ERROR", "object": _status(410)})
        is_node = request.method == "PATCH" and path.startswith(f"{NODES}/")
        node = path.removeprefix(f"{NODES}/") if is_node else ""
        if status := self._refused.get(node):
            return await asgi_server_thread.answer(send, status, _status(status))
        response = await self._asked(request, scope, body)
        try:
            if "watch=" in request.query:
                await self._stream(request.path, response, receive, send)
            else:
                content = await response.aread()
                if node and response.status_code == 200 and _is_apply(scope):
                    self._note(node, content)
                await asgi_server_thread.answer(send, response.status_code, content)
        finally:
            await response.aclose()

    async def _asked(self, request: ForwardedRequest, scope: Scope, body: bytes) -> httpx2.Response:
        if self._client is None:
            self._client = httpx2.AsyncClient(verify=self._context, timeout=None, trust_env=False)
        headers = [(name, value) for name, value in scope["headers"] if name in _PASSED]
        url = f"{self._url}{request.path}" + (f"?{request.query}" if request.query else "")
        sent = self._client.build_request(request.method, url, headers=headers, content=body)
        return await self._client.send(sent, stream=True)

    async def _stream(self, path: str, response: httpx2.Response, receive: Receive, send: Send) -> None:
        """Pass on the data of a watch until the server ends it, the client disconnects, or the collection is lost."""
        head = {"type": "http.response.start", "status": response.status_code}
        await send({**head, "headers": [(b"content-type", b"application/json")]})
        pieces = aiter(response.aiter_bytes())
        self.watched[path] += 1
        gone = asyncio.ensure_future(receive())
        coming = asyncio.ensure_future(anext(pieces, b""))
        while path not in self._lost and not gone.done():
            await asyncio.wait([coming, gone], timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                continue
            piece = coming.result()
            if not piece:
                break
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            coming = asyncio.ensure_future(anext(pieces, b""))
        self.watched[path] -= 1
        for task in (coming, gone):
            task.cancel()
        await asyncio.gather(coming, gone, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    def _note(self, node: str, content: bytes) -> None:
        """Count an apply. An apply that leaves the resource version unchanged changed nothing."""
        version = msgspec.json.decode(content)["metadata"]["resourceVersion"]
        with self._lock:
            self.patches[node] += 1
            if self._versions.get(node) == version:
                self.idle.append(node)
            self._versions[node] = version


def _is_apply(scope: Scope) -> bool:
    return (b"content-type", b"application/apply-patch+yaml") in scope["headers"]


def _status(code: int) -> dict[str, object]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return status | {
        "code": code,
        "reason": "Expired" if code == 410 else "",
        "message": f"told to say {code}",
    }


@contextlib.contextmanager
def serving(url: str, context: ssl.SSLContext) -> Iterator[tuple[TasFaultyProxy, str]]:
    """A proxy to the API server at `url` that runs until the block ends, and its address for the process."""
    proxy = TasFaultyProxy(url, context)
    with asgi_server_thread.serving(proxy) as address:
        yield proxy, address
