"""How the tests of an agent's package ask it: the bytes that kube-scheduler sends go in, its answer comes out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nodewise.extender.answering import Answering
from nodewise.extender.lone import LoneViews


class Trial:
    """One agent that reads nothing but nodes and pods, served as `nodewise extender --no-cluster` does."""

    def __init__(self, kind: Any, options: Any = None) -> None:
        """`kind` is an `AgentKind`; without options it has its defaults."""
        given = {kind.name: kind.options() if options is None else options}
        states = {kind.name: kind.state(given[kind.name], 5.0)}
        self._views = LoneViews([kind], states)
        self._answering = Answering([kind], given, states)

    def ask(
        self, path: str, pod: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], now: float = 0
    ) -> Any:
        """The answer of a path such as `/scheduler/filter`, as JSON was read; pods and nodes are as YAML has them."""
        named = {"apiVersion": "v1", "kind": "Pod", **pod}
        body = msgspec.json.encode({"Pod": named, "Nodes": {"items": list(nodes)}})
        answer = self._answering.answer(path, body, self._views.view(body, now), now)
        return json.loads(answer.body)
