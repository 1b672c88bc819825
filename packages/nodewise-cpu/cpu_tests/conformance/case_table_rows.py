"""The rows of the tables in this folder: one struct for each table."""

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
    """The difference to CMK and its reason; empty if there is none."""
    error: list[str] = []
    """A part of the error; empty if there is none."""

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
    """A machine, the sizes of pools, and the cores in them."""

    machine: str
    isolated: str = ""
    exclusive: int
    shared: int
    modes: str = "packed/packed"
    listed: str = "-1"
    fast: str | None = None
    """The CPUs with a higher base frequency, if the node's label enables SST-BF."""
    preferences: dict[str, str] | None = None
    """Energy performance preference to cores, if the node's label enables SST-CP."""
    pools: Pools = {}
    warns: list[str] = []


class ClaimRow(CmkRow, frozen=True, kw_only=True):
    """The request of a task on a node, and its allocation."""

    state: Pools | None = None
    """None stands for the allocations of most cases."""
    held: dict[str, int] = {}
    """CPU list to the process that is on it."""
    pool: str
    cores: str = "1"
    """CMK_NUM_CORES."""
    socket: int | None = None
    gets: str = ""
    """CPU lists separated by blanks, in the order of the task's variables."""
    mask: str = ""
    shared: str | None = None
    infra: str | None = None


class SweepRow(CmkRow, frozen=True, kw_only=True):
    """A state, the existing processes, and the tasks that have ended."""

    state: dict[str, dict[str, list[int | str]]]
    """Pool, CPU list, process ids."""
    alive: list[int]
    reclaims: list[str]
    """Process id, CPU list, pool."""
    allowed: dict[int, str] = {}
    """Process id to the CPUs that it may use."""
    elsewhere: list[str] = []
    """Process id, CPU list, and the CPUs that the process uses instead."""


class MoveRow(CmkRow, frozen=True, kw_only=True):
    """A node's pools with their tasks, the sizes of new pools, and the result."""

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
    """A cluster, a command, and its requests to the API server. A number may have several rows."""

    version: str = "v1.18.3"
    nodes: list[str] = []
    labelled: list[str] = []
    """Further nodes, which have pools."""
    cordoned: list[str] = []
    """Further nodes, which are cordoned."""
    taints: list[dict[str, str]] = []
    capacity: dict[str, str] = {}
    tasks: dict[str, Literal["running", "over"]] = {}
    """By pool, the state of the task on its first list."""
    there: list[str] = []
    """Existing objects: plural and name."""
    account: str = "cmk-agent"
    """The existing service account, if any."""
    command: list[str]
    pods: dict[str, list[str]] = {}
    """By name, the phase at each request for pods; the last one stays."""
    refuses: tuple[str, str, int, str] | None = None
    """Verb, part of a path, status, message and reason."""
    again: bool = False
    """Whether the command is repeated, which succeeds."""
    makes: list[str] | None = None
    removes: list[str] | None = None
    gone: list[str] = []
    runs: dict[str, str] = {}
    """Container to its shell command."""
    annotated: list[str] = []
    """Init containers in an annotation."""
    has: dict[str, dict[str, Any]] = {}
    looks: int = 0
    """The least number of requests for pods."""
    prints: list[str] = []
    keeps_capacity: bool = False
    leaves_taints: list[dict[str, str]] = []


class VersionRow(CmkRow, frozen=True, kw_only=True):
    """The version that an API server reports, and one that is equal or older."""

    text: str
    same: str = ""
    older: str = ""


class NameRow(CmkRow, frozen=True, kw_only=True):
    """A node, and the name of its reports."""

    node: str
    name: str = ""


class InitRow(CmkRow, frozen=True, kw_only=True):
    """The existing pools of a node with tasks, and the requested ones."""

    place: str
    """`configmap` or `directory`."""
    before: list[int]
    """The sizes of the pools exclusive and shared; the machine is T8."""
    held: dict[str, int] = {}
    """CPU list to the process that is on it."""
    asked: list[int]


class DiscoverRow(CmkRow, frozen=True, kw_only=True):
    """An API server and a node's pools, and the advertisement of the node."""

    version: str = "v1.36.3"
    pools: Pools
    options: list[str] = []
    taints: list[dict[str, str]] | None = None
    """Before 1.7 they are in an annotation."""
    answers: int = 0
    """The error response to the patch of the node's status."""
    capacity: dict[str, str] = {}
    tainted: list[dict[str, str]] | None = None
    patches: list[str] = []
    """The endings of patched paths, in order."""


class PublishRow(CmkRow, frozen=True, kw_only=True):
    """The API server's response to a report, and the result."""

    exists: bool = False
    answers: int = 0
    level: str = ""
    """Parts of the log line."""


class WebhookRow(CmkRow, frozen=True, kw_only=True):
    """A pod, and its content after the mutation; without `mounted` it is not mutated."""

    pod: dict[str, Any]
    mutations: str = "own"
    """`older`: the mutations of CMK."""
    annotations: dict[str, str] = {}
    serviceAccountName: str = ""  # noqa: N815 - as a pod has it
    volumes: list[str] = []
    env: dict[str, dict[str, str]] = {}
    """By container; containers that are not named have none."""
    mounted: list[str] = []
    """The containers that get mounts."""


class WebhookHttpRow(CmkRow, frozen=True, kw_only=True):
    """A request, and the status of the response, whose text contains `error`."""

    method: str = "POST"
    path: str = "/mutate"
    type: str = "application/json"
    body: dict[str, Any] | None = None
    """The review with its apiVersion. None without a `text`: the review of a pod that requests cores."""
    text: str | None = None
    pad: int = 0
    """The size of the body in bytes."""
    status: int


class WordsRow(CmkRow, frozen=True, kw_only=True):
    """A command line of `isolate`, and the arguments of the command."""

    line: str
    runs: list[str] = []
    pins: bool = True
    """Whether the command may run on its CPUs only."""


class StoryRow(CmkRow, frozen=True, kw_only=True):
    """A case that a test function describes."""

    story: str


class MovedRow(CmkRow, frozen=True, kw_only=True):
    """The pools of a node with two CPUs, its process trees by letter, and their CPUs after a command."""

    machine: str = "B2"
    isolated: str = ""
    exclusive: int
    shared: int = 0
    before: Pools
    """The process trees of a list follow a colon."""
    strays: dict[str, str] = {}
    """Process trees outside of pools, and their CPUs."""
    after: Pools = {}
    runs: dict[str, str] = {}
    """Process tree to the CPUs of all its threads."""
    capacity: dict[str, str] = {}


class ContainerRow(CmkRow, frozen=True, kw_only=True):
    """A command in a container that does not know the path of the host's `/proc`."""

    command: str
    code: int


class ExpectedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of `cmk`, the exit code, and parts of stderr."""

    words: list[str]
    code: int
    says: list[str]


class ArgumentsRow(CmkRow, frozen=True, kw_only=True):
    """Command lines."""

    runs: list[ExpectedRun]


Some = TypeVar("Some", bound=CmkRow)


def read(table: str, kind: type[Some]) -> list[Some]:
    """The rows of a table, in order."""
    return msgspec.convert(yaml.load((FOLDER / f"{table}.yaml").read_text(), yaml.CSafeLoader), list[kind])  # type: ignore[valid-type]
