"""How the tests of an agent's package ask it: the bytes that kube-scheduler sends go in, its answer comes out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nodewise import turns
from nodewise.extender import shapes
from nodewise.extender.answering import Answering
from nodewise.extender.containing import contained
from nodewise.extender.lone import LoneSnapshots
from nodewise.extender.warden import Origin


class Trial:
    """One agent that reads nothing but nodes and pods, served as `nodewise extender --no-cluster` does: contained."""

    def __init__(self, kind: Any, options: Any = None) -> None:
        """`kind` is an `AgentKind`; without options it has its defaults. `Failed` for one of the wrong shape."""
        held: Any = contained(shapes.kind(kind, kind.name, ()), Origin(kind.name, "under test", ""))
        given = {held.name: held.options() if options is None else options}
        states = {held.name: held.state(given[held.name], 5.0)}
        self._snapshots = LoneSnapshots([held], states)
        self._answering = Answering([held], given, states)

    def ask(
        self, path: str, pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], now: float = 0
    ) -> Any:
        """The answer of a path such as `/scheduler/filter`, as JSON was read; pods and nodes are as YAML has them."""
        named = {"apiVersion": "v1", "kind": "Pod", **pod}
        body = msgspec.json.encode({"Pod": named, "Nodes": {"items": list(nodes)}})
        answer = turns.result(self._answering.answer(path, body, self._snapshots.snapshot(body, now), now))
        return json.loads(answer.body)
