"""Replay of a recording at the recorded times, and comparison of the responses with the recorded ones.

An agent's state may keep memory between cluster states, so it gets each one, in order and once, as in
`engine.snapshot_cache`; a request is answered from the snapshot of the same generation. Different responses are
compared node by node. The module opens no files and does not read the clock.
"""

import contextlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import AgentKind, ClusterState, NodeIndex, ObjectKey, Snapshot
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError
from nodewise.engine import recording_file
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.cluster_state_changes import AgentStates
from nodewise.engine.decision import Verb
from nodewise.engine.recording_file import ClusterStateRebuilder, Record, RequestEntry
from nodewise.extender.routes import RequestHandler
from nodewise.kube.struct_type_merge import merge
from nodewise.scheduling_model import extender_client
from nodewise.scheduling_model.extender_client import Filtered, HostScore, Preempted

KEPT: Final = "kept"
_REJECTED: Final = "rejected"
_AROUND_BYTES: Final = 40

NodeResult = str | int | None
"""Result for a node in a response: `kept`, the reason of its rejection, or its score; None if it is not named."""


class ExtenderResponse(NamedTuple):
    """A response: its body; for an error, the error class and the message as body."""

    body: bytes
    error: str = ""


class NodeChange(NamedTuple):
    """One node with different results in the two responses."""

    node: str
    recorded: NodeResult
    replayed: NodeResult


class Difference(msgspec.Struct, frozen=True):
    """A request with two different responses."""

    at: float
    """Seconds since 1970."""
    path: str
    pod: str
    """`namespace/name`; empty if the pod could not be decoded."""
    snapshot: int
    """Generation of the snapshot."""
    nodes: tuple[NodeChange, ...]
    text: str
    """Description of the first different bytes, if all node results are equal."""


def results_by_node(verb: Verb, body: bytes) -> dict[str, NodeResult]:
    """Results by node. Unavailable if the body is no response to this verb."""
    if verb == "prioritize":
        scores = extender_client.decode(body, list[HostScore])
        return {host_score.host: host_score.score for host_score in scores}
    if verb == "preempt":
        return dict.fromkeys(extender_client.decode(body, Preempted).node_name_to_meta_victims or (), KEPT)
    answer = extender_client.decode(body, Filtered)
    whole = answer.nodes.items or [] if answer.nodes else []
    kept = [str(node["metadata"]["name"]) for node in whole] + list(answer.node_names or ())
    return {**dict.fromkeys(kept, KEPT), **_rejected_nodes(answer)}


def _rejected_nodes(answer: Filtered) -> dict[str, str]:
    return {**(answer.failed_nodes or {}), **(answer.failed_and_unresolvable_nodes or {})}


def are_same(verb: Verb, recorded: ExtenderResponse, replayed: ExtenderResponse) -> bool:
    """Whether two responses are equal byte by byte.

    The recorded response of an older version, which has all rejected nodes in `FailedNodes`, is also the same if only
    that differs.
    """
    if recorded == replayed:
        return True
    if verb != "filter" or recorded.error or replayed.error:
        return False
    try:
        before, after = (extender_client.decode(each.body, Filtered) for each in (recorded, replayed))
    except (NodewiseError, *UNREADABLE):
        return False
    if before.failed_and_unresolvable_nodes is not None:
        return False
    in_one_map = msgspec.structs.replace(
        after, failed_nodes=_rejected_nodes(after), failed_and_unresolvable_nodes=None
    )
    return after.failed_nodes is not None and before == in_one_map


def changes(verb: Verb, recorded: ExtenderResponse, replayed: ExtenderResponse) -> tuple[NodeChange, ...]:
    """The nodes with different results; empty if one of the responses is an error."""
    if recorded.error or replayed.error:
        return ()
    try:
        before, after = results_by_node(verb, recorded.body), results_by_node(verb, replayed.body)
    except (NodewiseError, LookupError, TypeError, *UNREADABLE):
        return ()
    absent: NodeResult = _REJECTED if verb == "preempt" else None
    every = dict.fromkeys([*before, *after])
    pairs = (NodeChange(node, before.get(node, absent), after.get(node, absent)) for node in every)
    return tuple(change for change in pairs if change.recorded != change.replayed)


def first_difference(recorded: ExtenderResponse, replayed: ExtenderResponse) -> str:
    """Describe the first different bytes of two responses."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(recorded.body, replayed.body, strict=False))
    )
    start = max(same - _AROUND_BYTES // 2, 0)
    excerpts = [
        f"{response.error} {response.body[start : start + _AROUND_BYTES].decode(errors='replace')!r}".lstrip()
        for response in (recorded, replayed)
    ]
    return f"from byte {same} on: {' -> '.join(excerpts)}"


_MAX_SNAPSHOTS: Final = 8
"""Retained snapshots. A request is answered within one step, from the newest or the previous snapshot."""


class ReplayAgents(NamedTuple):
    """The agents that answer, with their options."""

    kinds: Sequence[AgentKind]
    options: Mapping[str, Any]
    """Options by agent name."""
    sync_period_s: float
    objects: Mapping[str, Mapping[ObjectKey, Any]] = {}
    """By the name in `Watched`: objects that replace recorded ones or are added to them."""
    chain: ChainOptions = ChainOptions()


class PodChange(msgspec.Struct):
    """Changes for one pod, summed over all its requests with a different response."""

    requests: int = 0
    kept: int = 0
    """Nodes that were rejected and are now kept."""
    rejected: int = 0
    """Nodes that were kept and are now rejected."""
    scored: int = 0
    """Nodes with a different score."""

    def add(self, difference: Difference) -> None:
        self.requests += 1
        for change in difference.nodes:
            self.kept += change.replayed == KEPT
            self.rejected += change.recorded == KEPT
            self.scored += isinstance(change.recorded, int) or isinstance(change.replayed, int)


class Tally(msgspec.Struct):
    """Statistics of a replay."""

    cluster_states: int = 0
    same: int = 0
    different: int = 0
    unanswered: int = 0
    """Requests whose snapshot is not in the recording, or whose path is unknown."""
    failed: list[str] = []
    """Distinct exceptions of agents; each left an agent without state or prevented a snapshot."""
    lost: recording_file.GapEntry = recording_file.GapEntry()
    """Entries that the recorder omitted because they arrived too fast."""
    end: str = "cut off"
    """`stopped` or `full` if the recorder wrote an end, else `cut off`."""
    pods: dict[str, PodChange] = {}
    """Pods with a difference, by `namespace/name`."""

    @property
    def is_cut_off(self) -> bool:
        return self.end == "cut off"

    @property
    def compared(self) -> int:
        """Requests whose response was compared with the recorded one."""
        return self.same + self.different

    @property
    def requests(self) -> int:
        return self.same + self.different + self.unanswered


class Player:
    """Processes the records of a recording in order, from the one after the header."""

    def __init__(self, agents: ReplayAgents) -> None:
        kinds, options = agents.kinds, agents.options
        watched = {watch.name: watch.type for kind in kinds for watch in kind.watched(options[kind.name])}
        self.tally = Tally()
        self._states = {kind.name: kind.state(options[kind.name], agents.sync_period_s) for kind in kinds}
        self._agent_states = AgentStates(self._states, agents.sync_period_s)
        self._overrides = {name: objects for name, objects in agents.objects.items() if objects}
        self._request_handler = RequestHandler(kinds, options, self._states, agents.chain)
        node_type = merge("Node", *(kind.node_fields for kind in kinds))
        self._cluster_states = ClusterStateRebuilder({**watched, NODES: node_type})
        self._snapshots = {0: Snapshot(NodeIndex(), {}, 0.0)}
        self._wanted: set[str] = set()
        self._requested: set[str] = set()

    def replay_record(self, record: Record) -> Difference | None:
        """Process the next record. Return the difference if it is a request with a different response, else None.

        BadInput for a record that does not follow the previous ones.
        """
        entry = record.entry
        match entry:
            case RequestEntry():
                return self._replay_exchange(entry, *record.blobs)
            case recording_file.MemoryEntry():
                state = self._states.get(entry.agent)
                if state is not None and state.memory_scope != "none":
                    with contextlib.suppress(BadInput):  # as in the extender: the agent starts without memory
                        state.recall(*record.blobs)
            case recording_file.GapEntry():
                lost = self.tally.lost
                self.tally.lost = recording_file.GapEntry(
                    requests=lost.requests + entry.requests, snapshots=lost.snapshots + entry.snapshots
                )
            case recording_file.EndEntry():
                self.tally.end = entry.why
            case _:
                cluster_state = self._cluster_states.apply(record)
                if cluster_state is not None and isinstance(entry, recording_file.SnapshotEntry):
                    self._apply_cluster_state(cluster_state, entry.generation)
        return None

    def unrecorded(self) -> list[str]:
        """Metrics that policies name and that were not requested during the recording, so a policy has changed."""
        return sorted(self._wanted - self._requested)

    def _with_overrides(self, cluster_state: ClusterState) -> ClusterState:
        """The cluster state with the objects that replace recorded ones or are added to them."""
        objects = {
            name: {**recorded, **self._overrides[name]} if name in self._overrides else recorded
            for name, recorded in cluster_state.objects.items()
        }
        changes = cluster_state.changes and {
            name: {key: change for key, change in changed.items() if key not in self._overrides.get(name, ())}
            for name, changed in cluster_state.changes.items()
        }
        return msgspec.structs.replace(cluster_state, objects=objects, changes=changes)

    def _apply_cluster_state(self, recorded: ClusterState, generation: int) -> None:
        """Build the snapshot of a cluster state, in the steps of `SnapshotCache.publish`."""
        self.tally.cluster_states += 1
        try:
            snapshot = self._build_snapshot(self._with_overrides(recorded), generation)
        except Exception as error:  # noqa: BLE001 - as in the extender, the previous snapshot stays
            self._record_failure(error)
            return
        self._snapshots[generation] = snapshot
        while len(self._snapshots) > _MAX_SNAPSHOTS:
            del self._snapshots[min(self._snapshots)]

    def _record_failure(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.tally.failed += [message] if message not in self.tally.failed else []

    def _build_snapshot(self, cluster_state: ClusterState, generation: int) -> Snapshot:
        for state in self._states.values():
            self._wanted |= {
                metric_request.key for metric_request in state.metric_requests(cluster_state.objects)
            }
        self._requested |= {
            metric for metric in self._wanted - self._requested if cluster_state.metrics.was_fetched(metric)
        }
        for name in self._agent_states.agents_to_rebuild(cluster_state):
            try:
                cooperative_scheduling.run_without_pauses(self._agent_states.build(name, cluster_state))
            except Exception as error:  # noqa: BLE001 - as recorded: the agent has no state, the others have
                self._record_failure(error)
        return Snapshot(cluster_state.nodes, self._agent_states.newest(), cluster_state.now, generation)

    def _replay_exchange(self, exchange: RequestEntry, body: bytes, answer: bytes) -> Difference | None:
        snapshot = self._snapshots.get(exchange.generation)
        verb = self._request_handler.verbs.get(exchange.path)
        if snapshot is None or verb is None:
            self.tally.unanswered += 1
            return None
        try:
            response = self._request_handler.handle(exchange.path, body, snapshot, exchange.at)
        except Exception as error:  # noqa: BLE001 - recorded as a response, too
            pod, replayed = "", ExtenderResponse(str(error).encode(), type(error).__name__)
        else:
            decided_pod = response.decision.pod
            pod = f"{decided_pod.namespace}/{decided_pod.name}"
            replayed = ExtenderResponse(response.body)
        recorded = ExtenderResponse(answer, exchange.error)
        if are_same(verb, recorded, replayed):
            self.tally.same += 1
            return None
        nodes = changes(verb, recorded, replayed)
        text = "" if nodes else first_difference(recorded, replayed)
        difference = Difference(exchange.at, exchange.path, pod, exchange.generation, nodes, text)
        self.tally.different += 1
        self.tally.pods.setdefault(pod, PodChange()).add(difference)
        return difference
