"""The extender's request handler as an HTTP transport: the simulated scheduler calls it in-process, without a socket.

Requests and responses are the real bytes. Snapshots are built in the steps of `SnapshotCache`, as in a replay.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx2
import msgspec

from nodewise.agent import AgentKind, ClusterState, NodeIndex, ObjectKey, Snapshot, Watched
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import Clock
from nodewise.base.errors import BadSettings, Problem
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.cluster_state_changes import AgentStates
from nodewise.extender.routes import RequestHandler
from nodewise.kube.resource_kinds import PODS
from nodewise.kube.store import Change, ChangeLog
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics.metrics_snapshot import MetricsSnapshot

URL = "http://127.0.0.1:9001"
"""The URL that the simulated scheduler uses; the transport serves it."""

Object = dict[str, Any]


class AgentGroup(NamedTuple):
    """The agents of a run, with their options and the extender entries of the scheduler's configuration."""

    name: str
    """The name in tables."""
    kinds: Sequence[AgentKind]
    options: Mapping[str, Any]
    """Options by agent name."""
    chain: ChainOptions = ChainOptions()
    entries: Sequence[Mapping[str, Any]] = ()
    """Extender entries of the scheduler's configuration; they refer to `URL`."""


class InProcessExtender(httpx2.BaseTransport):
    """Answers each call from the newest snapshot. BadSettings if an agent needs inputs that are not simulated."""

    def __init__(self, agents: AgentGroup, nodes: Sequence[str], clock: Clock, period_s: float) -> None:
        self._clock = clock
        self._states = {kind.name: kind.state(agents.options[kind.name], period_s) for kind in agents.kinds}
        metered = [name for name, state in self._states.items() if state.inputs.metrics]
        if metered:
            seen = f"{', '.join(metered)} from metrics"
            raise BadSettings(
                "bursts", [Problem("--statistics", seen, "annotations: there are no metrics here")]
            )
        self._agent_states = AgentStates(self._states, period_s)
        self._request_handler = RequestHandler(agents.kinds, agents.options, self._states, agents.chain)
        self._index = NodeIndex(nodes)
        self._node_type = merge("Node", *(kind.node_fields for kind in agents.kinds))
        self._watched = [
            watch for kind in agents.kinds for watch in _watched(kind, agents.options[kind.name])
        ]
        self._nodes: Mapping[ObjectKey, Any] = {}
        self._objects: dict[str, Mapping[ObjectKey, Any]] = {watch.name: {} for watch in self._watched}
        self._log = ChangeLog()
        self._generation = 0
        self.snapshot = Snapshot(self._index, {}, clock.now())

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Implements `httpx2.BaseTransport`."""
        answer = self._request_handler.handle(
            request.url.path, request.read(), self.snapshot, self._clock.now()
        )
        return httpx2.Response(200, content=answer.body)

    def publish(self, nodes: Mapping[str, Object], pods: Mapping[ObjectKey, Object | None]) -> None:
        """Build a new snapshot from the changed nodes, by name, and the changed pods; None marks a deleted pod."""
        changed = {("", name): _decode_object(obj, self._node_type) for name, obj in nodes.items()}
        self._log.add(NODES, {key: Change(self._nodes.get(key), item) for key, item in changed.items()})
        self._nodes = {**self._nodes, **changed}
        for watched in self._watched if pods else ():
            self._apply_pod_changes(watched, pods)
        cluster_state = ClusterState(
            self._index,
            dict(self._objects),
            MetricsSnapshot(),
            self._clock.now(),
            self._nodes,
            changes=self._log.take(),
        )
        for name in self._agent_states.agents_to_rebuild(cluster_state):
            cooperative_scheduling.run_without_pauses(self._agent_states.build(name, cluster_state))
        self._generation += 1
        self.snapshot = Snapshot(
            self._index, self._agent_states.newest(), cluster_state.now, self._generation
        )

    def _apply_pod_changes(self, watched: Watched, pods: Mapping[ObjectKey, Object | None]) -> None:
        before = self._objects[watched.name]
        after = dict(before)
        for key, obj in pods.items():
            item = _decode_object(obj, watched.type) if obj is not None else None
            if item is not None and watched.keep is not None:
                item = watched.keep(item)
            if item is None:
                after.pop(key, None)
            else:
                after[key] = item
        self._log.add(watched.name, {key: Change(before.get(key), after.get(key)) for key in pods})
        self._objects[watched.name] = after


def _watched(kind: AgentKind, options: Any) -> Sequence[Watched]:
    watched = kind.watched(options)
    strange = [watch.resource.plural for watch in watched if watch.resource.kind != PODS.kind]
    if strange:
        wanted = "agents that read nodes and pods only"
        raise BadSettings("bursts", [Problem("--agents", f"{kind.name} reads {', '.join(strange)}", wanted)])
    return watched


def _decode_object(obj: Object, kind: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(obj), type=kind)
