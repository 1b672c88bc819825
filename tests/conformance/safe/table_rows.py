"""The rows of the tables in this folder: one struct for each table."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

FOLDER = Path(__file__).parent
Strings = dict[str, str]
Amounts = dict[str, str | int | float]

PARTS = ("beta", "objectives", "learned", "annotator")
"""Tables of functions."""


class NumberedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    number: int
    differs: str = ""
    """How nodewise departs from the older system, and why; empty: it does not."""
    environment: Strings = {}
    warned: str = ""
    """The variable of which the log warns."""

    @property
    def id(self) -> str:
        return str(self.number)


class RiskRow(NumberedRow, frozen=True, kw_only=True):
    """A share of use and its deviation, and what follows."""

    mean: float
    deviation: float
    risk: float
    passes: bool
    overload: int
    balance: int | None = None
    threshold: int = 90
    percentile: int = 30


class NodeRow(NumberedRow, frozen=True, kw_only=True):
    """Annotations of one node, and what is said of it."""

    allocatable: Amounts = msgspec.field(default_factory=lambda: {"cpu": 4, "memory": "8Gi"})
    cpu: list[str] = []
    memory: list[str] = []
    forecast: str | None = None
    memory_forecast: str | None = None
    request: Amounts = {}
    requests: list[Amounts] = []
    passes: bool
    overload: int
    balance: int | None = None
    means: dict[str, float] = {}
    risks: dict[str, float] = {}
    missing: list[str] = []


class CongestionRow(NumberedRow, frozen=True, kw_only=True):
    """Factors, and the scores that follow, one node each."""

    factors: list[str | None]
    scores: list[int]


class SafePartRow(NumberedRow, frozen=True, kw_only=True):
    """What a part is given, and what it gives."""

    part: str
    given: Any
    gives: Any
    """Of a mapping what is named here."""
    within: float = 1e-6
    relative: float = 0.0


class PigeonRequest(NumberedRow, frozen=True, kw_only=True):
    """A pod that is asked about, and what is said of all nodes."""

    pod: str
    init: str = ""
    """What an init container of it asks for."""
    uid: str = ""
    """By default one that no other pod has."""
    nodes: str | None = None
    """By default those of the story."""
    demand: float | None = None
    objectives: list[float | None]
    within: float = 2e-6
    scores: list[int]


class PigeonStory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods that one process is asked about, one after the other."""

    environment: Strings = {}
    config: str = ""
    """The text of pigeon.cfg."""
    warned: str = ""
    nodes: str
    asks: list[PigeonRequest]

    @property
    def id(self) -> str:
        return ",".join(sorted({ask.id for ask in self.asks}))


def stories() -> list[PigeonStory]:
    """Those of `pigeon.yaml`."""
    document: Any = yaml.safe_load((FOLDER / "pigeon.yaml").read_text())
    return msgspec.convert(document["stories"], list[PigeonStory])


class StoredRewardsRow(NumberedRow, frozen=True, kw_only=True):
    """What was learned, and the scores that follow."""

    rewards: dict[str, float]
    scores: list[int]


class SafeHttpRow(NumberedRow, frozen=True, kw_only=True):
    """A request and its answer."""

    name: str
    method: str = "POST"
    path: str
    body: str = ""
    status: int = 200
    content_type: str = "application/json"
    answer: Any = None
    text: str = ""
    field: str = ""
    to: str = ""

    @property
    def id(self) -> str:
        return f"{self.number} {self.name}"


def http() -> list[SafeHttpRow]:
    """Those of `http.yaml`."""
    document: Any = yaml.safe_load((FOLDER / "http.yaml").read_text())
    return msgspec.convert(document["rows"], list[SafeHttpRow])


T = TypeVar("T", bound=NumberedRow)


def read(name: str, kind: type[T]) -> list[T]:
    """A table's rows, in order."""
    rows: Any = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return msgspec.convert(rows, list[kind])  # type: ignore[valid-type]
