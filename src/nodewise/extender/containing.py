"""An agent of another package, held so that its crashes, its slowness and its wrong answers stay its own.

Whatever it is asked for it does in threads of its own, and who asks waits no longer than a deadline: one thread for
answers, one for slots, and one for `question` while the first hangs. What it answers is checked and copied. A pod that
it judges waits when it fails, with the reason on the pod, because no answer must never mean yes; a pod of which its
`question` is None goes on. It writes nothing: controllers, `bind` and `GET /state` are for our own agents.

What cannot be held is code that ends the process, or that keeps Python's lock for ever.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nodewise.agent import Concerned, Named, Requested, Watched
from nodewise.clock import Clock
from nodewise.extender import shapes
from nodewise.extender.contained_agent import ContainedAgent, NamedAgent
from nodewise.extender.contained_state import ContainedState, CountingState, RememberingState
from nodewise.extender.deadlines import Failed
from nodewise.extender.warden import Limits, Origin, Warden
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.state import Counting, Remembering


class ContainedKind:
    """The kind of an agent of another package (`agent.AgentKind`)."""

    def __init__(self, kind: Any, origin: Origin) -> None:
        self.name = origin.agent
        self.origin = origin
        self.summary: str = shapes.text(kind.summary)
        self.options: type[msgspec.Struct] = kind.options
        self.pod_fields: type[msgspec.Struct] = kind.pod_fields
        self.node_fields: type[msgspec.Struct] = kind.node_fields
        self.warden = Warden(origin)
        self._kind = kind

    def watched(self, options: Any) -> Sequence[Watched]:
        return self.warden.begun("watched", lambda: shapes.watched(self._kind.watched(options), self.name))

    def resources(self, options: Any) -> Mapping[str, bool]:
        """As `agent.Requested`; none of an agent that names none."""
        if not isinstance(self._kind, Requested):
            return {}
        return self.warden.begun("resources", lambda: shapes.resources(self._kind.resources(options)))

    def state(self, options: Any, sync_period_s: float) -> ContainedState:
        more = {Counting: CountingState, Remembering: RememberingState}

        def made() -> ContainedState:
            found = shapes.state(self._kind.state(options, sync_period_s))
            with_more = [mixin for protocol, mixin in more.items() if isinstance(found, protocol)]
            of: Any = (
                type("ContainedState", (*with_more, ContainedState), {}) if with_more else ContainedState
            )
            state: ContainedState = of(found, self.warden)
            return state

        return self.warden.begun("state", made)

    def agent(self, options: Any) -> ContainedAgent:
        def made() -> ContainedAgent:
            found = shapes.agent(self._kind.agent(options), self.name)
            of = NamedAgent if isinstance(found, Named) else ContainedAgent
            return of(found, self.warden)

        return self.warden.begun("agent", made)

    def controller(self, options: Any, hands: Any) -> None:
        """None: what code of others does to the API server cannot be contained."""


class _Concerned(ContainedKind):
    def concerns(self, options: Any, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:
        """As `agent.Concerned`; one that fails is not."""
        try:
            return bool(self.warden.asked("concerns", lambda: self._kind.concerns(options, nodes, pods)))
        except Failed:
            return False


def contained(kind: Any, origin: Origin) -> ContainedKind:
    """The kind, held. Its shape was seen to (`shapes.kind`)."""
    return _Concerned(kind, origin) if isinstance(kind, Concerned) else ContainedKind(kind, origin)


def serve(kinds: Iterable[Any], limits: Limits, clock: Clock, meters: MetricsRegistry) -> None:
    """Hold those of these that are of other packages to the limits, and count their failures."""
    for kind in kinds:
        if isinstance(kind, ContainedKind):
            kind.warden.serve(limits, clock, meters)
