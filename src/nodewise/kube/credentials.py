"""Credentials of a connection to the API server: tokens, exec plugins, trusted authorities and client certificate.

Exec plugins are those of client-go (KEP-541), in all versions of their protocol. Source: client-go v0.36
transport/token_source.go, rest/config.go, plugin/pkg/client/auth/exec/exec.go and pkg/apis/clientauthentication.
"""

import asyncio
import os
import ssl
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from nodewise.base import clock
from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.errors import BadSettings, Problem, Refused, Unavailable
from nodewise.kube.kubeconfig import KubeconfigContext
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateReloader, ReloadableFiles

_REMEDY: Final = "renew the credentials in the kubeconfig"


def context(kubeconfig_context: KubeconfigContext) -> ssl.SSLContext:
    """A context with the trusted authorities and the client certificate. `BadSettings` if a file is missing or
    invalid.
    """
    what = kubeconfig_context.what
    trusted = read_ca_certificates(kubeconfig_context)
    is_https = urlsplit(kubeconfig_context.cluster["server"]).scheme == "https"
    try:
        if trusted or is_https:
            made = ssl.create_default_context(cadata=trusted.decode("ascii") if trusted else None)
        else:  # no authority is needed, and those of the system take long to load
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    except (ssl.SSLError, ValueError) as error:
        problem = Problem("certificate-authority", _openssl_reason(error), "certificates in PEM")
        raise BadSettings(what, [problem]) from error
    if kubeconfig_context.cluster.get("insecure-skip-tls-verify"):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    # Python 3.13 is stricter than Go: it would reject CAs without an Authority Key Identifier, which exist in
    # clusters and which all other clients accept
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    pair = _read_client_key_pair(kubeconfig_context.user, what)
    if pair is not None:
        load_client_key_pair(made, *pair, what)
    return made


def load_client_key_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, what: str) -> None:
    """Load a PEM pair into a context; new connections present it."""
    try:
        certificate_files.load_pair_into_ssl_context(context, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        problem = Problem(
            "client-certificate, client-key", _openssl_reason(error), "an unencrypted pair in PEM"
        )
        raise BadSettings(what, [problem], remedy="is the key the one of this certificate?") from error


class TlsCredentials:
    """Trusted authorities and client certificate. Files are reread when they change; inline data do not change."""

    def __init__(
        self, kubeconfig_context: KubeconfigContext, metrics_registry: MetricsRegistry, clock: Clock
    ) -> None:
        """BadSettings if a file cannot be used."""
        self._chosen = kubeconfig_context
        self._shown: tuple[bytes, bytes] | None = None
        user, cluster = kubeconfig_context.user, kubeconfig_context.cluster
        self._pair = self._bundle = None
        if paths := _certificate_file_paths(user, "client-certificate", "client-key"):
            read_pair = certificate_files.read_certificate_and_key
            self._pair = ReloadableFiles("kube_client", paths, read_pair, metrics_registry, clock.now())
        if paths := _certificate_file_paths(cluster, "certificate-authority"):
            read_bundle = certificate_files.read_authorities
            self._bundle = ReloadableFiles("kube_ca", paths, read_bundle, metrics_registry, clock.now())
        self._reloader = CertificateReloader([files for files in (self._pair, self._bundle) if files], clock)

    def has_changed(self) -> bool:
        """Whether the content of the files has changed since the last call."""
        return self._reloader.poll()

    def set_client_certificate(self, certificate: bytes, key: bytes, what: str) -> bool:
        """Present this PEM pair from now on. Returns False if it is already in use. BadSettings, with `what`, if it is
        invalid.
        """
        load_client_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key, what)
        before, self._shown = self._shown, (certificate, key)
        return before != self._shown

    def context(self) -> ssl.SSLContext:
        """A new context with the current authorities and certificate."""
        user, cluster = dict(self._chosen.user), dict(self._chosen.cluster)
        shown = self._shown or (self._pair.value[:2] if self._pair else None)
        if shown:
            names = ("client-certificate-data", "client-key-data")
            user |= {name: b64encode(text).decode() for name, text in zip(names, shown, strict=True)}
        if self._bundle:
            cluster["certificate-authority-data"] = b64encode(self._bundle.value.pem).decode()
        return context(self._chosen._replace(user=user, cluster=cluster))


def _certificate_file_paths(section: Mapping[str, Any], *fields: str) -> Mapping[str, str]:
    """The path of each field, if all fields are given as files and none inline; else empty."""
    files = {
        field: section[field] for field in fields if section.get(field) and not section.get(f"{field}-data")
    }
    return files if len(files) == len(fields) else {}


def client_certificate_expiry_hint(kubeconfig_context: KubeconfigContext, now_s: float) -> str:
    """The remedy if the client certificate has expired; empty if it has not."""
    try:
        pair = _read_client_key_pair(kubeconfig_context.user, "")
    except BadSettings:
        return ""
    if pair is None:
        return ""
    # start-up time: kubeconfigs with tokens have no certificate
    from nodewise.tls.x509_certificates import load_certificates

    certificates = load_certificates(pair[0])
    if not certificates or (ends := certificates[0].not_valid_after_utc.timestamp()) >= now_s:
        return ""
    return (
        f"the client certificate of {kubeconfig_context.source} expired at {format_rfc3339(ends)}: {_REMEDY}"
    )


def read_ca_certificates(kubeconfig_context: KubeconfigContext) -> bytes:
    """The authorities, in PEM, that the server is verified against; empty for those of the system."""
    return _read_tls_field(kubeconfig_context.cluster, "certificate-authority", kubeconfig_context.what)


def _read_client_key_pair(user: Mapping[str, Any], what: str) -> tuple[bytes, bytes] | None:
    certificate = _read_tls_field(user, "client-certificate", what)
    key = _read_tls_field(user, "client-key", what)
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise BadSettings(what, [Problem(missing, "not set", "certificate and key, or neither")])
    return (certificate, key) if certificate else None


def _read_tls_field(section: Mapping[str, Any], field: str, what: str) -> bytes:
    """The value of a field: inline (`-data`, which takes precedence as in client-go) or from a file; empty if unset."""
    try:
        if inline := section.get(f"{field}-data"):
            return b64decode(inline, validate=True)
        return Path(path).read_bytes() if (path := section.get(field)) else b""
    except (OSError, Base64Error, ValueError, TypeError) as error:
        expected = "base64 in -data, or a file that can be read"
        raise BadSettings(what, [Problem(field, str(error), expected)]) from error


def _openssl_reason(error: Exception) -> str:
    """OpenSSL's reason without its numbers and source lines: `KEY_VALUES_MISMATCH`."""
    return getattr(error, "reason", None) or str(error)


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
        try:
            self._config = msgspec.convert(kubeconfig_context.user["exec"], ExecConfig)
        except msgspec.ValidationError as error:
            problem = Problem("user: exec", str(error), "a credential plugin")
            raise BadSettings(kubeconfig_context.what, [problem]) from error
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
        try:
            async with asyncio.timeout(LONGEST_S):
                output, complaint = await process.communicate()
        except TimeoutError as error:
            raise Unavailable(self._what, [Problem("", f"no end after {LONGEST_S:g} s", "")]) from error
        finally:
            if process.returncode is None:  # too slow, or the call was cancelled
                process.kill()
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
            end = status.expiration_timestamp
            ends_at_s = clock.parse_rfc3339(end) if end else float("inf")
        except (msgspec.MsgspecError, ValueError) as error:
            raise Refused(self._what, [Problem("", str(error), "an ExecCredential with a status")]) from error
        if not status.token and not status.client_certificate_data:
            raise Refused(
                self._what, [Problem("status", "neither token nor certificate", "a token or a certificate")]
            )
        if status.client_certificate_data:
            pair = status.client_certificate_data.encode(), status.client_key_data.encode()
            self._set_client_certificate(*pair, self._what)
        self._token = status.token
        self._ends_at_s = ends_at_s - EARLY_S


def _cluster_info(kubeconfig_context: KubeconfigContext) -> dict[str, Any]:
    """The cluster in the form of the protocol: the certificate authority always as data, never as a file."""
    fields = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    info: dict[str, Any] = {
        field: kubeconfig_context.cluster[field] for field in fields if field in kubeconfig_context.cluster
    }
    if authority := read_ca_certificates(kubeconfig_context):
        info["certificate-authority-data"] = b64encode(authority).decode()
    for entry in kubeconfig_context.cluster.get("extensions") or ():
        if isinstance(entry, dict) and entry.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = entry.get("extension")
    return info


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
