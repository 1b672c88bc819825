"""Interface of an API server: paths, JSON bodies, errors of responses, the client-side rate limit and concurrent calls.

Refused   ├── NotFound   the object or the kind does not exist (404)
          └── NotAllowed the API server does not accept this method for this kind (405)
Conflict  └── Expired    the resource version or continue token is too old (410): list again
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.base.errors import NotFound as NotFound  # noqa: PLC0414 - part of this interface
from nodewise.kube.resource_kinds import Resource, escape_path

Params = Mapping[str, str]
NONE: Final[Params] = {}

Patch = Literal["merge", "json", "apply", "strategic"]
"""`apply` is server-side apply (KEP-555); the parameter `fieldManager` names the field manager."""

DEADLINE_S: Final = 10.0
"""Timeout of one call. A healthy API server responds in well under a second."""

WATCH_DEADLINE_S: Final = 36.0
"""Timeout of a watch. The API server ends it earlier, as its parameter `timeoutSeconds` requests."""


class NotAllowed(Refused):
    """The API server does not accept this method for this kind of object, regardless of the user."""


class Expired(Conflict):
    """The API server no longer has the resource version or the page to continue from; list again."""


BeforeBody = Callable[[], Awaitable[object]]


class Api(Protocol):
    """One API server, as one user. Every method raises kinds of `NodewiseError` and nothing else.

    A `body` is JSON bytes, or a value that msgspec encodes. Responses are JSON bytes. `timeout_s` limits the whole
    call, including the wait for the client-side rate limit of writes. Paths are escaped, as `Resource.path` returns
    them.
    """

    async def get(
        self,
        path: str,
        params: Params = NONE,
        *,
        timeout_s: float = DEADLINE_S,
        before_body: BeforeBody | None = None,
    ) -> bytes:
        """The body of the response. `before_body` is called when a successful response has begun, and may wait; until
        then, the body takes no memory.
        """
        ...

    async def create(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def replace(
        self, path: str, body: object, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    async def delete(
        self, path: str, body: object = b"", params: Params = NONE, *, timeout_s: float = DEADLINE_S
    ) -> bytes: ...

    def watch(
        self, path: str, params: Params = NONE, *, timeout_s: float = WATCH_DEADLINE_S
    ) -> AsyncGenerator[bytes, None]:
        """Watch events, one JSON document each, independent of how the body is chunked. The iterator ends when the
        server ends the watch. `Unavailable` if it does not do so within the timeout.
        """
        ...

    async def close(self) -> None: ...


KINDS: Final[Mapping[int, type[NodewiseError]]] = {
    400: BadInput,
    404: NotFound,
    405: NotAllowed,
    409: Conflict,
    410: Expired,
    412: Conflict,
    413: BadInput,
    415: BadInput,
    422: BadInput,
    429: Unavailable,
}
"""Kind of error by HTTP status. Of other statuses, 5xx is Unavailable and the rest Refused."""

_BY_FIELD: Final = (409, 422)
"""Statuses whose causes name each field: conflicts of server-side apply, and validation errors."""

REMEDIES: Final[Mapping[int, str]] = {
    401: "the credentials are not, or no longer, accepted: renew them",
    403: "grant this right to the account by a Role or ClusterRole",
    429: "the API server asks for fewer calls",
}


class StatusCause(msgspec.Struct, frozen=True):
    """One field that the API server rejected."""

    field: str = ""
    message: str = ""


class StatusDetails(msgspec.Struct, frozen=True):
    """The machine-readable part of a Status."""

    causes: tuple[StatusCause, ...] = ()
    retryAfterSeconds: float = 0.0  # noqa: N815 - the name on the wire


class ErrorStatus(msgspec.Struct, frozen=True):
    """The fields of a `meta/v1` Status that this package reads."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ApiCall(NamedTuple):
    """A call as error messages name it: `list https://host/api/v1/nodes`."""

    verb: str
    url: str

    def __str__(self) -> str:
        return f"{self.verb} {self.url}"


def parse_status_body(body: bytes) -> ErrorStatus:
    """The Status in a body. For a body without one, such as from a proxy, its beginning is the message."""
    try:
        status = msgspec.json.decode(body, type=ErrorStatus)
    except UNREADABLE:
        return ErrorStatus(message=body[:200].decode(errors="replace").strip())
    return status if status.kind == "Status" else ErrorStatus()


def error_from_status(
    call: ApiCall, code: int, status: ErrorStatus, retry_after: str = "", hint: str = ""
) -> NodewiseError:
    """The error of an unsuccessful response.

    `retry_after` is the value of the header Retry-After; `hint` replaces the default remedy unless it is empty.
    """
    kind = KINDS.get(code, Unavailable if code >= 500 else Refused)  # noqa: PLR2004 - HTTP's own classes
    details = status.details or StatusDetails()
    problems = [Problem("", status.message or f"HTTP status {code}", "")]
    if details.causes and code in _BY_FIELD:
        problems = [Problem(cause.field, cause.message, "") for cause in details.causes]
    remedy = hint or REMEDIES.get(code, "")
    error = kind(str(call), problems, remedy=remedy)
    error.http_status = code
    if isinstance(error, Unavailable):
        # the longer delay of header and Status; a date, which no API server sends, is ignored
        header_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        retry_after_s = max(header_s, details.retryAfterSeconds, 0.0)
        error.requests_pause, error.retry_after_s = retry_after_s > 0.0, retry_after_s or 1.0
    return error


AT_ONCE: Final = 8
"""Concurrent calls. The API client limits the rate of writes (`--kube-qps`)."""


async def run_api_calls(work: Iterator[Awaitable[None]]) -> None:
    """Run all calls, at most `AT_ONCE` at a time. The iterator creates each call when the call can start.

    Raises the first unexpected exception, else the first `NodewiseError`, after all calls have ended.

    If `AT_ONCE` calls in a row get no response, no more calls start: the API server is unavailable.
    """
    failed: list[NodewiseError] = []
    defects: list[Exception] = []
    unanswered = 0

    async def run_calls() -> None:
        nonlocal unanswered
        while unanswered < AT_ONCE and (part := next(work, None)) is not None:
            try:
                await part
            except NodewiseError as error:
                failed.append(error)
                unanswered = unanswered + 1 if isinstance(error, Unavailable) else 0
            except Exception as error:  # noqa: BLE001 - raised below, after all other calls have ended
                defects.append(error)
            else:
                unanswered = 0

    await asyncio.gather(*(run_calls() for _ in range(AT_ONCE)))
    if defects:
        raise defects[0]
    if failed:
        raise failed[0]


class TokenBucket:
    """A token bucket: `burst` calls at once, `qps` a second on average (client-go v0.36 util/flowcontrol)."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at_s: float | None = None

    def take(self, now_s: float, patience_s: float = float("inf")) -> float | None:
        """Seconds to wait before the call, or None if that is more than `patience_s`: then nothing is taken.

        Calls proceed in the order of `take`, as the tokens of earlier ones are already spent.
        """
        if self._at_s is not None:
            earned = max(0.0, now_s - self._at_s) * self._qps
            self._tokens = min(self._burst, self._tokens + earned)
        self._at_s = now_s
        wait_s = max(0.0, (1.0 - self._tokens) / self._qps)
        if wait_s > patience_s:
            return None
        self._tokens -= 1.0
        return wait_s


class Backoff(NamedTuple):
    """Delays that double with each consecutive failure, with jitter so that replicas do not retry simultaneously.

    The defaults are those of client-go's reflector (v0.36, tools/cache/reflector.go), except that its jitter
    only lengthens: a wait here lies between `share` and all of the doubled one, never above `most_s`.
    """

    first_s: float = 0.8
    most_s: float = 30.0
    share: float = 0.5
    reset_s: float = 120.0
    """A connection that lasted this long resets the count."""

    def delay_s(self, failures: int, random: Callable[[], float], at_least_s: float = 0.0) -> float:
        """The wait after `failures` failures in a row, the first being 1; `at_least_s` is a Retry-After.

        The wait is at least Retry-After plus the jitter, but no more than twice `most_s`.
        """
        # the exponent is bounded because 2.0 ** 1024 is an OverflowError, a month into an outage
        whole_s = min(self.most_s, self.first_s * 2.0 ** min(max(failures - 1, 0), 60))
        jittered_s = whole_s * (self.share + (1.0 - self.share) * random())
        return min(max(jittered_s, at_least_s + jittered_s * self.share), 2.0 * self.most_s)


class _GroupVersion(msgspec.Struct, frozen=True):
    group_version: str = msgspec.field(name="groupVersion")


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_GroupVersion, ...]


class _GroupList(msgspec.Struct, frozen=True, tag_field="kind", tag="APIGroupList"):
    groups: tuple[_Group, ...]


class _ResourceName(msgspec.Struct, frozen=True):
    name: str


class _ResourceList(msgspec.Struct, frozen=True, tag_field="kind", tag="APIResourceList"):
    resources: tuple[_ResourceName, ...]


_GROUPS: Final = msgspec.json.Decoder(_GroupList)
_RESOURCES: Final = msgspec.json.Decoder(_ResourceList)


async def is_served(api: Api, resource: Resource) -> bool:
    """Whether the API server serves a kind of a named API group in any of its versions; kinds of the core group always
    are.

    Only a complete discovery document without the kind says that it is not. A status such as 404 raises, because a
    proxy before the API server can respond with it. An API server that starts responds 503 until all kinds of its
    definitions are known. Errors are those of `Api.get`, and `Unavailable` for a response of another form.
    """
    return not resource.group or await served_version(api, resource) is not None


async def served_version(api: Api, resource: Resource) -> Resource | None:
    """The kind in the first of its versions that the API server serves; None if it serves none. Errors as above."""
    try:
        groups = _GROUPS.decode(await api.get(escape_path("apis"))).groups
        versions = {version.group_version for group in groups for version in group.versions}
        for version in (resource.version, *resource.older_versions):
            candidate = resource._replace(version=version)
            if candidate.api_version not in versions:
                continue
            root = escape_path("apis", resource.group, version)
            if resource.plural in {entry.name for entry in _RESOURCES.decode(await api.get(root)).resources}:
                return candidate
    except UNREADABLE as error:
        raise Unavailable("discovery", [Problem("", str(error), "a list of API groups or kinds")]) from error
    return None
