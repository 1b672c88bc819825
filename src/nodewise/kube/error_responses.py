"""What an API server's refusal means: HTTP status and Status object in, kind of error out. No I/O."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from nodewise.errors import UNREADABLE, BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.api import Expired, NotAllowed, NotFound

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
"""What to do next, by HTTP status. Others: 5xx is Unavailable, anything else Refused."""

_BY_FIELD: Final = (409, 422)
"""Conflict of a server-side apply, and validation: the causes name each field."""

REMEDIES: Final[Mapping[int, str]] = {
    401: "the credentials are not, or no longer, accepted: renew them",
    403: "grant this right to the account by a Role or ClusterRole",
    429: "the API server asks for fewer calls",
}


class Cause(msgspec.Struct, frozen=True):
    """One field that the API server found wrong."""

    field: str = ""
    message: str = ""


class Details(msgspec.Struct, frozen=True):
    """The machine-readable part of a Status."""

    causes: tuple[Cause, ...] = ()
    retryAfterSeconds: float = 0.0  # noqa: N815 - the name on the wire


class Status(msgspec.Struct, frozen=True):
    """`meta/v1` Status, as far as somebody reads it."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


class Call(NamedTuple):
    """What was asked, for the words of an error: `list https://host/api/v1/nodes`."""

    verb: str
    url: str

    def __str__(self) -> str:
        return f"{self.verb} {self.url}"


def status_of(body: bytes) -> Status:
    """The Status in a body; an answer that carries none, as from a proxy, gives its first words."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except UNREADABLE:
        return Status(message=body[:200].decode(errors="replace").strip())
    return status if status.kind == "Status" else Status()


def error(call: Call, code: int, status: Status, retry_after: str = "", hint: str = "") -> NodewiseError:
    """The error of an answer that is no success.

    `retry_after` is the header's text; `hint`, where it is not empty, stands for the table's remedy.
    """
    kind = KINDS.get(code, Unavailable if code >= 500 else Refused)  # noqa: PLR2004 - HTTP's own classes
    problems = _problems(code, status)
    remedy = hint or REMEDIES.get(code, "")
    if kind is Unavailable:
        wait_s = _seconds(retry_after, status)
        return Unavailable(str(call), problems, remedy=remedy, retry_after_s=wait_s)
    return kind(str(call), problems, remedy=remedy)


def _problems(code: int, status: Status) -> list[Problem]:
    causes = status.details.causes if status.details else ()
    if causes and code in _BY_FIELD:
        return [Problem(cause.field, cause.message, "") for cause in causes]
    return [Problem("", status.message or f"HTTP status {code}", "")]


def _seconds(retry_after: str, status: Status) -> float:
    """The longer of header and Status; the form with a date, which no API server sends, counts as absent."""
    header_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    body_s = status.details.retryAfterSeconds if status.details else 0.0
    return max(header_s, body_s, 0.0) or 1.0
