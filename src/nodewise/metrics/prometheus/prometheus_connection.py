"""Connection to Prometheus: TLS and headers. All files are reread, so that they can be renewed."""

import os
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx2

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadSettings, Problem
from nodewise.kube import proxy_settings
from nodewise.kube.api_client_creation import SMALL_RECEIVE_BUFFER
from nodewise.kube.connection_renewal import RenewingTransport
from nodewise.metrics.prometheus import request_headers
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.request_headers import SecretHeaders
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateReloader, ReloadableFiles

_WHAT: Final = "Prometheus' settings"
_HEADERS: Final = {
    # decompression would block the event loop, and the network of a cluster is faster
    "Accept-Encoding": "identity",
    "Accept": "application/json",
    "User-Agent": "nodewise",
}
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=60.0)


class PrometheusConnection:
    """HTTP connection to one Prometheus. `BadSettings` names all settings that cannot be used."""

    def __init__(self, url: str, options: PrometheusOptions, metrics_registry: MetricsRegistry) -> None:
        if problems := list(_settings_problems(url, options)):
            raise BadSettings(_WHAT, problems)
        self.url = url.rstrip("/")
        self._headers = request_headers.secret_headers(options)
        self.http = _create_client(self.url, _TlsFiles(options, metrics_registry), self._headers)

    def hide(self, text: str) -> str:
        """The text without secrets."""
        return self._headers.hide(text)


def _settings_problems(url: str, options: PrometheusOptions) -> Iterator[Problem]:
    yield from _url_problems(url)
    if options.prometheus_token_file and options.prometheus_user:
        yield Problem("--prometheus-token-file", "given with --prometheus-user", "one of the two")
    pairs = (
        ("--prometheus-user", options.prometheus_user, options.prometheus_password_file),
        ("--prometheus-cert", options.prometheus_cert, options.prometheus_key),
    )
    for flag, first, second in pairs:
        if bool(first) != bool(second):
            other = "--prometheus-password-file" if flag.endswith("user") else "--prometheus-key"
            yield Problem(flag, f"only one of it and {other} is given", "both or neither")
    yield from request_headers.header_problems(options)
    if not options.prometheus_node_label:
        yield Problem("--prometheus-node-label", "none", "at least one label")


def _url_problems(url: str) -> Iterator[Problem]:
    """The problems of a URL. A URL with a password is not shown."""
    flag = "--prometheus-url"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        yield Problem(flag, "no URL", "http://host:port")
        return
    if parts.username or parts.password or "@" in parts.netloc:
        expected = "--prometheus-user and --prometheus-password-file, or --prometheus-token-file"
        yield Problem(flag, "a URL with credentials in it", expected)
    elif parts.query or parts.fragment:
        yield Problem(flag, f"{parts.scheme}://{parts.netloc} with ? or #", "a URL without")
    elif not usable:
        yield Problem(flag, repr(url), "http://host:port or https://host:port")


class _TlsFiles:
    """Trusted authorities and client certificate. BadSettings if a file cannot be used."""

    def __init__(self, options: PrometheusOptions, metrics_registry: MetricsRegistry) -> None:
        clock = SystemClock()
        now_s = clock.now()
        pair = {"--prometheus-cert": options.prometheus_cert, "--prometheus-key": options.prometheus_key}
        bundle = {"--prometheus-ca": options.prometheus_ca}
        self._pair = (
            ReloadableFiles(
                "prometheus_client", pair, certificate_files.read_certificate_and_key, metrics_registry, now_s
            )
            if all(pair.values())
            else None
        )
        self._bundle = (
            ReloadableFiles(
                "prometheus_ca", bundle, certificate_files.read_trusted_certificates, metrics_registry, now_s
            )
            if all(bundle.values())
            else None
        )
        self._reloader = CertificateReloader(
            [files for files in (self._pair, self._bundle) if files], clock, every_s=0.0
        )

    def has_changed(self) -> bool:
        """Whether the content of the files has changed since the last call."""
        return self._reloader.poll()

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._bundle:
            certificate_files.add_trusted_certificates(made, self._bundle.value.authorities)
        else:
            made.load_default_certs()
        if self._pair:
            certificate_files.load_pair_into_ssl_context(
                made, self._pair.value.certificate, self._pair.value.key
            )
        return made


def _create_client(url: str, tls_files: _TlsFiles, headers: SecretHeaders) -> httpx2.AsyncClient:
    proxy = proxy_settings.proxy_url(url, os.environ) or None

    def make() -> httpx2.AsyncHTTPTransport:
        return httpx2.AsyncHTTPTransport(
            verify=tls_files.context(),
            proxy=proxy,
            limits=_LIMITS,
            socket_options=[SMALL_RECEIVE_BUFFER],
            trust_env=False,
        )

    transport = RenewingTransport(make, tls_files.has_changed)
    # no timeout here: every call has its own deadline
    return httpx2.AsyncClient(
        base_url=url, auth=headers, headers=_HEADERS, transport=transport, timeout=None, trust_env=False
    )
