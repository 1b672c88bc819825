"""Where a node's state is kept, whatever keeps it: read it, decide, and write only if nobody wrote meanwhile.

Standard library only.

There is no lock that anybody could die with: who writes says which version the decision was made from. A node that
is being reconfigured has an intent beside its state; claims are refused until it is carried out or taken back.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from nodewise.cpu import cpulist, state
from nodewise.cpu.reconfigure import Cpus, Move
from nodewise.cpu.state import State, Task
from nodewise.errors import BadInput, Conflict, Problem, Unavailable, shown

T = TypeVar("T")
TRIES: Final = 30


class Intent(NamedTuple):
    """A reconfiguration that is under way."""

    target: State
    by: Task
    """The process that carries it out; once it is gone somebody else takes the intent back."""
    since: str
    """When it began, as RFC 3339 has it; for people."""
    moves: tuple[Move, ...] = ()
    """What is done to tasks, in this order."""
    threads: Mapping[str, Cpus] = {}
    """By `<id>-<start>`, where threads of these tasks may run that were elsewhere than their task before all that."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "config": state.as_config(self.target),
            "tasks": state.as_identities(self.target),
            "by": self.by._asdict(),
            "since": self.since,
            "moves": [
                {
                    "task": move.task._asdict(),
                    "before": cpulist.format_ranges(move.before),
                    "after": cpulist.format_ranges(move.after),
                }
                for move in self.moves
            ],
            "threads": {name: cpulist.format_ranges(cpus) for name, cpus in self.threads.items()},
        }


def parse_intent(value: object) -> Intent:
    """The intent of `as_dict`, socket numbers as texts too; BadInput names what is not as it should be."""
    fields = value if isinstance(value, Mapping) else {}
    if not isinstance(value, Mapping) or not isinstance(fields.get("since"), str):
        problem = Problem("intent", shown(value), "an object with config, tasks, by and since")
        raise BadInput("cannot read what the node is being reconfigured to", [problem])
    target = state.parse(fields.get("config"), fields.get("tasks"))
    by = state.parse_task(fields.get("by"), "intent.by")
    return Intent(target, by, fields["since"], _moves(fields.get("moves")), _threads(fields.get("threads")))


def _moves(value: object) -> tuple[Move, ...]:
    if not isinstance(value, list | None) or not all(isinstance(one, Mapping) for one in value or ()):
        problem = Problem("intent.moves", shown(value), "a list of objects with task, before and after")
        raise BadInput("cannot read what the node is being reconfigured to", [problem])
    return tuple(
        Move(
            state.parse_task(one.get("task"), "intent.moves.task"),
            *(_cpus(one.get(name), f"intent.moves.{name}") for name in ("before", "after")),
        )
        for one in value or ()
    )


def _threads(value: object) -> Mapping[str, Cpus]:
    if not isinstance(value, Mapping | None):
        problem = Problem("intent.threads", shown(value), "a mapping of threads to CPU lists")
        raise BadInput("cannot read what the node is being reconfigured to", [problem])
    return {str(name): _cpus(cpus, f"intent.threads.{name}") for name, cpus in (value or {}).items()}


def _cpus(value: object, field: str) -> Cpus:
    return frozenset(cpulist.parse_list(value if isinstance(value, str) else "", field))


class Stored(NamedTuple):
    """What a book holds; `version` is for `replace`."""

    state: State
    version: str
    intent: Intent | None = None


class Book(Protocol):
    """One node's state. Every method raises `Unavailable` where the place does not answer, `Refused` without rights."""

    @property
    def place(self) -> str:
        """For messages: `ConfigMap ns/cmk-config-node1`, `directory /etc/cmk`."""
        ...

    def read(self) -> Stored:
        """`kube.api.NotFound` if there is no state; BadInput if it cannot be read. Takes no lock."""
        ...

    def create(self, first: State) -> None:
        """Conflict if there is a state already."""
        ...

    def replace(self, version: str, new: State, intent: Intent | None = None) -> None:
        """Conflict if the state is no longer of this version. Whole or not at all, whenever the program ends."""
        ...

    def delete(self, version: str) -> None:
        """Conflict if the state is no longer of this version."""
        ...


def change(
    book: Book,
    decide: Callable[[Stored], tuple[State, T]],
    wait: Callable[[int], None],
    *,
    whatever: bool = False,
) -> T:
    """Write what `decide` makes of the state, anew for as long as others write first; what it says besides.

    `wait` is called with the number of the try before each further one. Nothing is written where `decide` leaves the
    state as it is. Unavailable if others are always first, or while the node is being reconfigured, unless
    `whatever`: then the intent stays as it is.
    """
    for number in range(TRIES):
        if number:
            wait(number)
        stored = book.read()
        if stored.intent and not whatever:
            raise busy(book.place, stored.intent)
        new, said = decide(stored)
        if new == stored.state:
            return said
        try:
            book.replace(stored.version, new, stored.intent)
        except Conflict:
            continue
        return said
    raise Unavailable(f"cannot write {book.place}", [Problem("", f"others wrote first, {TRIES} times", "")])


def busy(place: str, intent: Intent) -> Unavailable:
    """The error of who wants a core meanwhile."""
    seen = f"is being reconfigured by process {intent.by.pid} since {intent.since}"
    return Unavailable("cannot change who holds what", [Problem(place, seen, "")], retry_after_s=2.0)
