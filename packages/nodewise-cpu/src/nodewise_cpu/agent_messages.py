"""The messages between `isolate` and the node agent, over a socket on the node.

Standard library only.

Each request and each response is one line of JSON. A connection may send several requests, one after the other.
`isolate` keeps its connection while its command runs: the end of the connection tells the agent that the wrapper ended.
The word `claim` and the names of the fields are part of the protocol: programs of other releases use them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from nodewise.base.errors import (
    BadInput,
    BadSettings,
    Conflict,
    NodewiseError,
    Problem,
    Refused,
    Unavailable,
    shown,
)
from nodewise_cpu import cpu_set_formats, pool_allocations
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.pool_planning import PoolOptions
from nodewise_cpu.reconfiguration_plan import Move

MAX_LINE_BYTES: Final = 65_536
CLAIM: Final = "claim"
RELEASE: Final = "release"
RECONFIGURE: Final = "reconfigure"

_ERRORS: Final[Mapping[str, type[NodewiseError]]] = {
    kind.__name__: kind for kind in (BadInput, BadSettings, Conflict, Refused, Unavailable)
}


class AllocateRequest(NamedTuple):
    """A wrapper's request. The agent identifies the wrapper by the kernel (SO_PEERCRED)."""

    pool: str
    lists: int = 1
    socket: int | None = None
    affinity: bool = True


class ReconfigureRequest(NamedTuple):
    """A request for other pools, or with `only_check` for a check whether they are possible."""

    pools: PoolOptions
    only_check: bool = False


class AllocateResponse(NamedTuple):
    """The allocated CPUs, in the order of the lists, and variables for the command's environment."""

    cpus: tuple[int, ...]
    environment: Mapping[str, str]
    task: Task


def encode(value: Mapping[str, Any]) -> bytes:
    """One line."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> Mapping[str, Any]:
    """The fields of a line. BadInput if it is no JSON object."""
    try:
        value = json.loads(line)
    except (RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise BadInput.of("cannot read a message", "line", shown(line), "a JSON object")
    return value


def encode_allocate_request(request: AllocateRequest) -> bytes:
    return encode({"do": CLAIM, **request._asdict()})


def encode_allocate_response(response: AllocateResponse) -> bytes:
    return encode(
        {
            "cpus": list(response.cpus),
            "environment": dict(response.environment),
            "task": response.task._asdict(),
        }
    )


def encode_release_request(task: Task) -> bytes:
    return encode({"do": RELEASE, "task": task._asdict()})


def encode_reconfigure_request(request: ReconfigureRequest) -> bytes:
    return encode({"do": RECONFIGURE, **request.pools._asdict(), "only_check": request.only_check})


def encode_reconfigure_response(moves: Iterable[Move]) -> bytes:
    """The moves that were made, or with `only_check` would be made."""
    ranges = cpu_set_formats.format_cpu_ranges
    return encode({"moves": [[move.task.pid, ranges(move.before), ranges(move.after)] for move in moves]})


def encode_error(error: NodewiseError) -> bytes:
    kind = next(name for name, kind in _ERRORS.items() if isinstance(error, kind))
    value = {"kind": kind, "what": error.what, "problems": error.problems, "remedy": error.remedy}
    return encode({"error": value})


def parse_allocate_request(fields: Mapping[str, Any]) -> AllocateRequest:
    """The request in these fields. BadInput names every invalid field."""
    types = {"pool": (str,), "lists": (int,), "socket": (int, type(None)), "affinity": (bool,)}
    request = AllocateRequest(**{"pool": "", **{name: fields[name] for name in types if name in fields}})
    problems = [
        Problem(name, shown(value), "/".join(kind.__name__ for kind in types[name]))
        for name, value in request._asdict().items()
        if type(value) not in types[name]
    ]
    if problems:
        raise BadInput("cannot read a claim", problems)
    return request


def parse_reconfigure_request(fields: Mapping[str, Any]) -> ReconfigureRequest:
    """The request in these fields. BadInput names every invalid field."""
    defaults = PoolOptions()._asdict()
    values = {name: fields.get(name, value) for name, value in defaults.items()}
    only_check = fields.get("only_check", False)
    problems = [
        Problem(name, shown(value), type(defaults[name]).__name__)
        for name, value in values.items()
        if type(value) is not type(defaults[name])
    ]
    if type(only_check) is not bool:
        problems.append(Problem("only_check", shown(only_check), "bool"))
    if problems:
        raise BadInput("cannot read the requested pools", problems)
    return ReconfigureRequest(PoolOptions(**values), only_check)


def parse_reconfigure_response(fields: Mapping[str, Any]) -> tuple[Move, ...]:
    """The moves in a response, or the error that it carries. Of each task it has only the process id."""
    raise_response_error(fields)
    try:
        return tuple(
            Move(
                Task(int(pid)),
                *(frozenset(cpu_set_formats.parse_cpu_numbers(str(cpus))) for cpus in (before, after)),
            )
            for pid, before, after in fields["moves"]
        )
    except (BadInput, KeyError, TypeError, ValueError) as error:
        raise _unreadable_response_error(fields) from error


def parse_allocate_response(fields: Mapping[str, Any]) -> AllocateResponse:
    """The allocation in a response, or the error that it carries."""
    raise_response_error(fields)
    try:
        cpus = tuple(int(cpu) for cpu in fields["cpus"])
        environment = {str(name): str(text) for name, text in fields["environment"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable_response_error(fields) from error
    return AllocateResponse(cpus, environment, pool_allocations.parse_task(fields.get("task"), "task"))


def _unreadable_response_error(fields: Mapping[str, Any]) -> BadInput:
    return BadInput.of("cannot read the node agent's answer", "", shown(fields))


def raise_response_error(fields: Mapping[str, Any]) -> None:
    """Raise the error of a response, if it carries one."""
    error = fields.get("error")
    if error is None:
        return
    error = error if isinstance(error, dict) else {}
    kind = _ERRORS.get(str(error.get("kind")), Unavailable)
    problems = [
        Problem(*map(str, problem))
        for problem in error.get("problems", ())
        if len(problem) == len(Problem._fields)
    ]
    what = str(error.get("what", "the node agent refused"))
    raise kind(what, problems, remedy=str(error.get("remedy", "")))
