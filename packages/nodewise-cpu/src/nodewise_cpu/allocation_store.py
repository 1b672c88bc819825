"""The interface of a store of a node's allocations, and the update loop: read, decide, write if nothing changed.

Standard library only.

There is no lock that could outlive its owner: each write names the version that the decision was based on. While a
node is being reconfigured an intent is stored beside the allocations; no CPUs are allocated until it is completed or
rolled back.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from nodewise.base.errors import BadInput, Conflict, Unavailable, shown
from nodewise_cpu import cpu_set_formats, pool_allocations
from nodewise_cpu.pool_allocations import Allocations, Task
from nodewise_cpu.reconfiguration_plan import Cpus, Move

T = TypeVar("T")
MAX_ATTEMPTS: Final = 30


class Intent(NamedTuple):
    """A reconfiguration in progress."""

    target: Allocations
    by: Task
    """The process that carries it out. Once it has ended, another process rolls the reconfiguration back."""
    since: str
    """The start of the reconfiguration in RFC 3339 format, for people."""
    moves: tuple[Move, ...] = ()
    """The moves of tasks, in this order."""
    threads: Mapping[str, Cpus] = {}
    """The CPUs of threads, by `<id>-<start>`, that were not on their task's CPUs before the first move."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "config": pool_allocations.as_cmk_config(self.target),
            "tasks": pool_allocations.task_identities_by_cpu_list(self.target),
            "by": self.by._asdict(),
            "since": self.since,
            "moves": [
                {
                    "task": move.task._asdict(),
                    "before": cpu_set_formats.format_cpu_ranges(move.before),
                    "after": cpu_set_formats.format_cpu_ranges(move.after),
                }
                for move in self.moves
            ],
            "threads": {name: cpu_set_formats.format_cpu_ranges(cpus) for name, cpus in self.threads.items()},
        }


def load_intent(text: str | None, field: str) -> Intent | None:
    """The intent in a JSON text; None without a text. BadInput names `field` or what is wrong in it."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise BadInput.of("cannot read an intent", field, shown(text), "JSON") from error
    return parse_intent(value)


def parse_intent(value: object) -> Intent:
    """The intent from the value of `as_dict`; socket numbers may be texts. BadInput names what is wrong."""
    fields = value if isinstance(value, Mapping) else {}
    moves, threads = fields.get("moves"), fields.get("threads")
    moves = [] if moves is None else moves
    threads = {} if threads is None else threads
    expected = ""
    if not isinstance(fields.get("since"), str):
        field, expected = "intent", "an object with config, tasks, by and since"
    elif not isinstance(moves, list) or not all(isinstance(move, Mapping) for move in moves):
        field, expected, value = "intent.moves", "a list of objects with task, before and after", moves
    elif not isinstance(threads, Mapping):
        field, expected, value = "intent.threads", "a mapping of threads to CPU lists", threads
    if expected:
        raise BadInput.of("cannot read what the node is being reconfigured to", field, shown(value), expected)

    def cpus(text: object, field: str) -> Cpus:
        numbers = cpu_set_formats.parse_cpu_numbers(text if isinstance(text, str) else "", field)
        return frozenset(numbers)

    return Intent(
        pool_allocations.parse_allocations(fields.get("config"), fields.get("tasks")),
        pool_allocations.parse_task(fields.get("by"), "intent.by"),
        fields["since"],
        tuple(
            Move(
                pool_allocations.parse_task(move.get("task"), "intent.moves.task"),
                cpus(move.get("before"), "intent.moves.before"),
                cpus(move.get("after"), "intent.moves.after"),
            )
            for move in moves
        ),
        {str(name): cpus(text, f"intent.threads.{name}") for name, text in threads.items()},
    )


class StoredAllocations(NamedTuple):
    """The content of a store; `version` is for `replace`."""

    allocations: Allocations
    version: str
    intent: Intent | None = None


class AllocationStore(Protocol):
    """The stored allocations of one node.

    Every method raises `Unavailable` if the store does not respond, and `Refused` without permission.
    """

    @property
    def location(self) -> str:
        """The store's name in messages: `ConfigMap ns/cmk-config-node1`, `directory /etc/cmk`."""
        ...

    def read(self) -> StoredAllocations:
        """The content. `kube.api_server_interface.NotFound` if there is none, BadInput if it cannot be read.
        Takes no lock.
        """
        ...

    def create(self, first: Allocations) -> None:
        """Create the content. Conflict if there is some already."""
        ...

    def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
        """Replace the content as a whole, even if the program is killed. Conflict if it is not of this version."""
        ...

    def delete(self, version: str) -> None:
        """Delete the content. Conflict if it is not of this version."""
        ...


def update(
    store: AllocationStore,
    decide: Callable[[StoredAllocations], tuple[Allocations, T]],
    wait: Callable[[int], None],
    *,
    during_reconfiguration: bool = False,
) -> T:
    """Store the allocations that `decide` returns, and return its other result. Retries if the content changed.

    `wait` is called with the number of the attempt before each retry. Nothing is written if `decide` returns the same
    allocations. Unavailable if every attempt failed, or while the node is being reconfigured; with
    `during_reconfiguration` the allocations are written and the intent stays.
    """
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            wait(attempt)
        stored = store.read()
        if stored.intent and not during_reconfiguration:
            raise under_reconfiguration_error(store.location, stored.intent)
        allocations, result = decide(stored)
        if allocations == stored.allocations:
            return result
        try:
            store.replace(stored.version, allocations, stored.intent)
        except Conflict:
            continue
        return result
    raise conflict_error(store.location)


def release(store: AllocationStore, task: Task, wait: Callable[[int], None]) -> None:
    """Remove the task, also during a reconfiguration."""

    def decide(stored: StoredAllocations) -> tuple[Allocations, None]:
        return stored.allocations.without(task), None

    update(store, decide, wait, during_reconfiguration=True)


def conflict_error(place: str) -> Unavailable:
    """The error after `MAX_ATTEMPTS` writes that all met a conflict."""
    return Unavailable.of(f"cannot write {place}", "", f"conflicts in all {MAX_ATTEMPTS} attempts")


def under_reconfiguration_error(place: str, intent: Intent) -> Unavailable:
    """The error of an allocation while a node is being reconfigured."""
    seen = f"is being reconfigured by process {intent.by.pid} since {intent.since}"
    return Unavailable.of("cannot change the allocations", place, seen, retry_after_s=2.0)
