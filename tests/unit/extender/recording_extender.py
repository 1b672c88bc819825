"""An extender without sockets that records cluster states and requests, and the replay of its recordings."""

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodewise import agents
from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.agents.telemetry import TelemetryKind
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput
from nodewise.engine import recording_file, request_recorder
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.cluster_state_changes import AgentStates
from nodewise.engine.decision import DecisionRing
from nodewise.engine.recording_file import Record
from nodewise.engine.request_recorder import FileRecorder
from nodewise.extender.routes import Extender, RequestHandler
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model.recording_replay import Difference, Player, ReplayAgents
from nodewise.server.application import Request
from tests.manual_clock import ManualClock
from tests.unit.incremental_agent_states import changed

KIND = agents.load("telemetry")
PERIOD_S = 5.0
assert isinstance(KIND, TelemetryKind)


class Disk(io.BytesIO):
    """A file in memory whose contents remain after `close`."""

    contents = b""

    def close(self) -> None:
        if not self.closed:
            self.contents = self.getvalue()
        super().close()


class RecordedExtender:
    """An extender with the telemetry agent, real routes and a recorder."""

    def __init__(
        self, options: TelemetryOptions | None = None, max_bytes: int = 2**30, disk: Disk | None = None
    ) -> None:
        self.options = {"telemetry": options or TelemetryOptions()}
        self.disk = disk or Disk()
        self.metrics_registry = MetricsRegistry()
        self.clock = ManualClock(1000.0)
        header = request_recorder.build_header(
            [KIND], self.options, request_recorder.ReplaySettings(PERIOD_S, ChainOptions()), self.clock.now()
        )
        self.recording = FileRecorder(self.disk, header, max_bytes, self.clock, self.metrics_registry)
        self.snapshot = Snapshot(NodeIndex(), {}, 0.0)
        self._state = KIND.state(self.options["telemetry"], PERIOD_S)
        self._last: ClusterState | None = None
        self._agent_states = AgentStates({"telemetry": self._state}, PERIOD_S)
        request_handler = RequestHandler([KIND], self.options)
        extender = Extender(
            request_handler,
            lambda *_: self.snapshot,
            DecisionRing(),
            self.clock,
            self.metrics_registry,
            self.recording,
        )
        self._handlers = {route.path: route.handler for route in extender.routes()}

    def see(self, cluster_state: ClusterState) -> None:
        """Process a cluster state as `SnapshotCache.publish` does."""
        generation = self.snapshot.generation + 1
        cluster_state = changed(self._last, cluster_state)
        self._last = cluster_state
        self._state.metric_requests(cluster_state.objects)
        self.recording.record_cluster_state(cluster_state, generation)
        for name in self._agent_states.agents_to_rebuild(cluster_state):
            cooperative_scheduling.run_without_pauses(self._agent_states.build(name, cluster_state))
        self.snapshot = Snapshot(
            cluster_state.nodes, self._agent_states.newest(), cluster_state.now, generation
        )

    def ask(self, path: str, body: bytes) -> bytes:
        """The response body to a request. It is empty if the request is invalid."""
        request: Any = Request("POST", path, {}, body, "application/json", "")
        try:
            response: Any = self._handlers[path](request)
        except BadInput:
            return b""
        response.completion()
        return b"".join(response.body)

    def finish(self) -> bytes:
        """End the recording, and return the contents of its file."""
        self.recording.finish()
        return self.disk.contents


def body(policy: str | None, names: str, **more: Any) -> bytes:
    """The body of a request for a pod with this policy."""
    labels = {} if policy is None else {"telemetry-policy": policy}
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u", "labels": labels}}
    return json.dumps({"Pod": pod, "NodeNames": names.split(), **more}).encode()


def records(file: bytes) -> list[Record]:
    return list(recording_file.read(io.BytesIO(file)))


class Played(NamedTuple):
    """The result of a replay."""

    player: Player
    differences: list[Difference]


def replay(
    records: list[Record], options: TelemetryOptions | None = None, objects: Mapping[str, Any] | None = None
) -> Played:
    """Replay records with the recorded options, or with others."""
    header: Any = records[0].entry
    chosen = options or TelemetryOptions(**header.agents[0].options)
    player = Player(ReplayAgents([KIND], {"telemetry": chosen}, header.sync_period_s, objects or {}))
    responses = [player.replay_record(record) for record in records[1:]]
    return Played(player, [response for response in responses if response is not None])
