"""The plugin interfaces of an agent. Packages outside nodewise import this module only.

An agent is an `AgentKind` in a folder of its own. Its `StateBuilder` computes the agent's state when nodes, objects or
metrics change; its plugin answers requests from that state by look-up. Neither does I/O or reads the clock. Values per
node are arrays by node number (`NodeIndex`), values in a verdict are by candidate in the order of the request, and
`candidates.numbers` maps one to the other. Interfaces for nodewise's own agents are in `bind_plugin_interface.py`
(allocations) and `controller_interface.py` (writes to the API server).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar

import msgspec

from nodewise.agent.state import ClusterState, Inputs, MemoryScope, ObjectKey, Snapshot, StateBuilder, Watched
from nodewise.agent.verdicts import (
    COMPARISONS,
    MAX_SCORE,
    Details,
    Evidence,
    Joined,
    PolicyRejections,
    Reason,
    Scores,
    Verdict,
    is_unresolvable,
)
from nodewise.kube.resource_kinds import Resource
from nodewise.kube.struct_type_merge import ReadKeys
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_index import Names, NodeIndex
from nodewise.metrics.series import ValueState

__all__ = [
    "COMPARISONS",
    "MAX_SCORE",
    "AgentKind",
    "ClusterState",
    "DeferredType",
    "Details",
    "Evidence",
    "FilterFunction",
    "FilterPlugin",
    "Inputs",
    "Joined",
    "LoadScoring",
    "MemoryScope",
    "MetricRequest",
    "Names",
    "NodeIndex",
    "ObjectKey",
    "Plugin",
    "PolicyRejections",
    "ReadKeys",
    "Reason",
    "Resource",
    "ScoreFunction",
    "ScorePlugin",
    "Scores",
    "Snapshot",
    "StateBuilder",
    "StateExporter",
    "ValueState",
    "Verdict",
    "Victims",
    "Watched",
    "is_unresolvable",
]

PodT = TypeVar("PodT")
"""The fields of a pod that an agent reads."""
StateT = TypeVar("StateT")

LoadScoring = Literal["none", "aspect", "whole"]
"""`whole`: a score is about the whole load of a node, so one such agent is usually enough. `aspect`: it is about one
aspect, and complements another agent."""

Victims = Mapping[str, frozenset[str]]
"""By node name, the uids of the pods that would be evicted there."""
FilterFunction = Callable[[Any, Names, Snapshot], Verdict | None]
"""As `FilterPlugin.filter`."""
ScoreFunction = Callable[[Any, Names, Snapshot], Scores | None]
"""As `ScorePlugin.score`."""


class Plugin(ABC, Generic[PodT, StateT]):
    """Answers requests. An agent's plugin is a `FilterPlugin`, a `ScorePlugin` or both."""

    name: str

    def equivalence_key(self, pod: PodT, snapshot: Snapshot) -> Hashable:  # noqa: ARG002
        """What the results depend on in addition to the snapshot: pods with equal keys get equal results.

        None for a pod that the agent does not filter. Such pods are requeued only if nodewise rejected them before. A
        third-party agent is not called for them at all, and its failures do not affect them. In a snapshot without a
        state of the agent, the key is what the pod alone shows.
        """
        return ()

    def equivalence_version(self, snapshot: Snapshot) -> object:  # noqa: ARG002
        """What keys depend on in addition to the pod: they are computed again when this is another object.

        None if keys depend on the pod only.
        """
        return None

    def namespace_equivalence_version(self, snapshot: Snapshot, namespace: str) -> object:  # noqa: ARG002
        """The same for pods of one namespace: of another version only keys of pods of these namespaces are computed."""
        return self.equivalence_version(snapshot)

    def state(self, snapshot: Snapshot) -> StateT | None:
        """The agent's state in the snapshot; None before it was computed for the first time."""
        return snapshot.agent_states.get(self.name)


class FilterPlugin(Plugin[PodT, StateT]):
    """Rejects nodes."""

    filter_enabled: bool = True
    """False if the agent's options disable it."""
    predicates: Mapping[str, FilterFunction] = {}
    """Functions that `/scheduler/predicates/<name>` calls."""
    reason_marks: tuple[str, ...] = ()
    """Texts that mark the agent's reasons in a pod's condition; without any, its name between spaces."""

    @abstractmethod
    def equivalence_key(self, pod: PodT, snapshot: Snapshot) -> Hashable: ...

    @abstractmethod
    def filter(self, pod: PodT, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Which candidates the pod may not go to; None if it does not concern the agent.

        Fails closed: a pod that needs the agent is rejected while there is no state.
        """

    def preempt(
        self,
        pod: PodT,
        candidates: Names,
        snapshot: Snapshot,
        victims: Victims,  # noqa: ARG002
    ) -> Verdict | None:
        """Which candidates the agent would reject even without the victims."""
        return self.filter(pod, candidates, snapshot)


class ScorePlugin(Plugin[PodT, StateT]):
    """Scores nodes."""

    score_enabled: bool = True
    """False if the agent's options disable it."""
    priorities: Mapping[str, ScoreFunction] = {}
    """Functions that `/scheduler/priorities/<name>` calls. If there are any, they replace `score` in
    requests to all agents, each with its own weight."""

    @abstractmethod
    def score(self, pod: PodT, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """The scores of the candidates; None if the pod does not concern the agent."""


class StateExporter(Plugin[PodT, StateT]):
    """Shows its state at `GET /state/<name>`."""

    @abstractmethod
    def export(self, state: StateT, query: Mapping[str, str]) -> Generator[None, None, bytes]:
        """The state as JSON, in parts; `query` holds the parameters of the request."""


class DeferredType:
    """A struct type of a class attribute, imported when it is read: commands declare the options of all agents."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, _kind: object, _owner: type) -> type[msgspec.Struct]:
        struct: type[msgspec.Struct] = getattr(import_module(self._module), self._name)
        return struct


class AgentKind(ABC):
    """An agent as the rest of the program sees it: `KIND` of its folder, or of its package's entry point."""

    name: str
    summary: str
    options: type[msgspec.Struct]
    pod_fields: type[msgspec.Struct]
    """The fields of a Pod that the agent reads; merged with those of other agents into one type."""
    node_fields: type[msgspec.Struct]
    """The fields of a Node that it reads, likewise."""

    load_scoring: LoadScoring = "none"
    """Whether it scores nodes by their load, for the checks of `nodewise doctor`."""
    needs_metrics: bool = False
    """Whether it has no scores without a source of metrics."""
    keeps_memory: bool = False
    """Whether what its state builder learns is stored, which needs the rights of deploy/memory.yaml."""
    entry_weight: int | None = None
    """The weight that `configure` gives an extender entry of this agent alone; None for the default of all entries."""

    def watched(self, options: Any) -> Sequence[Watched]:  # noqa: ARG002
        """The objects that the agent needs in addition to nodes. Without any, it also works without a cluster."""
        return ()

    def resources(self, options: Any) -> Mapping[str, bool]:  # noqa: ARG002
        """The resources that the agent's pods request, so that kube-scheduler sends no others.

        True for a resource that exists for this purpose only and that no node needs to have.
        """
        return {}

    def concerns(self, options: Any, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether `decide` calls the agent for these nodes and pods by default, without any watched object."""
        return False

    @abstractmethod
    def state(self, options: Any, sync_period_s: float) -> StateBuilder[Any]: ...

    @abstractmethod
    def agent(self, options: Any) -> Plugin[Any, Any]: ...
