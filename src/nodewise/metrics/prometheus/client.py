"""Client of Prometheus' `/api/v1/query` and `/api/v1/query_range`.

It translates the exceptions of httpx2, and removes secrets from errors. Files of certificates, credentials and headers
are reread, so that they can be renewed.

A value is never shown: in a message `hide` replaces it.
"""

import asyncio
import contextlib
import io
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube import http_client as kube_client
from nodewise.kube import http_transport
from nodewise.kube.api_client_creation import SMALL_RECEIVE_BUFFER
from nodewise.kube.api_server_interface import BeforeBody
from nodewise.kube.http_transport import HttpTransport, RenewingTransport
from nodewise.metrics import missing_values, source_table
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.query_responses import QueryResponse
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateReloader, ReloadableFiles

HEADER_FLAG: Final = "--prometheus-header"
HEADER_FILE_FLAG: Final = "--prometheus-header-file"
AUTHORIZATION: Final = "Authorization"

_HIDDEN: Final = "(hidden)"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A name (RFC 9110, section 5.6.2)."""
_OWN_HEADERS: Final = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "accept",
        "accept-encoding",
    }
)
"""Headers that nodewise or the HTTP client sets for each request, in lower case."""
_LONGEST_WORD: Final = 8
"""A shorter value, such as a tenant's name, is hidden as a whole word only: the tenant 1 is not in the status 401."""


class HeaderAssignment(NamedTuple):
    """`NAME=VALUE` or `NAME=FILE` of a flag; without a name if it is invalid."""

    name: str
    value: str
    is_file: bool
    flag: str
    place: str
    """`number 1 of 2`, for messages."""


class SecretHeader:
    """A header with a constant value."""

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = value

    def read(self) -> str:
        """The current value. `Refused` if there is none."""
        return self._value

    def secrets(self) -> Iterator[str]:
        """The texts that no message may contain."""
        credentials = self._value.partition(" ")[2]
        yield credentials
        # the scheme before the credentials, such as Bearer, may be shown
        if not credentials or self.name.lower() != AUTHORIZATION.lower():
            yield self._value


class FileHeader(SecretHeader):
    """A header with a secret from a file, which is read at every request. While the file is being replaced the old
    secret is used.
    """

    def __init__(self, name: str, path: str, format_value: Callable[[str], str] = str) -> None:
        super().__init__(name, "")
        self._path = Path(path)
        self._format_value = format_value
        self._secret = ""

    def read(self) -> str:
        try:
            secret = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._secret:
                return self._value
            actual = getattr(error, "strerror", None) or type(error).__name__
            problem = Problem(str(self._path), actual, f"a file with the secret of the header {self.name}")
            raise Refused("Prometheus' credentials", [problem]) from error
        if _invalid_value(secret):
            problem = Problem(
                str(self._path), "a line break or a character that no header may have", "a secret"
            )
            raise Refused("Prometheus' credentials", [problem])
        self._secret, self._value = secret, self._format_value(secret)
        return self._value

    def secrets(self) -> Iterator[str]:
        yield self._secret
        yield from super().secrets()


class SecretHeaders(httpx2.Auth):
    """Sets headers of each request."""

    def __init__(self, headers: Sequence[SecretHeader]) -> None:
        self._headers = headers

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        for header in self._headers:
            request.headers[header.name] = header.read()
        yield request

    def hide(self, text: str) -> str:
        """The text without the values."""
        secrets = {secret for header in self._headers for secret in header.secrets() if secret}
        # a longer value may contain a shorter one
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _LONGEST_WORD:
                text = text.replace(secret, _HIDDEN)
            else:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        return text


def secret_headers(options: PrometheusOptions) -> SecretHeaders:
    """The headers of these settings, which have no `header_problems`."""
    headers: list[SecretHeader] = []
    if options.prometheus_token_file:
        headers.append(FileHeader(AUTHORIZATION, options.prometheus_token_file, "Bearer {}".format))
    if user := options.prometheus_user:

        def basic(password: str) -> str:
            return "Basic " + b64encode(f"{user}:{password}".encode()).decode()

        path = options.prometheus_password_file
        headers.append(FileHeader(AUTHORIZATION, path, basic))
    for header in _assignments(options):
        if header.name:
            made = FileHeader(header.name, header.value) if header.is_file else SecretHeader(*header[:2])
            headers.append(made)
    return SecretHeaders(headers)


def header_problems(options: PrometheusOptions) -> Iterator[Problem]:
    """The problems of the settings. A problem names a header only where its name cannot be a part of a value."""
    has_credentials = bool(options.prometheus_token_file or options.prometheus_user)
    names: set[str] = set()
    for header in _assignments(options):
        flag, name = header.flag, header.name.lower()
        if not name:
            example = "NAME=FILE, such as X-Scope-OrgID=/etc/tenant"
            example = example if header.is_file else "NAME=VALUE, such as X-Scope-OrgID=team-a"
            actual = "a header without a valid name or value, which is hidden"
            yield Problem(f"{flag}, {header.place}", actual, example)
        elif name in _OWN_HEADERS:
            remedy = "; the host is that of --prometheus-url" if name == "host" else ""
            actual = f"the header {header.name}, which nodewise sets itself"
            yield Problem(flag, actual, f"another header{remedy}")
        elif name in names:
            yield Problem(flag, f"the header {header.name} is given twice", "each header once")
        elif name == AUTHORIZATION.lower() and has_credentials:
            other = "--prometheus-token-file or --prometheus-user"
            yield Problem(flag, f"the header {header.name} is given with {other}", "one of the two")
        names.add(name)


def _assignments(options: PrometheusOptions) -> Iterator[HeaderAssignment]:
    for flag, texts, is_file in (
        (HEADER_FLAG, options.prometheus_header, False),
        (HEADER_FILE_FLAG, options.prometheus_header_file, True),
    ):
        for number, text in enumerate(texts, 1):
            name, _, value = map(str.strip, text.partition("="))
            if not _TOKEN.fullmatch(name) or not value or (not is_file and _invalid_value(value)):
                name = value = ""
            yield HeaderAssignment(name, value, is_file, flag, f"number {number} of {len(texts)}")


def _invalid_value(text: str) -> bool:
    """Whether a value has a character that no header may have. Others than ASCII have no defined encoding."""
    return not text.isascii() or not text.replace("\t", " ").isprintable()


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
        self._headers = secret_headers(options)
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
            yield Problem(flag, f"no {other} beside this option", "both options or neither")
    yield from header_problems(options)
    if not options.prometheus_node_label:
        yield Problem("--prometheus-node-label", "no label", "at least one label")


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

        def reloadable(name: str, paths: dict[str, str], read: Callable[..., Any]) -> Any:
            has_all = all(paths.values())
            return ReloadableFiles(name, paths, read, metrics_registry, clock.now()) if has_all else None

        pair = {"--prometheus-cert": options.prometheus_cert, "--prometheus-key": options.prometheus_key}
        bundle = {"--prometheus-ca": options.prometheus_ca}
        self._pair = reloadable("prometheus_client", pair, certificate_files.read_certificate_and_key)
        self._bundle = reloadable("prometheus_ca", bundle, certificate_files.read_trusted_certificates)
        files = [files for files in (self._pair, self._bundle) if files]
        self._reloader = CertificateReloader(files, clock, every_s=0.0)

    def has_changed(self) -> bool:
        """Whether the content of the files has changed since the last call."""
        return self._reloader.poll()

    def context(self, url: str) -> ssl.SSLContext:
        """For requests to this URL. The authorities of the system, which take long to load, are for https only."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._bundle:
            certificate_files.add_trusted_certificates(made, self._bundle.value.authorities())
        elif urlsplit(url).scheme == "https":
            made.load_default_certs()
        if self._pair:
            certificate_files.load_pair_into_ssl_context(
                made, self._pair.value.certificate, self._pair.value.key
            )
        return made


def _create_client(url: str, tls_files: _TlsFiles, headers: SecretHeaders) -> httpx2.AsyncClient:
    proxy = http_transport.proxy_url(url, os.environ) or None

    def make() -> HttpTransport:
        return HttpTransport(
            verify=tls_files.context(url),
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


_PATH: Final = "/api/v1/query"
_RANGE_PATH: Final = "/api/v1/query_range"
_NAMES_PATH: Final = "/api/v1/label/__name__/values"
MAX_METRIC_NAMES: Final = 20_000
_COMPLETE_AND_CURRENT: Final = {
    "nocache": "1",
    "latency_offset": "1ms",
    "partial_response": "false",
    "deny_partial_response": "1",
}
"""Parameters that only some servers know, and that Prometheus ignores.

Without `nocache`, VictoriaMetrics answers an instant query as of 30 s ago, and moves the times of a range query.
Without `latency_offset`, it repeats an older value for the last 30 s of a range query; 1 ms is its lowest value.
The others ask Thanos and clusters of VictoriaMetrics for an error in place of an incomplete answer.
"""
_BAD_REQUEST: Final = 400
_MAX_ERROR: Final = 10_000
_LONGEST_URL: Final = 2000
"""A longer query is sent as a form with POST, which fewer proxies allow."""

MOST_BYTES: Final = 64 * 2**20
"""Limit of a response. 5,000 series with a minute of samples are 3 MB."""


class PrometheusClient:
    """Sends queries to one Prometheus. Errors are kinds of `NodewiseError` that name the query and the server."""

    def __init__(self, connection: PrometheusConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._own_parameters: Mapping[str, str] = _COMPLETE_AND_CURRENT
        """Empty once the server has refused them, as Google's managed Prometheus does."""

    async def query(
        self, query: str, before_body: BeforeBody | None = None, *, at: float | None = None
    ) -> QueryResponse:
        """The response to an instant query at the current time, or at one in seconds since 1970. `before_body` is
        called when it begins, and may wait; until then its body stays in the buffers of the connection.

        Errors as in `_query`.
        """
        # not the modifier `@`: VictoriaMetrics ignores it in a query that is a selector with a range
        times = {} if at is None else {"time": f"{at:.3f}"}
        return await self._query(_PATH, {"query": query, **times}, before_body)

    async def parse_error(self, query: str) -> str:
        """Why the server cannot parse a query, such as `1:5: parse error: …`; empty if it can. Other errors as in
        `_query`.
        """
        try:
            # at a time without values the query costs nothing
            await self.query(query, at=1.0)
        except BadInput as error:
            error_type, _, message = error.problems[0].found.partition(": ")
            if error_type != query_responses.PARSE_ERROR:
                raise
            return message.removeprefix('invalid parameter "query": ')
        return ""

    async def query_range(self, query: str, start: float, end: float, step_s: float) -> QueryResponse:
        """The values of a query at `start`, `start + step_s` and so on until `end`, in seconds since 1970.

        Prometheus refuses more than 11,000 points per series. Errors as in `_query`.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
        return await self._query(_RANGE_PATH, {"query": query, **times})

    async def metric_names(self, start: float) -> list[str]:
        """The names of metrics since a time, in seconds since 1970; at most `MAX_METRIC_NAMES`."""
        what = f"names of metrics of {self._connection.url}"
        parameters = {"start": f"{start:.3f}", "limit": str(MAX_METRIC_NAMES)}
        with self._errors_without_secrets(what):
            return query_responses.decode_metric_names(await self._call(_NAMES_PATH, parameters, what))

    async def _query(
        self, path: str, parameters: Mapping[str, str], before_body: BeforeBody | None = None
    ) -> QueryResponse:
        """The response to a query.

        `BadInput` for a query that Prometheus cannot parse or execute, `Refused` for rejected credentials,
        `Unavailable` for errors that a retry may solve.
        """
        query = parameters["query"]
        what = f"query {query if len(query) <= 200 else query[:199] + '…'} to {self._connection.url}"  # noqa: PLR2004
        with self._errors_without_secrets(what):
            body = await self._call(path, parameters, what, before_body)
            return query_responses.decode_response(body, self._connection.hide)

    async def _call(
        self, path: str, parameters: Mapping[str, str], what: str, before_body: BeforeBody | None = None
    ) -> bytes:
        """The body of a successful response of one endpoint."""
        http = self._connection.http
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await http.send(self._build_request(http, path, parameters), stream=True)
                try:
                    if before_body is not None:
                        await before_body()
                    body = await _read_body(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            problem = Problem("", f"no answer within {self._timeout_s:g} s", "")
            remedy = "a cheaper query, or --prometheus-timeout"
            raise Unavailable(what, [problem], remedy=remedy, timeout_s=self._timeout_s) from error
        except tuple(kube_client.TRANSLATED) as error:
            problem = Problem("", self._connection.hide(str(error) or type(error).__name__), "")
            remedy = missing_values.cause("SourceUnreachable", source_table.PROMETHEUS, "").remedy
            raise Unavailable(what, [problem], remedy=remedy) from error
        if response.status_code == _BAD_REQUEST and self._refuses_own_parameters(body, parameters):
            self._own_parameters = {}
            # `before_body` was called, and what it waited for is still held
            return await self._call(path, parameters, what, None)
        if not response.is_success:
            retry_after = response.headers.get("retry-after", "")
            raise query_responses.error_from_response(
                what, response.status_code, body, retry_after, self._timeout_s, self._connection.hide
            )
        return body

    def _build_request(
        self, http: httpx2.AsyncClient, path: str, parameters: Mapping[str, str]
    ) -> httpx2.Request:
        timeout = f"{max(round(self._timeout_s * 1000), 1)}ms"
        form = {**parameters, "timeout": timeout, **self._own_parameters}
        if len(parameters.get("query", "")) <= _LONGEST_URL:
            return http.build_request("GET", path, params=form)
        return http.build_request("POST", path, data=form)

    @contextlib.contextmanager
    def _errors_without_secrets(self, what: str) -> Iterator[None]:
        """Errors in this context name the request, and show no secrets: a server may repeat them."""
        try:
            yield
        except NodewiseError as error:
            error.what = what
            hide = self._connection.hide
            error.problems = [Problem(*map(hide, problem)) for problem in error.problems]
            raise

    def _refuses_own_parameters(self, body: bytes, parameters: Mapping[str, str]) -> bool:
        """Whether an error names a parameter that not every server knows.

        A query is a tenant's text, and must not have this effect. An error about it repeats its text, also without its
        escapes if the server parses PromQL, and then has a type.
        """
        if query_responses.has_error_type(body):
            return False
        text, query = body[:_MAX_ERROR].decode(errors="replace"), parameters.get("query", "")
        return any(name in text and name not in query for name in self._own_parameters)


async def _read_body(response: httpx2.Response) -> bytes:
    if problem := kube_client.compression_problem(response):
        raise BadInput("", [problem])
    content = io.BytesIO()
    async for piece in response.aiter_bytes():
        content.write(piece)
        if content.tell() > MOST_BYTES:
            problem = Problem("answer", f"more than {MOST_BYTES // 2**20} MiB", "a series or two a node")
            raise BadInput(
                "", [problem], remedy="aggregate in the rule's query, or use nodewise policy recording-rules"
            )
    return content.getvalue()
