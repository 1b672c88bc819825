"""The rows of the tables in this folder, as structs. `node_and_pod_notation` describes how nodes and pods are
written."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

_FOLDER = Path(__file__).parent

PLACING: Final = ("basics", "choosing", "same_gpu", "links", "numa", "tiles")
"""The tables whose rows have nodes, one pod, and the expected placement."""
STORIES: Final = ("books", "deschedule")
"""The tables of stories, which consist of steps."""

T = TypeVar("T", bound=msgspec.Struct)
Flags = Literal["", "allow", "deny", "allow deny", "balanced tiles", "balanced millicores", "balanced nosuch"]
Books = dict[str, dict[str, int]]
"""Allocated amounts by GPU and resource. An amount that is left out is 0."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all rows: a misspelt key in a table is an error."""


class ExpectedPlacement(_Strict, kw_only=True):
    """The expected placement. A row with one node has either `why` or `cards`."""

    why: str = ""
    """Why no node fits: WNF, BA, MA, RC, or the whole reason. A bind is refused with the same reason."""
    kept: tuple[str, ...] | None = None
    """The nodes that fit, in order; by default all, or none where `why` is given."""
    failed: dict[str, str] = {}
    """The reason of each rejected node, in the form of `why`; `why` itself where a node is left out."""
    cards: str | None = None
    """The cards annotation after a bind to the first kept node; null: no annotation."""
    tiles: str | None = None
    """The tiles annotation after the bind; the order within `{gt0+gt1}` does not matter."""
    books: Books | None = None
    """The allocations of all pods on that node after the bind. Null: not checked."""


class PlacementRow(_Strict, kw_only=True):
    """A row with nodes, one pod, and its expected placement."""

    number: int
    name: str
    nodes: dict[str, str]
    running: tuple[str, ...] = ()
    """Pods that already run."""
    pod: str
    annotations: dict[str, str] = {}
    flags: Flags = ""
    candidates: tuple[str, ...] = ()
    """The candidate nodes of the request. Empty: all nodes, in order."""
    expect: ExpectedPlacement
    differs: str = ""
    """How nodewise differs from the older system. Empty: it does not differ."""

    @property
    def names(self) -> tuple[str, ...]:
        """The candidate nodes."""
        return self.candidates or tuple(self.nodes)

    @property
    def kept(self) -> tuple[str, ...]:
        """The nodes that fit."""
        if self.expect.kept is not None:
            return self.expect.kept
        return () if self.expect.why else self.names

    @property
    def is_of_both_drivers(self) -> bool:
        """Whether the row also applies with the xe driver in place of i915."""
        return "xe=" not in " ".join((*self.nodes.values(), *self.running, self.pod))


class PlacementCase(_Strict):
    """One row with one driver. The names of all its objects begin with its tag."""

    row: PlacementRow
    tag: str
    driver: Literal["i915", "xe"]

    def __str__(self) -> str:
        return f"{self.row.number} {self.row.name} ({self.driver})"


class ExpectedHttpResponse(_Strict, kw_only=True):
    """The expected response."""

    status: int = 0
    field: str = ""
    """The field that an error response names."""
    answer: Any = None
    """The whole JSON body. None: not checked."""
    content_type: str = "application/json"
    refused: str = ""
    """Words of the TLS alert, if the handshake fails."""


class GasHttpRow(_Strict, kw_only=True):
    """One HTTP request."""

    number: int
    name: str
    method: str = "POST"
    path: str = "/scheduler/filter"
    content_type: str | None = "application/json"
    body: str = ""
    client: Literal["scheduler", "nobody", "stranger"] = "scheduler"
    """The client certificate: one from the trusted CA, none, or one from another CA."""
    expect: ExpectedHttpResponse
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class BindRequestRow(_Strict, kw_only=True):
    """A bind request and the expected error."""

    pod: str
    node: str
    uid: str = ""
    """The uid in the request. Empty: the uid of the pod."""
    error: str = ""
    """Words in the error. Empty: no error. ANY: any error. `{name}` is the pod or node of that name."""


class GasStep(_Strict, kw_only=True):
    """Actions, in the order of the fields, and the expected state afterwards."""

    blind: bool = False
    """Whether pods can be neither listed nor watched during the actions; they are listed again afterwards."""
    change: dict[str, str | None] = {}
    """Nodes that are created or whose labels change; null: the node is deleted."""
    pods: dict[str, str] = {}
    """Pods that are created."""
    leave: tuple[str, ...] = ()
    """Pods that are deleted with their grace period."""
    remove: tuple[str, ...] = ()
    """Pods that are deleted at once."""
    again: dict[str, str] = {}
    """Pods that are created after the deletions."""
    phase: dict[str, str] = {}
    annotate: dict[str, str] = {}
    """The annotations that another client writes to a pod: `c=` its cards, `t=` its tiles."""
    touch: tuple[str, ...] = ()
    """Pods of which only an unrelated annotation changes."""
    fail: dict[Literal["leases", "binding"], str] = {}
    """The message with which the API server refuses these writes during the bind."""
    bind: BindRequestRow | None = None
    books: dict[str, Books] | None = None
    """The expected allocations by node. Null: not checked."""
    cards: dict[str, str | None] = {}
    """The expected cards annotation of each pod; null: the pod has none."""
    told: tuple[str, ...] | None = None
    """All pods of `before` that have the deschedule label. Null: not checked."""


class GasStory(_Strict, kw_only=True):
    """A sequence of steps on the objects of one story."""

    number: int
    name: str
    nodes: dict[str, str]
    before: dict[str, str] = {}
    """Pods that exist when the process starts."""
    labelled: tuple[str, ...] = ()
    """The pods of `before` that have a label of another client."""
    already: tuple[str, ...] = ()
    """The pods of `before` that already have the deschedule label."""
    steps: tuple[GasStep, ...]
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class GasPartRow(_Strict, kw_only=True):
    """The input of one component, and its expected result or error."""

    number: int
    name: str
    part: str
    """The key of a component in `component_calls`."""
    given: Any
    annotations: dict[str, str] = {}
    gives: Any = None
    refuses: str = ""
    """Words of the expected error. Empty: no error."""
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class PlacementTable(_Strict):
    """One of the tables in `PLACING`."""

    rows: tuple[PlacementRow, ...]
    worlds: Any = None
    """Unused; it holds the YAML anchors that the rows refer to."""


class GasHttpTable(_Strict):
    """The table http.yaml."""

    rows: tuple[GasHttpRow, ...]
    worlds: Any = None


class GasStoryTable(_Strict):
    """One of the tables in `STORIES`."""

    stories: tuple[GasStory, ...]
    worlds: Any = None


class GasPartTable(_Strict):
    """The table parts.yaml."""

    rows: tuple[GasPartRow, ...]
    worlds: Any = None


def placing() -> list[PlacementCase]:
    """The cases of all tables in `PLACING`."""
    return list(_cases())


def _cases() -> Iterator[PlacementCase]:
    seen: Counter[int] = Counter()
    for row in (row for table in PLACING for row in read(table, PlacementTable).rows):
        seen[row.number] += 1
        tag = f"c{row.number:03}-{seen[row.number]}"
        yield PlacementCase(row, tag, "i915")
        if row.is_of_both_drivers:
            yield PlacementCase(row, f"{tag}-xe", "xe")


def http() -> tuple[GasHttpRow, ...]:
    return read("http", GasHttpTable).rows


def parts() -> tuple[GasPartRow, ...]:
    return read("parts", GasPartTable).rows


def stories(table: str) -> tuple[GasStory, ...]:
    return read(table, GasStoryTable).stories


def read(name: str, type_: type[T]) -> T:
    """Decode a table of this folder."""
    return msgspec.yaml.decode((_FOLDER / f"{name}.yaml").read_bytes(), type=type_)
