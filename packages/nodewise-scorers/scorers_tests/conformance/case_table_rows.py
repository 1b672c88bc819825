"""The rows of the tables in this folder: one struct for each table."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

FOLDER = Path(__file__).parent
Strings = dict[str, str]
Amounts = dict[str, str | int | float]

PARTS = ("beta", "objectives", "learned", "annotator")
"""The tables whose rows call one component."""


class NumberedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    number: int
    differs: str = ""
    """How and why nodewise differs from the older system. Empty: it does not differ."""
    environment: Strings = {}
    warned: str = ""
    """The environment variable that the log warns about. Empty: no warning."""

    @property
    def id(self) -> str:
        return str(self.number)


class RiskRow(NumberedRow, frozen=True, kw_only=True):
    """The mean and the deviation of CPU usage as shares, and the expected risk and scores."""

    mean: float
    deviation: float
    risk: float
    passes: bool
    overload: int
    balance: int | None = None
    threshold: int = 90
    percentile: int = 30


class NodeRow(NumberedRow, frozen=True, kw_only=True):
    """The annotations of one node, and the expected decision about it."""

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
    """Congestion factors, and the expected scores, one of each per node."""

    factors: list[str | None]
    scores: list[int]


class SafePartRow(NumberedRow, frozen=True, kw_only=True):
    """The input of a component, and its expected result."""

    part: str
    given: Any
    gives: Any
    """The expected result. Of a mapping, only the keys that are named here are compared."""
    within: float = 1e-6
    relative: float = 0.0


class PigeonRequest(NumberedRow, frozen=True, kw_only=True):
    """A request for one pod, and the expected objectives and scores of all nodes."""

    pod: str
    init: str = ""
    """The requests of an init container. Empty: the pod has none."""
    uid: str = ""
    """The uid of the pod. Empty: a unique one."""
    nodes: str | None = None
    """The candidate nodes. None: those of the story."""
    demand: float | None = None
    objectives: list[float | None]
    within: float = 2e-6
    scores: list[int]


class PigeonStory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests that one process receives one after the other."""

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
    """The stories of `pigeon.yaml`."""
    document: Any = yaml.load((FOLDER / "pigeon.yaml").read_text(), yaml.CSafeLoader)
    return msgspec.convert(document["stories"], list[PigeonStory])


class StoredRewardsRow(NumberedRow, frozen=True, kw_only=True):
    """Stored rewards, and the expected scores."""

    rewards: dict[str, float]
    scores: list[int]


class SafeHttpRow(NumberedRow, frozen=True, kw_only=True):
    """An HTTP request, and the expected response."""

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
    """The rows of `http.yaml`."""
    document: Any = yaml.load((FOLDER / "http.yaml").read_text(), yaml.CSafeLoader)
    return msgspec.convert(document["rows"], list[SafeHttpRow])


T = TypeVar("T", bound=NumberedRow)


def read(name: str, kind: type[T]) -> list[T]:
    """The rows of a table, in order."""
    rows: Any = yaml.load((FOLDER / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    return msgspec.convert(rows, list[kind])  # type: ignore[valid-type]
