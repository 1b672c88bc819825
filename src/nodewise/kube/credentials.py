"""Authentication of calls to the API server. Source: client-go v0.36 transport/token_source.go, rest/config.go."""

from collections.abc import Generator
from pathlib import Path
from typing import Final

import httpx2

from nodewise.base.clock import Clock
from nodewise.base.errors import BadSettings, Problem, Refused
from nodewise.kube.exec_credential_plugin import ExecPlugin, Flow, SetClientCertificate
from nodewise.kube.kubeconfig import KubeconfigContext

REREAD_S: Final = 60.0
"""A kubelet renews a token after 80 % of its lifetime of an hour; client-go also rereads the file every minute."""


def auth(
    kubeconfig_context: KubeconfigContext, set_client_certificate: SetClientCertificate, clock: Clock
) -> httpx2.Auth | None:
    """The authentication of each call; None for a client certificate or none. A plugin's certificate is passed to
    `set_client_certificate`.

    The order is that of client-go: a token file takes precedence over a token, a token over the rest.
    """
    user = kubeconfig_context.user
    if path := user.get("tokenFile"):
        return BearerTokenFile(Path(path), clock)
    if token := user.get("token"):
        return BearerToken(token)
    if user.get("exec") is not None:
        return ExecPlugin(kubeconfig_context, set_client_certificate, clock)
    if user.get("username") and user.get("password"):
        return httpx2.BasicAuth(user["username"], user["password"])
    if user.get("auth-provider"):
        problem = Problem("user: auth-provider", "set", "exec, as Kubernetes 1.26 dropped auth-provider")
        raise BadSettings(f"kubeconfig {kubeconfig_context.source}", [problem])
    return None


class BearerToken(httpx2.Auth):
    """A bearer token that does not change."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


class BearerTokenFile(httpx2.Auth):
    """A bearer token in a file, which is reread every minute, and at once when the server rejects the token."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_at_s = float("-inf")

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        if self._clock.monotonic() - self._read_at_s >= REREAD_S:
            self._reread_token()
        request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            before = self._token
            self._reread_token()
            if self._token != before:
                request.headers["Authorization"] = f"Bearer {self._token}"
                yield request

    def _reread_token(self) -> None:
        """Reread the file. While the file is being replaced the previous token stays in use."""
        try:
            self._token = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                problem = Problem(str(self._path), str(error), "a file with a bearer token")
                raise Refused("credentials", [problem]) from error
        self._read_at_s = self._clock.monotonic()
