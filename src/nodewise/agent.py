"""The contract of an agent: somebody who judges nodes for a pod. Packages outside this one import this file.

An agent says which node and pod fields it reads and which other objects it needs; its `State` turns objects and
samples into its slot of the `Snapshot`, the same way online and offline; its `Agent` answers requests from that slot
by look-up. Neither does I/O nor asks what time it is. Shapes: everything per node is an array by node number
(`NodeIndex`), everything in a verdict is by candidate, in the order of the request; `candidates.numbers` leads from
one to the other. What a slot is made from is in `state.py`, and what an agent has besides that keeps books of who
holds what in `binder.py`; all of `state.py` may be imported from here.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.clock import Clock
from nodewise.kube.api import Api
from nodewise.kube.events import Recorder
from nodewise.kube.resources import Resource
from nodewise.kube.store import Store
from nodewise.metrics.column import States, Values
from nodewise.metrics.index import Names, NodeIndex
from nodewise.metrics.series import State as ValueState
from nodewise.metrics.source import Want
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.state import (
    ClusterState,
    Counting,
    Forgetting,
    Inputs,
    ObjectKey,
    Remembering,
    Snapshot,
    StateBuilder,
    Watched,
)

__all__ = [
    "COMPARISONS",
    "Agent",
    "AgentKind",
    "Anew",
    "ClusterState",
    "Concerned",
    "Controller",
    "Counting",
    "Details",
    "Evidence",
    "Following",
    "Forgetting",
    "Handle",
    "Inputs",
    "Joined",
    "Judge",
    "Ledgers",
    "Named",
    "Names",
    "NodeIndex",
    "Numbered",
    "ObjectKey",
    "Rank",
    "Reason",
    "Remembering",
    "Requested",
    "Resource",
    "Scores",
    "Showing",
    "Snapshot",
    "StateBuilder",
    "Tally",
    "ValueState",
    "Verdict",
    "Victims",
    "Want",
    "Watched",
]

MAX_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (k8s.io/kube-scheduler v0.36 extender/v1); it does not clamp."""

COMPARISONS: Final[Mapping[str, np.ufunc]] = {
    "LessThan": np.less,
    "GreaterThan": np.greater,
    "Equals": np.equal,
}
"""The operators of evidence: a rule is broken where `value operator target` is true. Comparisons are exact."""

Joined = Literal["any", "all"]
"""How many of its rules a node must break to be rejected."""

Victims = Mapping[str, frozenset[str]]
"""By node name, the uids of the pods that would be evicted there."""


class Reason(Protocol):
    """Why a node is rejected, as a value; its words are made when somebody asks."""

    @property
    def is_failure(self) -> bool:
        """Whether nobody could answer, so that every node is rejected: not the nodes' fault."""
        ...

    def text(self) -> str:
        """What kube-scheduler shows on the pod. Few distinct texts: events group the nodes by it."""
        ...

    def remedy(self) -> str:
        """What somebody can do about it, for `explain`; empty where the values and targets say it all."""
        ...


class Evidence(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One rule's measured values, by candidate: what the decision rests on."""

    metric: str
    operator: str
    target: int | None
    """Nano-units; None where the rule only ranks."""
    values: Values
    """Nano-units; meaningless where the state is not FRESH or STALE."""
    states: States
    """`ValueState` of each."""
    ages_s: NDArray[np.float64]
    """NaN where unknown."""
    rejects_missing: bool = False
    """Whether the rule rejects a node that has no fresh value."""


class Details(Protocol):
    """What an agent knows of each candidate besides; words are made when somebody asks, long after the decision."""

    @property
    def nbytes(self) -> int:
        """What it costs to keep."""
        ...

    def text(self, candidate: int) -> str:
        """What the pod gets there, or what exactly is in its way; empty for nothing more to say."""
        ...

    def distances(self) -> NDArray[np.float64]:
        """By candidate, how far a rejected one is from passing: from 0, nearly, to 1."""
        ...


@runtime_checkable
class Numbered(Protocol):
    """What `Details` have besides that rest on numbers which people may want to see."""

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """The inner numbers of one candidate, as JSON takes them; a NaN is told as null."""
        ...


class Verdict(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What an agent says of each candidate."""

    codes: NDArray[np.int16]
    """By candidate: 0 passes, k is rejected for `reasons[k - 1]`."""
    reasons: tuple[Reason, ...]
    evidence: tuple[Evidence, ...] = ()
    joined: Joined | None = None
    """How the verdict follows from the evidence, so that `explain` can tell what would have changed it.

    None where more than the evidence decides.
    """
    details: Details | None = None


class Scores(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How much an agent likes each candidate."""

    points: NDArray[np.int64]
    """By candidate, whole numbers from 0 to `MAX_SCORE`."""
    evidence: tuple[Evidence, ...] = ()
    details: Details | None = None
    label: str = ""
    """Which of the agent's priorities this is; empty for an agent that has no names for them. Set by the chain."""
    weight: float = 1.0
    """How much it counts beside the others. Set by the chain."""


class Agent(Protocol):
    """Answers requests. None means that the agent has nothing to say about this pod: it passes untouched."""

    name: str

    def equivalence_key(self, pod: Any) -> Hashable:
        """What the answers depend on besides the snapshot: pods with equal questions get equal answers."""
        ...

    def filter(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Which candidates the pod may not go to. Without a slot, a pod that needs the agent is rejected."""
        ...

    def score(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Scores | None: ...

    def preempt(self, pod: Any, candidates: Names, snapshot: Snapshot, victims: Victims) -> Verdict | None:
        """Which candidates the agent would reject even with the victims gone."""
        ...


Judge = Callable[[Any, Names, Snapshot], Verdict | None]
"""As `Agent.filter`."""
Rank = Callable[[Any, Names, Snapshot], Scores | None]
"""As `Agent.score`."""


@runtime_checkable
class Named(Protocol):
    """What an `Agent` has besides whose judgements have names, by which kube-scheduler can ask for one of them.

    `/scheduler/predicates/<name>` and `/scheduler/priorities/<name>`. One without predicates does not filter: its
    `filter` and `preempt` are not asked. Where all agents are asked, each priority counts
    by itself, with a weight of its own, in the place of `score`.
    """

    predicates: Mapping[str, Judge]
    priorities: Mapping[str, Rank]


@runtime_checkable
class Showing(Protocol):
    """What an agent has besides `Agent` whose slot people may want to read: `GET /state/<name>`."""

    name: str

    def show(self, agent_state: Any, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """The slot as JSON, made in parts; `query` are the parameters of the request."""
        ...


class Tally:
    """A count that one hand moves and another reads."""

    def __init__(self) -> None:
        self.count = 0


class Ledgers(Protocol):
    """What is done to ledgers apart from binds. Kinds of `NodewiseError`: nothing is known of what was done."""

    async def drop(self, node: str, pod: ObjectKey, uid: str, seen: str) -> bool:
        """Take a pod's entry out, if it was planned on that version of the pod, unless the pod is on the node.

        The API server is asked about the pod, and the pod is changed first where a Binding may still be on its way.
        Whether the entry was to go.
        """
        ...

    async def prune(self, node: str, entries: Mapping[str, str]) -> None:
        """Take entries out that do not count any more; by pod uid, the version that each was planned on."""
        ...


class Anew(Protocol):
    """The API server, asked once more for what we hold."""

    async def read(self, name: str) -> Store[Any]:
        """A list of `nodes`, or of what is called so in `Watched`, apart from the store that is kept up to date."""
        ...

    def begin(self) -> None:
        """Fill all stores from new lists, soon, and compute the next snapshot from nothing."""
        ...


class Handle(NamedTuple):
    """What a controller may use of the world."""

    api: Api
    objects: Mapping[str, Store[Any]]
    """By the name in `Watched`."""
    nodes: Store[Any]
    recorder: Recorder
    clock: Clock
    meters: MetricsRegistry
    node_writes: Tally
    """Writes to nodes that kube-scheduler takes for an event."""
    namespace: str
    """Our own."""
    snapshot: Callable[[], Snapshot]
    """The newest."""
    anew: Anew
    ledgers: Ledgers | None
    """None where no agent binds."""


class Controller(Protocol):
    """An agent's hand on the API server: makes what the snapshot says true there."""

    def begin(self) -> None:
        """We lead from now on. What was known before may have been changed by another leader."""
        ...

    async def step(self, snapshot: Snapshot) -> None:
        """Write what differs from the snapshot. Called after each new snapshot, in the leader, one at a time.

        Errors are kinds of `NodewiseError`; the next step tries again.
        """
        ...


@runtime_checkable
class Following(Controller, Protocol):
    """A `Controller` that has work for every replica, whoever leads."""

    async def run(self) -> None:
        """Do it for ever, until cancelled."""
        ...


@runtime_checkable
class Concerned(Protocol):
    """What an `AgentKind` has besides whose watched objects do not tell whether it has anything to do."""

    def concerns(self, options: Any, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:
        """Whether these nodes or pods give it something to do, so that `decide` asks it without being told to."""
        ...


@runtime_checkable
class Requested(Protocol):
    """What an `AgentKind` has besides whose pods ask for a resource, so that no others need be sent to it."""

    def resources(self, options: Any) -> Mapping[str, bool]:
        """The resources' names; true for one that is there for this alone, and that no node need have."""
        ...


class AgentKind(Protocol):
    """An agent's folder as the rest of the program sees it: one row of the registry."""

    name: str
    summary: str
    options: type[msgspec.Struct]
    pod_fields: type[msgspec.Struct]
    """The fields of a Pod that the agent reads; merged with the other agents' into one type."""
    node_fields: type[msgspec.Struct]
    """The fields of a Node that it reads, likewise."""

    def watched(self, options: Any) -> Sequence[Watched]:
        """The objects that it needs besides nodes."""
        ...

    def state(self, options: Any, sync_period_s: float) -> StateBuilder: ...

    def agent(self, options: Any) -> Agent: ...

    def controller(self, options: Any, hands: Handle) -> Controller | None:
        """What acts on the API server; None for an agent that only answers.

        One that has a method `run` besides (`Following`) has work for every replica.
        """
        ...
