"""An `ApiClient` of an in-memory API server."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

from nodewise.kube.api_server_interface import Patch
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_cpu.cluster.api_server import NO_PARAMS, Object


class InMemoryApiClient:
    """An `ApiClient` whose blocking calls go to the server `api`."""

    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return _value(self.api.get(path, params))

    def create(self, path: str, body: Object) -> Any:
        return _value(self.api.create(path, body))

    def replace(self, path: str, body: Object) -> Any:
        return _value(self.api.replace(path, body))

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return _value(self.api.patch(path, body, kind, params))

    def delete(self, path: str, body: Object | None = None) -> Any:
        return _value(self.api.delete(path, b"" if body is None else body))


def _value(call: Coroutine[Any, Any, bytes]) -> Any:
    answer = asyncio.run(call)
    return json.loads(answer) if answer else None
