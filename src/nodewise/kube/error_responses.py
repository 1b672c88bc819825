"""Maps error responses of the API server (HTTP status and Status object) to kinds of `NodewiseError`. No I/O."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.api_server_interface import Expired, NotAllowed, NotFound

KINDS: Final[Mapping[int, type[NodewiseError]]] = {
    400: BadInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    405: NotAllowed,
    406: Refused,
    409: Conflict,
    410: Expired,
    412: Conflict,
    413: BadInput,
    415: BadInput,
    422: BadInput,
    429: Unavailable,
    500: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
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
    problems = _problems_of_status(code, status)
    remedy = hint or REMEDIES.get(code, "")
    error = kind(str(call), problems, remedy=remedy)
    error.http_status = code
    if isinstance(error, Unavailable):
        error.retry_after_s = _retry_after_s(retry_after, status)
    return error


def _problems_of_status(code: int, status: ErrorStatus) -> list[Problem]:
    causes = status.details.causes if status.details else ()
    if causes and code in _BY_FIELD:
        return [Problem(cause.field, cause.message, "") for cause in causes]
    return [Problem("", status.message or f"HTTP status {code}", "")]


def _retry_after_s(retry_after: str, status: ErrorStatus) -> float:
    """The longer delay of header and Status, in seconds. A date, which no API server sends, is ignored."""
    header_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    body_s = status.details.retryAfterSeconds if status.details else 0.0
    return max(header_s, body_s, 0.0) or 1.0
