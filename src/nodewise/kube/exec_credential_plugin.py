"""Credential plugins: the exec plugins of client-go (KEP-541), in all versions of their protocol.

Source: client-go v0.36 plugin/pkg/client/auth/exec/exec.go and pkg/apis/clientauthentication.
"""

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import httpx2
import msgspec

from nodewise.base import clock
from nodewise.base.clock import Clock
from nodewise.base.errors import BadSettings, Problem, Refused, Unavailable
from nodewise.kube import client_tls
from nodewise.kube.kubeconfig import KubeconfigContext

LONGEST_S: Final = 60.0
"""Timeout of a plugin; a call to an identity provider takes a second or two."""

EARLY_S: Final = 10.0
"""A token is renewed this long before it expires, so that it does not expire during a request."""

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]
SetClientCertificate = Callable[[bytes, bytes, str], None]
"""Accepts a certificate, its key (both PEM) and their origin. BadSettings if they do not match."""


class _ExecCredentialStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _ExecCredentialStatus = _ExecCredentialStatus()


class ExecConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`users[].user.exec` of a kubeconfig (client-go v0.36 clientcmd/api/v1 ExecConfig)."""

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: tuple[str, ...] | None = None
    env: tuple[dict[str, str], ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class ExecPlugin(httpx2.Auth):
    """Credentials from an exec plugin, cached until they expire or are rejected. The plugin runs once at a time.

    A client certificate of the plugin is passed to `set_client_certificate`, with the plugin's name for errors.
    """

    def __init__(
        self,
        kubeconfig_context: KubeconfigContext,
        set_client_certificate: SetClientCertificate,
        clock: Clock,
    ) -> None:
        self._config = _read_exec_config(kubeconfig_context)
        self._what = f"credential plugin {self._config.command}"
        self._cluster = _cluster_info(kubeconfig_context) if self._config.provide_cluster_info else None
        self._set_client_certificate = set_client_certificate
        self._clock = clock
        self._lock = asyncio.Lock()
        self._token = ""
        self._ends_at_s = float("-inf")

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        await self._renew_credentials(self._clock.now() >= self._ends_at_s)
        response = yield self._set_authorization_header(request)
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            refused = request.headers.get("Authorization", "")
            await self._renew_credentials(refused == self._authorization_header())
            yield self._set_authorization_header(request)

    def _authorization_header(self) -> str:
        return f"Bearer {self._token}" if self._token else ""

    def _set_authorization_header(self, request: httpx2.Request) -> httpx2.Request:
        if self._token:
            request.headers["Authorization"] = self._authorization_header()
        return request

    async def _renew_credentials(self, needed: bool) -> None:
        """Run the plugin if needed, unless another call has renewed the credentials meanwhile."""
        if not needed:
            return
        before = self._ends_at_s, self._token
        async with self._lock:
            if (self._ends_at_s, self._token) == before:
                self._apply_plugin_credentials(await self._run_plugin())

    async def _run_plugin(self) -> bytes:
        """Run the plugin and return its output. It has no terminal: a service cannot prompt for a password."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                self._config.command,
                *(self._config.args or ()),
                env=self._plugin_environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
            )
        except OSError as error:
            problem = Problem("command", str(error), "a program that can be run")
            raise BadSettings(self._what, [problem], remedy=self._config.install_hint) from error
        output, complaint = await _read_plugin_output(process, self._what)
        if process.returncode:
            actual = f"exit status {process.returncode}: {complaint.decode(errors='replace').strip()[-500:]}"
            raise Unavailable(self._what, [Problem("", actual, "exit status 0")], retry_after_s=5.0)
        return output

    def _plugin_environment(self) -> dict[str, str]:
        """The environment of the process, with the variables of the kubeconfig and of the protocol (KEP-541)."""
        spec: dict[str, Any] = {"interactive": False}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"kind": "ExecCredential", "apiVersion": self._config.api_version, "spec": spec}
        own = {pair["name"]: pair.get("value", "") for pair in self._config.env or () if "name" in pair}
        return {**os.environ, **own, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _apply_plugin_credentials(self, output: bytes) -> None:
        try:
            status = msgspec.json.decode(output, type=_ExecCredential).status
            ends_at_s = _expiry_s(status)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Refused(self._what, [Problem("", str(error), "an ExecCredential with a status")]) from error
        if not status.token and not status.client_certificate_data:
            raise Refused(self._what, [Problem("status", "neither token nor certificate", "one of them")])
        if status.client_certificate_data:
            pair = status.client_certificate_data.encode(), status.client_key_data.encode()
            self._set_client_certificate(*pair, self._what)
        self._token = status.token
        self._ends_at_s = ends_at_s - EARLY_S


def _expiry_s(status: _ExecCredentialStatus) -> float:
    """The expiry of the credentials in seconds since 1970; infinite if the plugin does not return one."""
    end = status.expiration_timestamp
    return clock.parse_rfc3339(end) if end else float("inf")


async def _read_plugin_output(process: asyncio.subprocess.Process, what: str) -> tuple[bytes, bytes]:
    """The output of the plugin. A plugin that exceeds the timeout, or whose call was cancelled, is killed."""
    try:
        async with asyncio.timeout(LONGEST_S):
            return await process.communicate()
    except TimeoutError as error:
        raise Unavailable(what, [Problem("", f"no end after {LONGEST_S:g} s", "")]) from error
    finally:
        if process.returncode is None:
            process.kill()


def _read_exec_config(kubeconfig_context: KubeconfigContext) -> ExecConfig:
    try:
        return msgspec.convert(kubeconfig_context.user["exec"], ExecConfig)
    except msgspec.ValidationError as error:
        what = f"kubeconfig {kubeconfig_context.source}, context {kubeconfig_context.name}"
        raise BadSettings(what, [Problem("user: exec", str(error), "a credential plugin")]) from error


def _cluster_info(kubeconfig_context: KubeconfigContext) -> dict[str, Any]:
    """The cluster in the form of the protocol: the certificate authority always as data, never as a file."""
    fields = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    info: dict[str, Any] = {
        field: kubeconfig_context.cluster[field] for field in fields if field in kubeconfig_context.cluster
    }
    if authority := client_tls.read_ca_certificates(kubeconfig_context):
        info["certificate-authority-data"] = b64encode(authority).decode()
    for entry in kubeconfig_context.cluster.get("extensions") or ():
        if isinstance(entry, dict) and entry.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = entry.get("extension")
    return info
