"""A proxy between a process and the API server that fails some writes."""

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

from tests.cluster import asgi_server_thread
from tests.cluster.asgi_server_thread import Receive, Scope, Send
from tests.conformance.tas.faulty_proxy import TasFaultyProxy

PODS: Final = "/api/v1/pods"
_FAILED: Final = 500


class GasFaultyProxy(TasFaultyProxy):
    """An ASGI application that can also fail writes with a message."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        super().__init__(url, context)
        self._failing: Mapping[str, str] = {}

    @contextlib.contextmanager
    def failing(self, messages: Mapping[str, str]) -> Iterator[None]:
        """Until the block ends, writes of node `leases` or of a `binding` fail with status 500 and these messages."""
        self._failing = messages
        try:
            yield
        finally:
            self._failing = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode()
        message = next((message for part, message in self._failing.items() if _is_of(path, part)), "")
        if not message or scope["method"] == "GET":
            await super().__call__(scope, receive, send)
            return
        await asgi_server_thread.body_of(receive)
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": _FAILED}
        await asgi_server_thread.answer(
            send, _FAILED, {**status, "reason": "InternalError", "message": message}
        )


def _is_of(path: str, part: str) -> bool:
    return path.endswith(f"/{part}") or f"/{part}/gpu-" in path


@contextlib.contextmanager
def serving(url: str, context: ssl.SSLContext) -> Iterator[tuple[GasFaultyProxy, str]]:
    """A proxy to the API server at `url` that runs until the block ends, and its address for the process."""
    trouble = GasFaultyProxy(url, context)
    with asgi_server_thread.serving(trouble) as address:
        yield trouble, address
