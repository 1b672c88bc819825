"""A recording answered once more: the same worlds, the same requests, at the same times, by the real agents.

An agent's state may carry memory from world to world, so each world is given to it, in order and once, as
`extender.snapshot_cache` did; a request meets the snapshot that it met then.
Nothing here opens a file or reads the clock.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import cooperative_scheduling
from nodewise.agent import AgentKind, ClusterState, NodeIndex, ObjectKey, Snapshot
from nodewise.errors import BadInput
from nodewise.extender import recording_file
from nodewise.extender.agent_states import AgentStates
from nodewise.extender.recording_deltas import ClusterStateRebuilder
from nodewise.extender.recording_file import Record, RequestEntry
from nodewise.extender.request_handler import RequestHandler
from nodewise.extender.score_weights import ChainOptions
from nodewise.kube.field_merge import merge
from nodewise.simulate import response_differences
from nodewise.simulate.response_differences import KEPT, Difference, Outcome
from nodewise.state import NODES

_VIEWS: Final = 8
"""snapshots that are kept. A request is answered within one step, so it asks the newest, or the one before."""


class Cast(NamedTuple):
    """Who answers."""

    kinds: Sequence[AgentKind]
    options: Mapping[str, Any]
    """By the agent's name."""
    sync_period_s: float
    objects: Mapping[str, Mapping[ObjectKey, Any]] = {}
    """By the name in `Watched`: objects that take the place of the recorded ones, or stand beside them."""
    chain: ChainOptions = ChainOptions()


class PodChange(msgspec.Struct):
    """How one pod would have fared otherwise, over all its requests that were answered otherwise."""

    requests: int = 0
    kept: int = 0
    """Nodes that were rejected and now are kept, over all requests."""
    rejected: int = 0
    """Nodes that were kept and now are rejected."""
    scored: int = 0
    """Nodes with another score."""

    def add(self, difference: Difference) -> None:
        self.requests += 1
        for change in difference.nodes:
            self.kept += change.replayed == KEPT
            self.rejected += change.recorded == KEPT
            self.scored += isinstance(change.recorded, int) or isinstance(change.replayed, int)


class Tally(msgspec.Struct):
    """What came of a replay."""

    worlds: int = 0
    same: int = 0
    different: int = 0
    unanswered: int = 0
    """Requests whose snapshot the recording does not have, or whose path no agent of ours serves."""
    failed: list[str] = []
    """Defects of agents, for which there was no slot or no snapshot, each once."""
    lost: recording_file.GapEntry = recording_file.GapEntry()
    """What the recorder could not write as fast as it came."""
    end: str = "cut off"
    """`stopped` or `full` where the recorder wrote an end."""
    pods: dict[str, PodChange] = {}
    """Those with a difference, by `namespace/name`."""

    @property
    def requests(self) -> int:
        return self.same + self.different + self.unanswered


class _Altering:
    """Puts objects in the place of recorded ones."""

    def __init__(self, others: Mapping[str, Mapping[ObjectKey, Any]]) -> None:
        self._others = {name: objects for name, objects in others.items() if objects}

    def altered(self, cluster_state: ClusterState) -> ClusterState:
        objects = {
            name: {**recorded, **self._others[name]} if name in self._others else recorded
            for name, recorded in cluster_state.objects.items()
        }
        changes = cluster_state.changes and {
            name: {key: change for key, change in changed.items() if key not in self._others.get(name, ())}
            for name, changed in cluster_state.changes.items()
        }
        return msgspec.structs.replace(cluster_state, objects=objects, changes=changes)


class Player:
    """Takes the records of a recording in order, from the one after the header."""

    def __init__(self, cast: Cast) -> None:
        watched = {
            watch.name: watch.type for kind in cast.kinds for watch in kind.watched(cast.options[kind.name])
        }
        self.tally = Tally()
        self._cast = cast
        self._states = {
            kind.name: kind.state(cast.options[kind.name], cast.sync_period_s) for kind in cast.kinds
        }
        self._slots = AgentStates(self._states, cast.sync_period_s)
        self._altering = _Altering(cast.objects)
        self._request_handler = RequestHandler(cast.kinds, cast.options, self._states, cast.chain)
        node_type = merge("Node", *(kind.node_fields for kind in cast.kinds))
        self._worlds = ClusterStateRebuilder({**watched, NODES: node_type})
        self._snapshots = {0: Snapshot(NodeIndex(), {}, 0.0)}
        self._wanted: set[str] = set()
        self._asked: set[str] = set()

    def play(self, record: Record) -> Difference | None:
        """The next record; the difference, if it is a request that is answered otherwise than it was.

        `BadInput` for a record that does not follow those before it.
        """
        entry = record.entry
        match entry:
            case RequestEntry():
                return self._exchange(entry, *record.blobs)
            case recording_file.MemoryEntry():
                self._recall(entry.agent, *record.blobs)
            case recording_file.GapEntry():
                lost = self.tally.lost
                self.tally.lost = recording_file.GapEntry(
                    requests=lost.requests + entry.requests, worlds=lost.worlds + entry.worlds
                )
            case recording_file.EndEntry():
                self.tally.end = entry.why
            case _:
                cluster_state = self._worlds.take(record)
                if cluster_state is not None and isinstance(entry, recording_file.SnapshotEntry):
                    self._see(cluster_state, entry.generation)
        return None

    def unrecorded(self) -> list[str]:
        """Metrics that policies name and that the recording never asked for: of another policy than the recorded."""
        return sorted(self._wanted - self._asked)

    def _recall(self, agent: str, kept: bytes) -> None:
        state = self._states.get(agent)
        if state is not None and state.memory_scope != "none":
            with contextlib.suppress(BadInput):  # then as now: it begins anew
                state.recall(kept)

    def _see(self, recorded: ClusterState, generation: int) -> None:
        """Make the snapshot of a world, in the steps of `WorldKeeper.publish`."""
        self.tally.worlds += 1
        try:
            snapshot = self._view(self._altering.altered(recorded), generation)
        except Exception as error:  # noqa: BLE001 - then as now: such a world gets no snapshot, and the old one stays
            self._note(error)
            return
        self._snapshots[generation] = snapshot
        while len(self._snapshots) > _VIEWS:
            del self._snapshots[min(self._snapshots)]

    def _note(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.tally.failed += [message] if message not in self.tally.failed else []

    def _view(self, cluster_state: ClusterState, generation: int) -> Snapshot:
        for state in self._states.values():
            self._wanted |= {
                metric_request.key for metric_request in state.metric_requests(cluster_state.objects)
            }
        self._asked |= {
            metric for metric in self._wanted - self._asked if cluster_state.metrics.was_asked(metric)
        }
        for name in self._slots.due(cluster_state):
            try:
                cooperative_scheduling.run_at_once(self._slots.build(name, cluster_state))
            except Exception as error:  # noqa: BLE001 - as recorded: the agent has no state, the others have
                self._note(error)
        return Snapshot(cluster_state.nodes, self._slots.newest(), cluster_state.now, generation)

    def _exchange(self, exchange: RequestEntry, body: bytes, answer: bytes) -> Difference | None:
        snapshot = self._snapshots.get(exchange.generation)
        verb = self._request_handler.verbs.get(exchange.path)
        if snapshot is None or verb is None:
            self.tally.unanswered += 1
            return None
        pod, replayed = self._answered(exchange, body, snapshot)
        recorded = Outcome(answer, exchange.error)
        if replayed == recorded:
            self.tally.same += 1
            return None
        nodes = response_differences.changes(verb, recorded, replayed)
        text = "" if nodes else response_differences.parting(recorded, replayed)
        difference = Difference(exchange.at, exchange.path, pod, exchange.generation, nodes, text)
        self.tally.different += 1
        self.tally.pods.setdefault(pod, PodChange()).add(difference)
        return difference

    def _answered(self, exchange: RequestEntry, body: bytes, snapshot: Snapshot) -> tuple[str, Outcome]:
        """The pod, and its answer; a defect is an answer as well, and recorded as one."""
        try:
            answer = self._request_handler.answer(exchange.path, body, snapshot, exchange.at)
        except Exception as error:  # noqa: BLE001
            return "", Outcome(str(error).encode(), type(error).__name__)
        pod = answer.decision.pod
        return f"{pod.namespace}/{pod.name}", Outcome(answer.body)
