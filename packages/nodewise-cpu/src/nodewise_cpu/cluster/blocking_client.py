"""A blocking client of the API server: `kube.http_client.HttpApi` as an `api_server.ApiClient`.

The client runs on an event loop in a thread of its own, so any number of threads may use it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from nodewise.base.errors import UNREADABLE, Unavailable, shown
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import DEADLINE_S, Api, Patch
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_cpu.cluster.api_server import NO_PARAMS, Object

_END_S: Final = 5.0


class BlockingClient:
    """An `ApiClient` over an `Api`, which is used on this object's event loop and nowhere else.

    End it with `close`, or use it as a context manager.
    """

    def __init__(self, api: Api, server: str = "") -> None:
        self._server = server
        self._api = api
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-server", daemon=True)
        self._thread.start()

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._run_and_decode(path, lambda: self._api.get(path, params))

    def create(self, path: str, body: Object) -> Any:
        return self._run_and_decode(path, lambda: self._api.create(path, body))

    def replace(self, path: str, body: Object) -> Any:
        return self._run_and_decode(path, lambda: self._api.replace(path, body))

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._run_and_decode(path, lambda: self._api.patch(path, body, kind, params))

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self._run_and_decode(path, lambda: self._api.delete(path, b"" if body is None else body))

    def close(self) -> None:
        """Close all connections; calls in progress end with `Unavailable`."""
        if self._thread.is_alive():
            self._run_call(self._close_and_stop_loop)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_S)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _close_and_stop_loop(self) -> None:
        await self._api.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run_and_decode(self, path: str, call: Callable[[], Coroutine[Any, Any, bytes]]) -> Any:
        if not self._thread.is_alive():
            raise Unavailable.of(f"{self._server}{path}", "", "the connection was closed by us")
        try:
            answer = self._run_call(call)
        except asyncio.CancelledError as error:
            raise Unavailable.of(f"{self._server}{path}", "", "the connection was closed by us") from error
        try:
            return msgspec.json.decode(answer) if answer else None
        except UNREADABLE as error:
            raise Unavailable.of(f"{self._server}{path}", "answer", shown(answer), "JSON") from error

    def _run_call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a call. It has its own deadline; this one is for a loop that a signal handler keeps from ending."""
        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result(DEADLINE_S + _END_S)
        finally:
            future.cancel()


class BlockingApiClient(BlockingClient):
    """A client with the given settings; BadSettings if they are invalid. Nothing is sent before the first call."""

    def __init__(self, options: KubeOptions) -> None:
        api = connect(options, MetricsRegistry())
        super().__init__(api, api.server)
        self.namespace: Final = api.namespace
        """The namespace of the service account or of the kubeconfig's context."""
