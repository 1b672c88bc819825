"""The rows of the tables in this folder, as structs."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

_FOLDER = Path(__file__).parent

T = TypeVar("T", bound=msgspec.Struct)
Form = Literal["whole", "names", "as sent"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all rows: a misspelt key in a table is an error."""


class RowCluster(_Strict, kw_only=True):
    """The cluster before the request. Each case has its own metrics and policies; nodes are shared by name."""

    metrics: dict[str, dict[str, Any]] = {}
    """Quantities in the form of the metrics API, by metric and node."""
    policies: dict[str, dict[str, Any] | None] = {}
    """Strategies by policy name; a list stands for a strategy with these rules. Null: the object has no spec."""
    nodes: tuple[str, ...] = ()
    """Additional nodes without a value. All nodes with a value exist too."""


class ExtenderRequestRow(_Strict, kw_only=True):
    """A filter or prioritize request."""

    policy: str = ""
    """The value of the pod's policy label."""
    labels: dict[str, str] | UnsetType | None = UNSET
    """The pod's labels, which replace the policy label."""
    namespace: str = "d"
    pod: UnsetType | None = UNSET
    """Null: the request has no pod."""
    nodes: tuple[str, ...] = ()
    """The candidate nodes."""
    forms: tuple[Form, ...] = ("whole", "names")
    as_sent: dict[str, str] = {}
    """The JSON of candidates that differ from the default node, by name."""
    node_list: str = ""
    """JSON in place of the list of nodes. The request is sent once, without node names."""
    body: str | None = None
    """The whole body. The request is sent once."""
    lower_case: tuple[str, ...] = ()
    """Keys of the request that are in lower case."""
    after: str = ""
    """Text after the request in the body."""


class HttpCall(_Strict, kw_only=True):
    """An HTTP request."""

    method: str = "POST"
    path: str = "/scheduler/filter"
    content_type: str | None = "application/json"
    body: str = "{}"
    chunked: bool = False
    declared_bytes: int | None = None
    """The declared content length, if it differs from that of the body."""


class ClientConnection(_Strict, kw_only=True):
    """The connection of a client. The default is that of kube-scheduler."""

    client: Literal["scheduler", "ca", "server-auth-only"] = "scheduler"
    version: Literal["", "1.1", "1.2"] = ""
    """The only TLS version of the client. Empty: no restriction."""
    ciphers: str = ""
    protocols: tuple[str, ...] = ()
    plain: bool = False
    send: str | None = None
    """The only bytes that the client sends, on a connection that it does not close."""


class ExpectedLogLine(_Strict):
    """A line that the log of the process must contain: its event, and words of it."""

    event: str
    about: tuple[str, ...]


class ExpectedResponse(_Strict, kw_only=True):
    """The expected response. Only fields that are set are compared; `kept` and `failed` are compared together."""

    status: int = 200
    field: str = ""
    """The field that an error response names."""
    kept: tuple[str, ...] | None = None
    failed: dict[str, str] | None = None
    """The rejection reason by node. Null: no agent took part."""
    list_metadata: dict[str, Any] | None = None
    scores: dict[str, int] | None = None
    content_type: str = ""
    text: str = ""
    refused: str = ""
    """Words of the TLS alert that the client receives, if the handshake fails."""
    protocol: str = ""
    closed_after_s: float = 0.0
    logged: ExpectedLogLine | None = None


class RequestRow(_Strict, kw_only=True):
    """A row of a filter, prioritize or HTTP table."""

    number: str
    name: str
    cluster_state: RowCluster = RowCluster()
    ask: ExtenderRequestRow | None = None
    call: HttpCall | None = None
    connect: ClientConnection = ClientConnection()
    expect: ExpectedResponse
    differs: str = ""
    """How nodewise differs from the older system. Empty: it does not differ."""


class OperatorRow(_Strict, kw_only=True):
    """A metric value, and rules that it violates (`breaks`) or does not violate (`keeps`).

    The rules leave out their metric. `reason` is the rejection reason, if it is not the violated rule.
    """

    number: str
    name: str
    value: Any
    breaks: tuple[str | dict[str, Any], ...] = ()
    keeps: tuple[str | dict[str, Any], ...] = ()
    reason: str = ""
    logged: ExpectedLogLine | None = None
    differs: str = ""


class ViolationRow(_Strict, kw_only=True):
    """Rules, and the rejection reasons by node for a strategy with `anyOf` and with `allOf`."""

    number: str
    name: str
    rules: tuple[str, ...]
    any: dict[str, str]
    all: dict[str, str]
    differs: str = ""


class RequestTable(_Strict):
    """The tables filter.yaml, prioritize.yaml and http.yaml."""

    rows: tuple[RequestRow, ...]
    path: str = HttpCall().path
    worlds: Any = None
    """Unused; it holds the YAML anchors that the rows refer to."""


class OperatorTable(_Strict):
    """The table operators.yaml."""

    rows: tuple[OperatorRow, ...]


class ViolationTable(_Strict):
    """The table violations.yaml."""

    rows: tuple[ViolationRow, ...]


def read(name: str, type_: type[T]) -> T:
    """Decode a table of this folder."""
    return msgspec.yaml.decode((_FOLDER / f"{name}.yaml").read_bytes(), type=type_)
