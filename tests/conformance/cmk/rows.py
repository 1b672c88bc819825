"""The tables of this folder, read: one struct for the rows of each."""

from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

FOLDER = Path(__file__).parent
Pools = dict[str, dict[int, str]]
"""Pool, socket, and the CPU lists with blanks between; a socket without lists is left out."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    number: int
    differs: str = ""
    """How nodewise departs from the older system, and why; empty: it does not."""
    error: list[str] = []
    """What the error says; empty: there is none."""

    @property
    def id(self) -> str:
        return str(self.number)


class ListRow(Row, frozen=True, kw_only=True):
    """A list of CPUs."""

    text: str


class MaskRow(Row, frozen=True, kw_only=True):
    """CPUs, and the mask that workloads are given."""

    cpus: list[int]
    mask: str


class LineRow(Row, frozen=True, kw_only=True):
    """A kernel's command line, and the CPUs that it isolates."""

    line: str
    isolated: str
    warns: bool = False


class PoolsRow(Row, frozen=True, kw_only=True):
    """A machine, how many cores go where, and which ones that are."""

    machine: str
    isolated: str = ""
    exclusive: int
    shared: int
    modes: str = "packed/packed"
    listed: str = "-1"
    fast: str | None = None
    """The CPUs of higher base frequency, where the node's label says that there are such."""
    preferences: dict[str, str] | None = None
    """Energy performance preference to cores, where the node's label says that they differ."""
    pools: Pools = {}
    warns: list[str] = []


class ClaimRow(Row, frozen=True, kw_only=True):
    """What a task asks for on a node, and what it gets."""

    state: Pools | None = None
    """None: that of most cases."""
    held: dict[str, int] = {}
    """CPU list to the process that is on it."""
    pool: str
    cores: str = "1"
    """CMK_NUM_CORES."""
    socket: int | None = None
    gets: str = ""
    """CPU lists with blanks between, in the order in which the task is told them."""
    mask: str = ""
    shared: str | None = None
    infra: str | None = None


class SweepRow(Row, frozen=True, kw_only=True):
    """A state, the processes there are, and the tasks that are over."""

    state: dict[str, dict[str, list[int | str]]]
    """Pool, CPU list, process ids."""
    alive: list[int]
    reclaims: list[str]
    """Process id, CPU list, pool."""
    allowed: dict[int, str] = {}
    """Process id to the CPUs that it may use."""
    elsewhere: list[str] = []
    """Process id, CPU list, and where it runs instead."""


class MoveRow(Row, frozen=True, kw_only=True):
    """A node's pools with their tasks, how many cores shall go where, and what comes of it."""

    machine: str
    isolated: str = ""
    exclusive: int
    shared: int
    listed: str = "-1"
    before: Pools
    after: Pools = {}
    moves: list[int] = []
    """Process ids, in the order in which they are moved."""


Some = TypeVar("Some", bound=Row)


def read(table: str, kind: type[Some]) -> list[Some]:
    """The rows of one table, in order."""
    return msgspec.convert(yaml.safe_load((FOLDER / f"{table}.yaml").read_text()), list[kind])  # type: ignore[valid-type]
