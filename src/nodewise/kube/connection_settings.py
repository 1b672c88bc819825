"""From settings to an `Api`: which API server, trusted by what, as whom. Nothing is sent yet.

What is wrong with a kubeconfig and its files is `BadSettings` here. What only a server can tell comes
with the first call: `Unavailable` where none answers, `Refused` for credentials that are not accepted.
"""

import os
import socket
from typing import Final
from urllib.parse import urlsplit

import httpx2

from nodewise.clock import Clock, SystemClock
from nodewise.errors import BadSettings, Problem, shown
from nodewise.kube import credentials, kubeconfig, proxy_settings, tls
from nodewise.kube.connection_renewal import Renewing
from nodewise.kube.http_client import Account, HttpApi
from nodewise.kube.kubeconfig import Chosen
from nodewise.kube.options import KubeOptions
from nodewise.kube.rate_limit import TokenBucket
from nodewise.observe.metrics_registry import MetricsRegistry

KEPT_S: Final = 60.0
"""Idle connections are closed before the API server's 90 s do it, so that no call meets a closing one."""

_KEEPALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]
"""A server that is gone without a word is noticed in half a minute; client-go does it by HTTP/2 pings."""

_HEADERS: Final = {
    # the server would spend more time on gzip than the network on the bytes (kubernetes issue 112296), and we
    # would unpack them on the event loop
    "Accept-Encoding": "identity",
    "Accept": "application/json",
    "User-Agent": "nodewise",
}


def connect(options: KubeOptions, meters: MetricsRegistry, clock: Clock | None = None) -> HttpApi:
    """The API server that the settings name. `BadSettings` says what of them cannot be used."""
    clock = clock or SystemClock()
    chosen = kubeconfig.find(options.kubeconfig, options.context, os.environ)
    tls.context(chosen)  # what is wrong is said in the kubeconfig's words
    papers = tls.Papers(chosen, meters, clock)
    transport = _transport(chosen, papers)

    def show(certificate: bytes, key: bytes, what: str) -> None:
        if papers.show(certificate, key, what):
            transport.renew()

    http = _http(chosen, transport, credentials.auth(chosen, show, clock))
    account = Account(
        server=chosen.cluster["server"],
        namespace=options.namespace or chosen.context.get("namespace") or "default",
        extensions=_extensions(chosen),
        hint=lambda: tls.expiry(chosen, clock.now()),
    )
    return HttpApi(http, account, TokenBucket(options.kube_qps, options.kube_burst), clock, meters)


def _transport(chosen: Chosen, papers: tls.Papers) -> Renewing:
    server = chosen.cluster["server"]
    url = urlsplit(server)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise _bad(chosen, "cluster: server", shown(server), "https://host:port")
    way = chosen.cluster.get("proxy-url") or proxy_settings.of(server, os.environ)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEPT_S)

    def make() -> httpx2.AsyncHTTPTransport:
        return httpx2.AsyncHTTPTransport(
            verify=papers.context(),
            limits=limits,
            proxy=way or None,
            socket_options=_KEEPALIVE,
            trust_env=False,
        )

    try:
        return Renewing(make, papers.has_news)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:
        raise _bad(chosen, "cluster: proxy-url", str(error), "a URL that can be used") from error


def _http(chosen: Chosen, transport: Renewing, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    server = chosen.cluster["server"]
    headers = _HEADERS | _impersonation(chosen)
    try:
        # no timeout here: every call has its own deadline
        return httpx2.AsyncClient(
            base_url=server, auth=auth, headers=headers, transport=transport, timeout=None, trust_env=False
        )
    except (ValueError, httpx2.InvalidURL) as error:
        raise _bad(chosen, "cluster: server", str(error), "a URL that can be used") from error


def _extensions(chosen: Chosen) -> dict[str, str]:
    """For httpcore: the name that the server's certificate must carry, where it is not the address's."""
    name = chosen.cluster.get("tls-server-name")
    return {"sni_hostname": name} if name else {}


def _impersonation(chosen: Chosen) -> dict[str, str]:
    """The headers of `kubectl --as`. Groups and extras need repeated headers and are refused, not dropped."""
    if chosen.user.get("as-groups") or chosen.user.get("as-user-extra"):
        raise _bad(chosen, "user: as-groups, as-user-extra", "set", "a user that needs no impersonation")
    pairs = (("Impersonate-User", chosen.user.get("as")), ("Impersonate-Uid", chosen.user.get("as-uid")))
    return {header: value for header, value in pairs if value}


def _bad(chosen: Chosen, field: str, seen: str, wanted: str) -> BadSettings:
    return BadSettings(f"kubeconfig {chosen.source}, context {chosen.name}", [Problem(field, seen, wanted)])
