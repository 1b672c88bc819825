"""An agent of another package, asked in a thread: its answer in time and in shape, or a failure for a reason."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise.agent import Names, Scores, Snapshot, Verdict, Victims
from nodewise.extender import shapes
from nodewise.extender.deadlines import Failed
from nodewise.extender.warden import NoSlot, Warden

Ask = Callable[[Any, Names, Snapshot], Any]

_NOT_YET = NoSlot("it has not seen the nodes yet")


class OutsideFailed(msgspec.Struct, frozen=True):
    """An agent of another package gave no answer, or none that can be used."""

    agent: str
    package: str
    why: str
    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return f"nodewise: agent {self.agent} failed: {self.why}"

    def remedy(self) -> str:
        return (
            f"a defect of the package {self.package}: the log of nodewise has it, event outside_agent_failed"
        )


class ContainedAgent:
    """Asks the agent, and answers for it when it does not (`agent.Agent`)."""

    def __init__(self, inner: Any, warden: Warden) -> None:
        self.name = warden.origin.agent
        self._inner = inner
        self._warden = warden

    def equivalence_key(self, pod: Any) -> Hashable:
        """As the agent says; a pod about which it cannot say is like no other."""
        try:
            return self._warden.asked(
                "equivalence_key", lambda: shapes.hashable(self._inner.equivalence_key(pod))
            )
        except Failed:
            return object()

    def filter(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        return self.judged(self._inner.filter, pod, candidates, snapshot)

    def preempt(self, pod: Any, candidates: Names, snapshot: Snapshot, victims: Victims) -> Verdict | None:
        def ask(pod: Any, candidates: Names, snapshot: Snapshot) -> Any:
            return self._inner.preempt(pod, candidates, snapshot, victims)

        return self.judged(ask, pod, candidates, snapshot)

    def score(self, pod: Any, candidates: Names, snapshot: Snapshot) -> Scores | None:
        return self.scored(self._inner.score, pod, candidates, snapshot)

    def judged(self, ask: Ask, pod: Any, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        """Its verdict. Where it fails, every candidate is rejected for a pod that concerns it."""
        size = len(candidates)

        def checked(given: Any) -> Verdict | None:
            found = shapes.verdict(given, size)
            return found and replace(found, details=self._details(given.details, size))

        try:
            found: Verdict | None = self._call("filter", pod).answer(ask, candidates, snapshot, checked)
        except Failed as failed:
            reason = OutsideFailed(self.name, self._warden.origin.package, failed.why)
            return Verdict(np.ones(size, np.int16), (reason,))
        return found

    def scored(self, ask: Ask, pod: Any, candidates: Names, snapshot: Snapshot) -> Scores | None:
        """Its scores. `Failed`, which is told already, where there are none: the pod is placed without them."""
        size = len(candidates)

        def checked(given: Any) -> Scores | None:
            found = shapes.scores(given, size)
            return found and replace(found, details=self._details(given.details, size))

        found: Scores | None = self._call("score", pod).answer(ask, candidates, snapshot, checked)
        return found

    def _call(self, what: str, pod: Any) -> "_Call":
        return _Call(self._inner, self._warden, what, pod)

    def _details(self, given: Any, size: int) -> "ContainedDetails | None":
        if given is None:
            return None
        made = _Numbered if hasattr(given, "numbers") else ContainedDetails
        return made(given, self._warden, size)


class NamedAgent(ContainedAgent):
    """One whose judgements have names (`agent.Named`)."""

    def __init__(self, inner: Any, warden: Warden) -> None:
        super().__init__(inner, warden)
        self.predicates = {name: partial(self.judged, ask) for name, ask in inner.predicates.items()}
        self.priorities = {name: partial(self.scored, ask) for name, ask in inner.priorities.items()}


class _Call:
    """One question to the agent about one pod."""

    def __init__(self, inner: Any, warden: Warden, what: str, pod: Any) -> None:
        self._inner = inner
        self._warden = warden
        self._what = what
        self._pod = pod
        self._steps: list[str] = []
        """How far it came: `question`, and `answer` once the agent said whether the pod concerns it."""

    def answer(self, ask: Ask, candidates: Names, snapshot: Snapshot, checked: Callable[[Any], Any]) -> Any:
        """What the agent says, checked; None where the pod is none of its business. `Failed` is told already."""
        name = self._warden.origin.agent
        agent_state = snapshot.agent_states.get(name, _NOT_YET)
        own = Snapshot(snapshot.nodes, {name: agent_state}, snapshot.at, snapshot.generation)

        def work() -> Any:
            self._warden.steps = self._steps
            self._steps.append("equivalence_key")
            asked = self._inner.equivalence_key(self._pod)
            self._steps.append("answer")
            if asked is None:
                return None
            if isinstance(agent_state, NoSlot):
                raise Failed("slot", agent_state.why)
            return checked(ask(self._pod, candidates, own))

        try:
            return self._warden.answers.do(work, self._warden.limits.answer_s)
        except Failed as failed:
            if not self._is_concerned():
                return None
            if failed.failure != "slot":  # that was told when it was computed
                self._warden.tell(failed, self._what)
            raise

    def _is_concerned(self) -> bool:
        """Whether the pod is the agent's business, after its answer failed; so it is where nobody can tell."""
        hangs_itself = not self._steps and self._warden.steps[-1:] == ["equivalence_key"]
        if self._steps or hangs_itself:
            return True
        try:
            found = self._warden.questions.do(
                lambda: self._inner.equivalence_key(self._pod) is not None, self._warden.limits.answer_s
            )
        except Failed:
            return True
        return found


class ContainedDetails:
    """What the agent knows of each candidate besides, asked for when somebody wants to read it (`agent.Details`)."""

    def __init__(self, inner: Any, warden: Warden, size: int) -> None:
        self._inner = inner
        self._warden = warden
        self._size = size
        self.nbytes = max(int(inner.nbytes), 0)

    def text(self, candidate: int) -> str:
        """Nothing where it fails."""
        try:
            return self._warden.asked("details", lambda: shapes.text(self._inner.text(candidate)))
        except Failed:
            return ""

    def distances(self) -> NDArray[np.float64]:
        """All as far as can be where it fails."""
        try:
            return self._warden.asked(
                "details", lambda: shapes.numbers(self._inner.distances(), self._size, "distances")
            )
        except Failed:
            return np.ones(self._size)


class _Numbered(ContainedDetails):
    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """As `agent.Numbered`; none where it fails."""
        try:
            return self._warden.asked("details", lambda: shapes.plain(self._inner.numbers(candidate)))
        except Failed:
            return {}
