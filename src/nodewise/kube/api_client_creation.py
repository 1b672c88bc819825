"""Creates the `Api` of the settings: address, TLS and authentication. Sends nothing.

Problems of a kubeconfig and its files raise `BadSettings` here. Problems that only the server can detect appear with
the first call: `Unavailable` if there is no response, `Refused` if the server rejects the credentials.
"""

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.kube import credentials, http_transport, kubeconfig
from nodewise.kube.http_client import ConnectionInfo, HttpApi
from nodewise.kube.http_transport import AiohttpTransport, HttpTransport, RenewingTransport
from nodewise.kube.kubeconfig import KubeconfigContext, KubeOptions
from nodewise.kube.write_rate import WriteRate
from nodewise.observe.metrics_registry import MetricsRegistry, UncountedMetrics

KEPT_S: Final = 60.0
"""Idle connections are closed before the API server does so after 90 s, so that no call uses a closing connection."""

_KEEPALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
"""TCP keepalive detects a lost server within half a minute, but not a connection that a proxy has lost: the kernel of
the proxy answers. The timeouts of calls and watches detect that."""

SMALL_RECEIVE_BUFFER: Final = (socket.SOL_SOCKET, socket.SO_RCVBUF, 2**17)
"""Limits what is received of a response before its turn to be read. Linux grows the buffer of a connection up to 6 MiB
by default, and the event loop takes all of it at once: while it is late, dozens of responses about metrics would be in
memory as a whole. 128 KiB permit 128 MB/s at a round trip of 1 ms, so this is for programs near their servers."""

_HEADERS: Final = {
    # gzip takes the server longer than sending the bytes uncompressed (kubernetes issue 112296), and decompression
    # would block the event loop
    "Accept-Encoding": "identity",
    "Accept": "application/json",
    "User-Agent": "nodewise",
}


class Impersonation(NamedTuple):
    """A user with one group, in addition to system:authenticated, to act as (`kubectl --as --as-group`)."""

    user: str
    group: str

    def headers(self) -> dict[str, str]:
        return {"Impersonate-User": self.user, "Impersonate-Group": self.group}


@asynccontextmanager
async def open_api(options: KubeOptions) -> AsyncIterator[HttpApi]:
    """A client for one command, without metrics. It is closed at the end of the block."""
    api = connect(options, UncountedMetrics())
    try:
        yield api
    finally:
        await api.close()


def connect(
    options: KubeOptions,
    metrics_registry: MetricsRegistry,
    *,
    small_receive_buffer: bool = False,
    many_calls: bool = False,
    impersonation: Impersonation | None = None,
) -> HttpApi:
    """The API server of the settings. `BadSettings` names the settings that cannot be used.

    `small_receive_buffer` is for programs that request many metrics all the time, `many_calls` for those whose calls
    are worth the memory of aiohttp. `impersonation` replaces that of the kubeconfig.
    """
    clock = SystemClock()
    kubeconfig_context = kubeconfig.context_from_file_or_pod(options.kubeconfig, options.context, os.environ)
    cluster = kubeconfig_context.cluster
    credentials.context(kubeconfig_context)  # reports problems by the names of the kubeconfig's fields
    tls_credentials = credentials.TlsCredentials(kubeconfig_context, metrics_registry, clock)
    socket_options = [*_KEEPALIVE, *([SMALL_RECEIVE_BUFFER] if small_receive_buffer else [])]
    transport = _create_transport(kubeconfig_context, tls_credentials, socket_options, many_calls=many_calls)

    def set_client_certificate(certificate: bytes, key: bytes, what: str) -> None:
        if tls_credentials.set_client_certificate(certificate, key, what):
            transport.renew()

    try:
        http = httpx2.AsyncClient(
            base_url=cluster["server"],
            auth=credentials.auth(kubeconfig_context, set_client_certificate, clock),
            headers=_HEADERS | _impersonation_headers(kubeconfig_context),
            transport=transport,
            timeout=None,  # every call has its own deadline
            trust_env=False,
        )
    except (ValueError, httpx2.InvalidURL) as error:
        raise _settings_error(
            kubeconfig_context, "cluster: server", str(error), "a URL that can be used"
        ) from error
    if impersonation is not None:
        http.headers.update(impersonation.headers())
    connection_info = ConnectionInfo(
        server=cluster["server"],
        namespace=options.namespace or kubeconfig_context.context.get("namespace") or "default",
        # the server name that the certificate must have, if it differs from the host
        extensions={"sni_hostname": name} if (name := cluster.get("tls-server-name")) else {},
        # credentials in the URL become a header by httpx2 alone
        send_short=transport.send_short if transport.is_aiohttp and not http.base_url.userinfo else None,
        hint=lambda: credentials.client_certificate_expiry_hint(kubeconfig_context, clock.now()),
    )
    write_rate = WriteRate(options.kube_qps, options.kube_burst)
    return HttpApi(http, connection_info, write_rate, clock, metrics_registry)


def _create_transport(
    kubeconfig_context: KubeconfigContext,
    tls_credentials: credentials.TlsCredentials,
    socket_options: Sequence[tuple[int, int, int]],
    *,
    many_calls: bool,
) -> RenewingTransport:
    server = kubeconfig_context.cluster["server"]
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise _settings_error(kubeconfig_context, "cluster: server", shown(server), "https://host:port")
    proxy = kubeconfig_context.cluster.get("proxy-url") or http_transport.proxy_url(server, os.environ)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEPT_S)

    def make() -> httpx2.AsyncBaseTransport:
        if many_calls and not proxy:
            return AiohttpTransport(tls_credentials.context(), KEPT_S, socket_options)
        return HttpTransport(
            verify=tls_credentials.context(),
            limits=limits,
            proxy=proxy or None,
            socket_options=socket_options,
            trust_env=False,
        )

    try:
        return RenewingTransport(make, tls_credentials.has_changed)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:
        raise _settings_error(
            kubeconfig_context, "cluster: proxy-url", str(error), "a URL that can be used"
        ) from error


def _impersonation_headers(kubeconfig_context: KubeconfigContext) -> dict[str, str]:
    """The headers of `kubectl --as`. Groups and extras need repeated headers, so they are errors, not ignored."""
    if kubeconfig_context.user.get("as-groups") or kubeconfig_context.user.get("as-user-extra"):
        raise _settings_error(
            kubeconfig_context, "user: as-groups, as-user-extra", "set", "a user that needs no impersonation"
        )
    user = kubeconfig_context.user
    headers = {"Impersonate-User": user.get("as"), "Impersonate-Uid": user.get("as-uid")}
    return {header: value for header, value in headers.items() if value}


def _settings_error(
    kubeconfig_context: KubeconfigContext, field: str, actual: str, expected: str
) -> BadSettings:
    return BadSettings(kubeconfig_context.what, [Problem(field, actual, expected)])
