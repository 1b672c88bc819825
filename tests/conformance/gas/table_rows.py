"""The rows of the tables in this folder, as structs. `table_notation` describes how nodes and pods are written."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

_FOLDER = Path(__file__).parent

PLACING: Final = ("basics", "choosing", "same_gpu", "links", "numa", "tiles")
"""Tables of nodes, a pod, and where it goes."""
STORIES: Final = ("books", "deschedule")
"""Tables of what happens step by step."""

T = TypeVar("T", bound=msgspec.Struct)
Flags = Literal["", "allow", "deny", "allow deny", "balanced tiles", "balanced millicores", "balanced nosuch"]
Books = dict[str, dict[str, int]]
"""By card and resource: what is held. What is not named is not held."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A misspelt key in a table is an error."""


class ExpectedPlacement(_Strict, kw_only=True):
    """What is right. A row of one node says either `why` or `cards`."""

    why: str = ""
    """Why no node fits: WNF, BA, MA or RC, or the whole text. Binding is refused for it as well."""
    kept: tuple[str, ...] | None = None
    """The nodes that fit, in order; by default all, or none where `why` is given."""
    failed: dict[str, str] = {}
    """Why the others do not; as `why`."""
    cards: str | None = None
    """What a binding to the first node kept writes; null: nothing."""
    tiles: str | None = None
    """Likewise; `{gt0+gt1}` stands for these in any order."""
    books: Books | None = None
    """What the pod and all others then hold on that node."""


class PlacementRow(_Strict, kw_only=True):
    """Nodes, a pod, and where it goes."""

    number: int
    name: str
    nodes: dict[str, str]
    running: tuple[str, ...] = ()
    """Pods that are there already."""
    pod: str
    annotations: dict[str, str] = {}
    flags: Flags = ""
    candidates: tuple[str, ...] = ()
    """By default all nodes, in order."""
    expect: ExpectedPlacement
    differs: str = ""
    """How nodewise departs from the older system; empty where it does not."""

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates."""
        return self.candidates or tuple(self.nodes)

    @property
    def kept(self) -> tuple[str, ...]:
        """The nodes that fit."""
        if self.expect.kept is not None:
            return self.expect.kept
        return () if self.expect.why else self.names

    @property
    def is_of_both_drivers(self) -> bool:
        """Whether xe may stand for i915."""
        return "xe=" not in " ".join((*self.nodes.values(), *self.running, self.pod))


class PlacementCase(_Strict):
    """One row with one driver; its tag begins the names of all its objects."""

    row: PlacementRow
    tag: str
    driver: Literal["i915", "xe"]

    def __str__(self) -> str:
        return f"{self.row.number} {self.row.name} ({self.driver})"


class ExpectedHttpResponse(_Strict, kw_only=True):
    """What comes back."""

    status: int = 0
    field: str = ""
    """Of a refusal: the field that it names."""
    answer: Any = None
    """The whole body."""
    content_type: str = "application/json"
    refused: str = ""
    """The handshake fails; words of the alert."""


class GasHttpRow(_Strict, kw_only=True):
    """One HTTP request."""

    number: int
    name: str
    method: str = "POST"
    path: str = "/scheduler/filter"
    content_type: str | None = "application/json"
    body: str = ""
    client: Literal["scheduler", "nobody", "stranger"] = "scheduler"
    """Who asks: somebody with a certificate of our CA, of no CA, or of another one."""
    expect: ExpectedHttpResponse
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class BindRequestRow(_Strict, kw_only=True):
    """A bind request and its answer."""

    pod: str
    node: str
    uid: str = ""
    """By default the pod's."""
    error: str = ""
    """How the error begins, or words in it; ANY: some error. `{name}` is the pod or node of that name."""


class GasStep(_Strict, kw_only=True):
    """What happens, in this order, and what must be so then."""

    blind: bool = False
    """Pods can be neither listed nor watched meanwhile; then they are listed anew."""
    change: dict[str, str | None] = {}
    """Nodes that are made or changed; null: deleted."""
    pods: dict[str, str] = {}
    """Pods that are made."""
    leave: tuple[str, ...] = ()
    """Pods that are deleted, and take their time."""
    remove: tuple[str, ...] = ()
    """Pods that are deleted by force."""
    again: dict[str, str] = {}
    """Pods that are made after that."""
    phase: dict[str, str] = {}
    annotate: dict[str, str] = {}
    """`c=` the cards or `t=` the tiles that a pod is annotated with by somebody."""
    touch: tuple[str, ...] = ()
    """Pods of which something changes that says nothing."""
    fail: dict[Literal["leases", "binding"], str] = {}
    """What the API server says to these requests meanwhile."""
    bind: BindRequestRow | None = None
    books: dict[str, Books] | None = None
    """By node. Null: nobody asks."""
    cards: dict[str, str | None] = {}
    """What pods are annotated with."""
    told: tuple[str, ...] | None = None
    """All pods that are labelled to go."""


class GasStory(_Strict, kw_only=True):
    """What happens step by step."""

    number: int
    name: str
    nodes: dict[str, str]
    before: dict[str, str] = {}
    """Pods that are there when the process starts."""
    labelled: tuple[str, ...] = ()
    """Those of them that have a label of somebody's."""
    already: tuple[str, ...] = ()
    """Those of them that were labelled to go."""
    steps: tuple[GasStep, ...]
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class GasPartRow(_Strict, kw_only=True):
    """What is given to a part of the whole, and what it gives or why it refuses."""

    number: int
    name: str
    part: str
    """A function of `component_calls`."""
    given: Any
    annotations: dict[str, str] = {}
    gives: Any = None
    refuses: str = ""
    """Words of the error."""
    differs: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


class PlacementTable(_Strict):
    """The tables of `PLACING`."""

    rows: tuple[PlacementRow, ...]
    worlds: Any = None
    """Only for the aliases of YAML."""


class GasHttpTable(_Strict):
    """http.yaml."""

    rows: tuple[GasHttpRow, ...]
    worlds: Any = None


class GasStoryTable(_Strict):
    """The tables of `STORIES`."""

    stories: tuple[GasStory, ...]
    worlds: Any = None


class GasPartTable(_Strict):
    """parts.yaml."""

    rows: tuple[GasPartRow, ...]
    worlds: Any = None


def placing() -> list[PlacementCase]:
    """The cases of all tables of nodes and pods."""
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
    """A table of this folder."""
    return msgspec.yaml.decode((_FOLDER / f"{name}.yaml").read_bytes(), type=type_)
