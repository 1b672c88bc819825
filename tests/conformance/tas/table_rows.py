"""The rows of the tables in this folder, as structs."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

_FOLDER = Path(__file__).parent

T = TypeVar("T", bound=msgspec.Struct)
Form = Literal["whole", "names", "as sent"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A misspelt key in a table is an error."""


class RowCluster(_Strict, kw_only=True):
    """What there is before the request. All but the policies of `d` is shared by name with no other case."""

    metrics: dict[str, dict[str, Any]] = {}
    """By metric and node: quantities as the metrics API gives them."""
    policies: dict[str, dict[str, Any] | None] = {}
    """Strategies by the policy's name; a list is short for its rules. Null: the object has no spec."""
    nodes: tuple[str, ...] = ()
    """Nodes without a value. Those with one are there anyway, others are unknown."""


class ExtenderRequestRow(_Strict, kw_only=True):
    """A filter or prioritize request."""

    policy: str = ""
    """The value of the pod's policy label."""
    labels: dict[str, str] | UnsetType | None = UNSET
    """The pod's labels, instead of that one."""
    namespace: str = "d"
    pod: UnsetType | None = UNSET
    """Null: the request has no pod."""
    nodes: tuple[str, ...] = ()
    """The candidates."""
    forms: tuple[Form, ...] = ("whole", "names")
    as_sent: dict[str, str] = {}
    """Candidates whose JSON matters, by name."""
    node_list: str = ""
    """JSON in place of the list of nodes; the request is sent once, with no names."""
    body: str | None = None
    """All of the body; the request is sent once."""
    lower_case: tuple[str, ...] = ()
    """Keys of the request that are sent in lower case."""
    after: str = ""
    """What follows the request in the body."""


class HttpCall(_Strict, kw_only=True):
    """An HTTP request."""

    method: str = "POST"
    path: str = "/scheduler/filter"
    content_type: str | None = "application/json"
    body: str = "{}"
    chunked: bool = False
    declared_bytes: int | None = None
    """A content length that is declared and not sent."""


class ClientConnection(_Strict, kw_only=True):
    """How a client connects. By default: as kube-scheduler does."""

    client: Literal["scheduler", "ca", "server-auth-only"] = "scheduler"
    version: Literal["", "1.1", "1.2"] = ""
    """The only version of TLS that the client speaks; empty for what it likes best."""
    ciphers: str = ""
    protocols: tuple[str, ...] = ()
    plain: bool = False
    send: str | None = None
    """These bytes and no others, on a connection that the client does not end."""


class ExpectedLogLine(_Strict):
    """A line that the log of the process must hold: its event, and words in it."""

    event: str
    about: tuple[str, ...]


class ExpectedResponse(_Strict, kw_only=True):
    """What is right. Only what is named is compared; `kept` and `failed` go together."""

    status: int = 200
    field: str = ""
    """Of a refusal: the field that it names."""
    kept: tuple[str, ...] | None = None
    failed: dict[str, str] | None = None
    """By node: the reason. Null: no agent had anything to say."""
    list_metadata: dict[str, Any] | None = None
    scores: dict[str, int] | None = None
    content_type: str = ""
    text: str = ""
    refused: str = ""
    """The handshake fails; the alert that the client is sent has these words in its name."""
    protocol: str = ""
    closed_after_s: float = 0.0
    logged: ExpectedLogLine | None = None


class RequestRow(_Strict, kw_only=True):
    """One row of filter, prioritize or HTTP."""

    number: str
    name: str
    cluster_state: RowCluster = RowCluster()
    ask: ExtenderRequestRow | None = None
    call: HttpCall | None = None
    connect: ClientConnection = ClientConnection()
    expect: ExpectedResponse
    differs: str = ""
    """How nodewise departs from the older system; empty where it does not."""


class OperatorRow(_Strict, kw_only=True):
    """One value, and rules without their metric that it breaks or keeps; `reason` if it is not the broken rule."""

    number: str
    name: str
    value: Any
    breaks: tuple[str | dict[str, Any], ...] = ()
    keeps: tuple[str | dict[str, Any], ...] = ()
    reason: str = ""
    logged: ExpectedLogLine | None = None
    differs: str = ""


class ViolationRow(_Strict, kw_only=True):
    """Rules, and by node the reasons of a strategy of any and of all of them."""

    number: str
    name: str
    rules: tuple[str, ...]
    any: dict[str, str]
    all: dict[str, str]
    differs: str = ""


class RequestTable(_Strict):
    """filter.yaml, prioritize.yaml, http.yaml."""

    rows: tuple[RequestRow, ...]
    path: str = HttpCall().path
    worlds: Any = None
    """Only for the aliases of YAML."""


class OperatorTable(_Strict):
    """operators.yaml."""

    rows: tuple[OperatorRow, ...]


class ViolationTable(_Strict):
    """violations.yaml."""

    rows: tuple[ViolationRow, ...]


def read(name: str, type_: type[T]) -> T:
    """A table of this folder."""
    return msgspec.yaml.decode((_FOLDER / f"{name}.yaml").read_bytes(), type=type_)
