"""What `isolate` and the node agent say to each other, over a socket on the node.

Standard library only.

One line of JSON each way for each request, in turn; a connection may ask again. An `isolate` keeps its connection
for as long as its command runs: its end tells the agent that the wrapper is gone.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nodewise.cpu import cpulist, state
from nodewise.cpu.pools import Ask
from nodewise.cpu.reconfigure import Move
from nodewise.cpu.state import Task
from nodewise.errors import (
    BadInput,
    BadSettings,
    Conflict,
    NodewiseError,
    Problem,
    Refused,
    Unavailable,
    shown,
)

LONGEST_BYTES: Final = 65_536
CLAIM: Final = "claim"
RELEASE: Final = "release"
RECONFIGURE: Final = "reconfigure"

_KINDS: Final[Mapping[str, type[NodewiseError]]] = {
    kind.__name__: kind for kind in (BadInput, BadSettings, Conflict, Refused, Unavailable)
}


class ClaimRequest(NamedTuple):
    """What a wrapper wants. Who it is the agent knows from the kernel (SO_PEERCRED)."""

    pool: str
    lists: int = 1
    socket: int | None = None
    affinity: bool = True


class ReconfigureRequest(NamedTuple):
    """Other pools for the node, or with `only_check` whether they could be."""

    ask: Ask
    only_check: bool = False


class ClaimAnswer(NamedTuple):
    """What it got: the CPUs it may run on, in the order told, and its command's further environment."""

    cpus: tuple[int, ...]
    environment: Mapping[str, str]
    task: Task


def encode(value: Mapping[str, Any]) -> bytes:
    """One line."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Mapping[str, Any]:
    """BadInput if it is no line of this protocol."""
    try:
        value = json.loads(line)
    except (RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("cannot read a message", [Problem("line", shown(line), "a JSON object")])
    return value


def claim(request: ClaimRequest) -> bytes:
    return encode({"do": CLAIM, **request._asdict()})


def claimed(answer: ClaimAnswer) -> bytes:
    return encode(
        {"cpus": list(answer.cpus), "environment": dict(answer.environment), "task": answer.task._asdict()}
    )


def release(task: Task) -> bytes:
    return encode({"do": RELEASE, "task": task._asdict()})


def reconfigure(request: ReconfigureRequest) -> bytes:
    """Answered by `reconfigured`, or an error."""
    return encode({"do": RECONFIGURE, **request.ask._asdict(), "only_check": request.only_check})


def reconfigured(moves: Iterable[Move]) -> bytes:
    """The moves that were made, or with `only_check` would be."""
    told = [
        [move.task.pid, cpulist.format_ranges(move.before), cpulist.format_ranges(move.after)]
        for move in moves
    ]
    return encode({"moves": told})


def failed(error: NodewiseError) -> bytes:
    kind = next(name for name, one in _KINDS.items() if isinstance(error, one))
    told = {"kind": kind, "what": error.what, "problems": error.problems, "remedy": error.remedy}
    return encode({"error": told})


def parse_claim(fields: Mapping[str, Any]) -> ClaimRequest:
    """BadInput names every field that is not as it should be."""
    wanted = {"pool": (str,), "lists": (int,), "socket": (int, type(None)), "affinity": (bool,)}
    given = ClaimRequest(**{"pool": "", **{name: fields[name] for name in wanted if name in fields}})
    problems = [
        Problem(name, shown(value), "/".join(kind.__name__ for kind in wanted[name]))
        for name, value in given._asdict().items()
        if type(value) not in wanted[name]
    ]
    if problems:
        raise BadInput("cannot read a claim", problems)
    return given


def parse_reconfigure(fields: Mapping[str, Any]) -> ReconfigureRequest:
    """BadInput names every field that is not as it should be."""
    first = Ask()._asdict()
    given = {name: fields.get(name, value) for name, value in first.items()}
    only_check = fields.get("only_check", False)
    problems = [
        Problem(name, shown(value), type(first[name]).__name__)
        for name, value in given.items()
        if type(value) is not type(first[name])
    ]
    if type(only_check) is not bool:
        problems.append(Problem("only_check", shown(only_check), "bool"))
    if problems:
        raise BadInput("cannot read what pools are wanted", problems)
    return ReconfigureRequest(Ask(**given), only_check)


def parse_reconfigured(fields: Mapping[str, Any]) -> tuple[Move, ...]:
    """The agent's answer, or the error that it says; of each task only the process id is told."""
    raise_error(fields)
    try:
        return tuple(
            Move(Task(int(pid)), *(frozenset(cpulist.parse_list(str(cpus))) for cpus in (before, after)))
            for pid, before, after in fields["moves"]
        )
    except (BadInput, KeyError, TypeError, ValueError) as error:
        raise _unreadable(fields) from error


def parse_claimed(fields: Mapping[str, Any]) -> ClaimAnswer:
    """The agent's answer, or the error that it says."""
    raise_error(fields)
    try:
        cpus = tuple(int(cpu) for cpu in fields["cpus"])
        environment = {str(name): str(text) for name, text in fields["environment"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(fields) from error
    return ClaimAnswer(cpus, environment, state.parse_task(fields.get("task"), "task"))


def _unreadable(fields: Mapping[str, Any]) -> BadInput:
    return BadInput("cannot read the node agent's answer", [Problem("", shown(fields), "")])


def raise_error(fields: Mapping[str, Any]) -> None:
    """Raise the error that an answer carries, if it does."""
    told = fields.get("error")
    if told is None:
        return
    told = told if isinstance(told, dict) else {}
    kind = _KINDS.get(str(told.get("kind")), Unavailable)
    problems = [
        Problem(*map(str, one)) for one in told.get("problems", ()) if len(one) == len(Problem._fields)
    ]
    raise kind(str(told.get("what", "the node agent refused")), problems, remedy=str(told.get("remedy", "")))
