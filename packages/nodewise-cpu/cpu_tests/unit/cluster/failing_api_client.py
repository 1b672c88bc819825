"""An `ApiClient` in memory that fails on request, and a simulated clock."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from cpu_tests.conformance.minimal_api_server import MinimalApiServer
from nodewise.base.errors import Unavailable
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import ApiCall, Patch
from nodewise_cpu.cluster.api_server import NO_PARAMS, Object


class FakeSleepingClock:
    """A clock that advances only by calls of sleep."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float, /) -> None:
        self.time += max(seconds, 0.001)


class FailingApiClient:
    """An `ApiClient` that counts its calls. Calls from number `fails` on fail, until `fails` is None again."""

    def __init__(self, server: MinimalApiServer) -> None:
        self.server = server
        self.calls = 0
        self.fails: int | None = None

    def get(self, path: str, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._ask("GET", f"{path}?{urlencode(params)}")

    def create(self, path: str, body: Object) -> Any:
        return self._ask("POST", path, body)

    def replace(self, path: str, body: Object) -> Any:
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Any, kind: Patch, params: Mapping[str, str] = NO_PARAMS) -> Any:
        return self._ask("PATCH", f"{path}?{urlencode(params)}", body, f"application/{kind}-patch+json")

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self._ask("DELETE", path, body)

    def _ask(self, verb: str, target: str, body: Any = None, content_type: str = "application/json") -> Any:
        self.calls += 1
        if self.fails is not None and self.calls >= self.fails:
            raise Unavailable(f"{verb} {target}")
        sent = json.loads(json.dumps(body)) if body is not None else None
        code, answer = self.server.answer(verb, target, sent, content_type)
        if code < 300:
            return json.loads(json.dumps(answer))
        raise api_server_interface.error_from_status(
            ApiCall(verb, target), code, api_server_interface.parse_status_body(json.dumps(answer).encode())
        )
