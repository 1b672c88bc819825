"""Secret headers of requests to Prometheus: credentials, and headers of tenants and gateways.

A value is never shown: in a message `hide` replaces it.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from nodewise.base.errors import Problem, Refused
from nodewise.metrics.prometheus.options import PrometheusOptions

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
    """`NAME=VALUE` or `NAME=FILE` of a flag."""

    name: str
    value: str
    is_file: bool


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
        path = options.prometheus_password_file
        headers.append(FileHeader(AUTHORIZATION, path, lambda password: _basic_authorization(user, password)))
    for header in filter(None, _assignments(options)):
        made = FileHeader(header.name, header.value) if header.is_file else SecretHeader(*header[:2])
        headers.append(made)
    return SecretHeaders(headers)


def header_problems(options: PrometheusOptions) -> Iterator[Problem]:
    """The problems of the settings. A problem names a header only where its name cannot be a part of a value."""
    has_credentials = bool(options.prometheus_token_file or options.prometheus_user)
    names: set[str] = set()
    for flag, texts in (
        (HEADER_FLAG, options.prometheus_header),
        (HEADER_FILE_FLAG, options.prometheus_header_file),
    ):
        for number, text in enumerate(texts, 1):
            header = _parse_assignment(text, is_file=flag == HEADER_FILE_FLAG)
            if header is None:
                expected = "NAME=FILE" if flag == HEADER_FILE_FLAG else "NAME=VALUE"
                example = "X-Scope-OrgID=/etc/tenant" if flag == HEADER_FILE_FLAG else "X-Scope-OrgID=team-a"
                place = f"{flag}, number {number} of {len(texts)}"
                actual = "a header without a valid name or value, which is hidden"
                yield Problem(place, actual, f"{expected}, such as {example}")
                continue
            yield from _assignment_problems(flag, header, names, has_credentials=has_credentials)
            names.add(header.name.lower())


def _assignment_problems(
    flag: str, header: HeaderAssignment, earlier: Iterable[str], *, has_credentials: bool
) -> Iterator[Problem]:
    name = header.name.lower()
    if name in _OWN_HEADERS:
        remedy = "; the host is that of --prometheus-url" if name == "host" else ""
        yield Problem(
            flag, f"the header {header.name}, which nodewise sets itself", f"another header{remedy}"
        )
    elif name in earlier:
        yield Problem(flag, f"the header {header.name} is given twice", "each header once")
    elif name == AUTHORIZATION.lower() and has_credentials:
        other = "--prometheus-token-file or --prometheus-user"
        yield Problem(flag, f"the header {header.name} is given with {other}", "one of the two")


def _assignments(options: PrometheusOptions) -> Iterator[HeaderAssignment | None]:
    for text in options.prometheus_header:
        yield _parse_assignment(text, is_file=False)
    for text in options.prometheus_header_file:
        yield _parse_assignment(text, is_file=True)


def _parse_assignment(text: str, *, is_file: bool) -> HeaderAssignment | None:
    """The parts of `NAME=VALUE`; None if one is missing or invalid."""
    name, _, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not _TOKEN.fullmatch(name) or not value or (not is_file and _invalid_value(value)):
        return None
    return HeaderAssignment(name, value, is_file)


def _invalid_value(text: str) -> bool:
    """Whether a value has a character that no header may have. Others than ASCII have no defined encoding."""
    return not text.isascii() or not text.replace("\t", " ").isprintable()


def _basic_authorization(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
