"""Calls one agent as kube-scheduler does. For the tests of an agent's package, which import this module."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nodewise.engine import third_party_result_validation
from nodewise.engine.third_party_agents import Origin, ThirdPartyKind
from nodewise.extender.clusterless_snapshots import ClusterlessSnapshots
from nodewise.extender.routes import RequestHandler


class AgentTester:
    """One agent that reads nodes and pods only, served as `nodewise extender --no-cluster` does."""

    def __init__(self, kind: Any, options: Any = None) -> None:
        """`kind` is an `AgentKind`; without options it has its defaults. `InvalidResult` for an invalid kind."""
        tested: Any = ThirdPartyKind(
            third_party_result_validation.validate_kind(kind, kind.name, ()),
            Origin(kind.name, "under test", ""),
        )
        agent_options = {tested.name: tested.options() if options is None else options}
        states = {tested.name: tested.state(agent_options[tested.name], 5.0)}
        self._snapshots = ClusterlessSnapshots([tested], states)
        self._request_handler = RequestHandler([tested], agent_options, states)

    def call(
        self, path: str, pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], now: float = 0
    ) -> Any:
        """The decoded response of a path such as `/scheduler/filter`. Pods and nodes are as in YAML."""
        body = msgspec.json.encode(
            {"Pod": {"apiVersion": "v1", "kind": "Pod", **pod}, "Nodes": {"items": list(nodes)}}
        )
        response = self._request_handler.handle(path, body, self._snapshots.snapshot(body, now), now)
        return json.loads(response.body)
