"""The tables of this folder, read: one struct for the rows of each."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

FOLDER = Path(__file__).parent
Pools = dict[str, dict[int, str]]
"""Pool, socket, and the CPU lists with blanks between; a socket without lists is left out."""


class CmkRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    number: int
    differs: str = ""
    """How nodewise departs from the older system, and why; empty: it does not."""
    error: list[str] = []
    """What the error says; empty: there is none."""

    @property
    def id(self) -> str:
        return str(self.number)


class ListRow(CmkRow, frozen=True, kw_only=True):
    """A list of CPUs."""

    text: str


class MaskRow(CmkRow, frozen=True, kw_only=True):
    """CPUs, and the mask that workloads are given."""

    cpus: list[int]
    mask: str


class LineRow(CmkRow, frozen=True, kw_only=True):
    """A kernel's command line, and the CPUs that it isolates."""

    line: str
    isolated: str
    warns: bool = False


class PoolsRow(CmkRow, frozen=True, kw_only=True):
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


class ClaimRow(CmkRow, frozen=True, kw_only=True):
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


class SweepRow(CmkRow, frozen=True, kw_only=True):
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


class MoveRow(CmkRow, frozen=True, kw_only=True):
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


class ClusterRow(CmkRow, frozen=True, kw_only=True):
    """A cluster as it is, a command, and what it asks of the API server. A number may have several rows."""

    version: str = "v1.18.3"
    nodes: list[str] = []
    labelled: list[str] = []
    """Further nodes, which have pools already."""
    cordoned: list[str] = []
    """Further nodes, on which nothing may be placed."""
    taints: list[dict[str, str]] = []
    capacity: dict[str, str] = {}
    tasks: dict[str, Literal["running", "over"]] = {}
    """By pool, what became of the task on its first list."""
    there: list[str] = []
    """Objects that are there already: plural and name."""
    account: str = "cmk-agent"
    """The service account that is there, if any."""
    command: list[str]
    pods: dict[str, list[str]] = {}
    """By name, the phase at each look; the last one stays."""
    refuses: tuple[str, str, int, str] | None = None
    """Verb, part of a path, status, message and reason."""
    again: bool = False
    """Whether it is run a second time, which succeeds."""
    makes: list[str] | None = None
    removes: list[str] | None = None
    gone: list[str] = []
    runs: dict[str, str] = {}
    """Container to what a shell is given."""
    annotated: list[str] = []
    """Init containers that stand in an annotation."""
    has: dict[str, dict[str, Any]] = {}
    looks: int = 0
    """So often at least pods are looked at."""
    prints: list[str] = []
    keeps_capacity: bool = False
    leaves_taints: list[dict[str, str]] = []


class VersionRow(CmkRow, frozen=True, kw_only=True):
    """What an API server says of its version, and one that is the same, or older."""

    text: str
    same: str = ""
    older: str = ""


class NameRow(CmkRow, frozen=True, kw_only=True):
    """A node, and the name of its reports."""

    node: str
    name: str = ""


class InitRow(CmkRow, frozen=True, kw_only=True):
    """Pools that a node has, with tasks, and others that it is to get."""

    place: str
    """`configmap` or `directory`."""
    before: list[int]
    """How many cores were exclusive and shared; the machine is T8."""
    held: dict[str, int] = {}
    """CPU list to the process that is on it."""
    asked: list[int]


class DiscoverRow(CmkRow, frozen=True, kw_only=True):
    """An API server and a node's pools, and what the node says of itself afterwards."""

    version: str = "v1.36.3"
    pools: Pools
    options: list[str] = []
    taints: list[dict[str, str]] | None = None
    """Below 1.7 they stand in an annotation."""
    answers: int = 0
    """To the patch of the node's status, where it is refused."""
    capacity: dict[str, str] = {}
    tainted: list[dict[str, str]] | None = None
    patches: list[str] = []
    """Ends of the paths that are patched, in order."""


class PublishRow(CmkRow, frozen=True, kw_only=True):
    """What the API server says to a report, and what becomes of it."""

    exists: bool = False
    answers: int = 0
    level: str = ""
    """Of the log line."""


class WebhookRow(CmkRow, frozen=True, kw_only=True):
    """A pod, and what it has when the webhook is through with it; without `mounted` it is left alone."""

    pod: dict[str, Any]
    mutations: str = "own"
    """`older`: those that the older system came with."""
    annotations: dict[str, str] = {}
    serviceAccountName: str = ""  # noqa: N815 - as a pod has it
    volumes: list[str] = []
    env: dict[str, dict[str, str]] = {}
    """By container; of those that are not named there is none."""
    mounted: list[str] = []
    """The containers that get mounts."""


class WebhookHttpRow(CmkRow, frozen=True, kw_only=True):
    """A request, and the status of its answer; `error` is in the answer's text."""

    method: str = "POST"
    path: str = "/mutate"
    type: str = "application/json"
    body: dict[str, Any] | None = None
    """With its apiVersion. None, and no `text`: the review of a pod that asks for cores."""
    text: str | None = None
    pad: int = 0
    """The bytes that the body is long."""
    status: int


class WordsRow(CmkRow, frozen=True, kw_only=True):
    """A command line of `isolate`, and the words that the command is started with."""

    line: str
    runs: list[str] = []
    pins: bool = True
    """Whether the command may run on its CPUs only."""


class StoryRow(CmkRow, frozen=True, kw_only=True):
    """A case that a test tells."""

    story: str


class MovedRow(CmkRow, frozen=True, kw_only=True):
    """Pools of a node of two CPUs with families of processes, by letter, and where they are after a command."""

    machine: str = "B2"
    isolated: str = ""
    exclusive: int
    shared: int = 0
    before: Pools
    """A list's families stand after a colon."""
    strays: dict[str, str] = {}
    """Families of no pool, and their CPUs."""
    after: Pools = {}
    runs: dict[str, str] = {}
    """Family to the CPUs of every thread of it."""
    capacity: dict[str, str] = {}


class ContainerRow(CmkRow, frozen=True, kw_only=True):
    """A command in a container that was not told where the host's `/proc` is."""

    command: str
    code: int


class ExpectedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Words after `cmk`, the exit code, and what stands on stderr."""

    words: list[str]
    code: int
    says: list[str]


class ArgumentsRow(CmkRow, frozen=True, kw_only=True):
    """Command lines."""

    runs: list[ExpectedRun]


Some = TypeVar("Some", bound=CmkRow)


def read(table: str, kind: type[Some]) -> list[Some]:
    """The rows of one table, in order."""
    return msgspec.convert(yaml.safe_load((FOLDER / f"{table}.yaml").read_text()), list[kind])  # type: ignore[valid-type]
