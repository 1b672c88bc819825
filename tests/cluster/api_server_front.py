"""A proxy in front of the API server: it does not know some API groups, as an API server that has just started, or is
slow or overloaded.
"""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster import asgi_server_thread
from tests.cluster.asgi_server_thread import Receive, Scope, Send

RETRY_AFTER_S = 1
_FORWARDED = (b"authorization", b"content-type", b"accept")
_CHECK_S = 0.1


class ApiServerFront:
    """The proxy, which `serving` runs in a thread. `url` has no TLS; requests keep their tokens."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self.url = ""
        self.hidden_group = ""
        """The API group that is missing: discovery does not have it, its paths respond 404, and its watches end."""
        self.held_path = ""
        """Bodies of responses below this path are held back, so that watches are late."""
        self.patch_delay_s = 0.0
        """The time by which the response to each patch is later."""
        self.most_patches = float("inf")
        """The patches in a second beyond which a patch gets 429 with `RETRY_AFTER_S`."""
        self.patched_s: list[float] = []
        """The monotonic times of patches."""
        self.limited_s: list[float] = []
        """The times of those that got 429."""
        self.refused = 0
        """Number of requests that got 404 because of the missing group."""
        self._server = server
        self._context = context
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                base_url=self._server, verify=self._context, timeout=None, trust_env=False
            )
        path = scope["raw_path"].decode()
        if self._is_hidden(path):
            self.refused += 1
            await asgi_server_thread.answer(send, 404, b"404 page not found")
            return
        if scope["method"] == "PATCH":
            now_s = time.monotonic()
            recent = sum(at_s > now_s - 1.0 for at_s in self.patched_s[-1000:])
            self.patched_s.append(now_s)
            if recent >= self.most_patches:
                self.limited_s.append(now_s)
                headers = [(b"retry-after", str(RETRY_AFTER_S).encode())]
                await send({"type": "http.response.start", "status": 429, "headers": headers})
                await send(
                    {"type": "http.response.body", "body": b"Too many requests, please try again later."}
                )
                return
            await asyncio.sleep(self.patch_delay_s)
        query = scope["query_string"].decode()
        request = self._client.build_request(
            scope["method"],
            f"{path}?{query}" if query else path,
            headers=[(name, value) for name, value in scope["headers"] if name in _FORWARDED],
            content=await asgi_server_thread.body_of(receive),
        )
        response = await self._client.send(request, stream=True)
        try:
            if path == "/apis" and self.hidden_group:
                await asgi_server_thread.answer(send, 200, self._without_group(await response.aread()))
                return
            headers = [(b"content-type", response.headers["content-type"].encode())]
            await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            async for piece in self._pieces(path, response):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await response.aclose()

    async def _pieces(self, path: str, response: httpx2.Response) -> AsyncIterator[bytes]:
        """The body of a response, until its group is missing."""
        pieces = response.aiter_bytes()
        reading: asyncio.Future[Any] = asyncio.ensure_future(anext(pieces, None))
        try:
            while not self._is_hidden(path):
                await asyncio.wait([reading], timeout=_CHECK_S)
                if reading.done():
                    if (piece := reading.result()) is None:
                        return
                    while self.held_path and path.startswith(self.held_path):
                        await asyncio.sleep(_CHECK_S)
                    yield piece
                    reading = asyncio.ensure_future(anext(pieces, None))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _is_hidden(self, path: str) -> bool:
        return bool(self.hidden_group) and f"{path}/".startswith(f"/apis/{self.hidden_group}/")

    def _without_group(self, body: bytes) -> Any:
        document = json.loads(body)
        groups = [group for group in document["groups"] if group["name"] != self.hidden_group]
        return document | {"groups": groups}

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A kubeconfig with the token of another one, whose server is reached through this proxy."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path = folder / "front.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path


@contextlib.contextmanager
def serving(server: str, context: ssl.SSLContext) -> Iterator[ApiServerFront]:
    """Runs the proxy while the context is open."""
    front = ApiServerFront(server, context)
    with asgi_server_thread.serving(front) as front.url:
        yield front
