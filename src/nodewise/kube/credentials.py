"""How each call says who we are. Source: client-go v0.36 transport/token_source.go, rest/config.go."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Final

import httpx2

from nodewise.clock import Clock
from nodewise.errors import BadSettings, Problem, Refused
from nodewise.kube.exec_plugin import Plugin, Show
from nodewise.kube.kubeconfig import Chosen

REREAD_S: Final = 60.0
"""A kubelet renews a token at 80 % of its life of an hour; client-go reads every minute too."""

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


def auth(chosen: Chosen, show: Show, clock: Clock) -> httpx2.Auth | None:
    """How each call says who we are; None: by a certificate, or not at all. A plugin's certificate goes to `show`.

    The order is client-go's: a token file wins over a token, a token over the rest.
    """
    user = chosen.user
    if path := user.get("tokenFile"):
        return TokenFile(Path(path), clock)
    if token := user.get("token"):
        return Token(token)
    if user.get("exec") is not None:
        return Plugin(chosen, show, clock)
    if user.get("username") and user.get("password"):
        return httpx2.BasicAuth(user["username"], user["password"])
    if user.get("auth-provider"):
        problem = Problem("user: auth-provider", "set", "exec, as Kubernetes 1.26 dropped auth-provider")
        raise BadSettings(f"kubeconfig {chosen.source}", [problem])
    return None


class Token(httpx2.Auth):
    """A bearer token that stays."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


class TokenFile(httpx2.Auth):
    """A bearer token that is read again every minute, and at once when it is refused."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at_s = float("-inf")

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        if self._clock.monotonic() - self._read_at_s >= REREAD_S:
            self._read()
        request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            before = self._token
            self._read()
            if self._token != before:
                request.headers["Authorization"] = f"Bearer {self._token}"
                yield request

    def _read(self) -> None:
        """The file anew. While a new one is being put in its place the old token still serves."""
        try:
            self._token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                problem = Problem(str(self._path), str(error), "a file with a bearer token")
                raise Refused("credentials", [problem]) from error
        self._read_at_s = self._clock.monotonic()
