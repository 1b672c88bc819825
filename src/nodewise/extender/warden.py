"""What all parts of one contained agent share: its threads, how long is waited, and who is told of its failures."""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from nodewise.clock import Clock, SystemClock
from nodewise.errors import BadSettings, Problem
from nodewise.extender.deadlines import Failed, Failure, Worker
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T")

START_S: Final = 10.0
"""For whatever is done once, before anybody waits."""
_LOG_EVERY_S: Final = 60.0


class Origin(NamedTuple):
    """Whose an agent is."""

    agent: str
    package: str
    version: str


class Limits(NamedTuple):
    """How long is waited; as it is here where nobody waits for the answer, as in `nodewise decide`."""

    answer_s: float = 30.0
    slot_s: float = 30.0
    """What takes longer has failed."""
    patience_s: float = 30.0
    """For so long a new snapshot waits for the slot; then it has the one before, of the same nodes."""


class NoSlot(NamedTuple):
    """What stands in the snapshot in the place of a slot that could not be computed."""

    why: str


class Warden:
    """Keeps one agent."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.limits = Limits()
        self.clock: Clock = SystemClock()
        self.steps: list[str] = []
        """How far the newest call for an answer came."""
        self._meters: MetricsRegistry | None = None
        self._logged: dict[Failure, float] = {}
        self._unlogged: dict[Failure, int] = {}
        self.answers, self.agent_states, self.questions = (
            Worker(f"{origin.agent}-{what}") for what in ("answers", "slots", "questions")
        )

    def serve(self, limits: Limits, clock: Clock, meters: MetricsRegistry) -> None:
        """Somebody waits from now on."""
        self.limits, self.clock, self._meters = limits, clock, meters

    def tell(self, failed: Failed, what: str) -> None:
        """Count a failure, and log the first of its kind in a minute."""
        kind, now = failed.failure, self.clock.monotonic()
        if self._meters is not None:
            self._meters.count("agent_failures_total", agent=self.origin.agent, kind=kind)
        if kind in self._logged and now - self._logged[kind] < _LOG_EVERY_S:
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return
        self._logged[kind] = now
        unlogged = self._unlogged.pop(kind, 0)
        origin = {**self.origin._asdict(), "failure": kind, "what": what, "why": failed.why}
        logs.emit("outside_agent_failed", **origin, unlogged=unlogged, exc_info=failed.__cause__)

    def asked(self, what: str, work: Callable[[], T]) -> T:
        """What comes of it in time. `Failed` is told already."""
        try:
            return self.answers.do(work, self.limits.answer_s)
        except Failed as failed:
            self.tell(failed, what)
            raise

    def told(self, what: str, work: Callable[[], T]) -> T:
        """The same of the state, in the thread of its slots; while that computes one, `Failed` is no failure."""
        try:
            return self.agent_states.do(work, self.limits.answer_s)
        except Failed as failed:
            if failed.failure != "busy":
                self.tell(failed, what)
            raise

    def begun(self, what: str, work: Callable[[], T]) -> T:
        """What comes of something done at the start. `BadSettings` names the agent, and why it cannot be used."""
        try:
            return self.agent_states.do(work, START_S)
        except Failed as failed:
            seen = f"{self.origin.agent!r}, {what}: {failed.why}"
            package = f"{self.origin.package} {self.origin.version}"
            raise BadSettings(
                "agents", [Problem("--agents", seen, f"a package that works, not {package}")]
            ) from failed
