"""Two answers to one request, compared: byte for byte, and where they differ node by node. Values only."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from nodewise.errors import UNREADABLE, NodewiseError
from nodewise.extender.decision import Verb
from nodewise.simulate import extender_wire
from nodewise.simulate.extender_wire import Filtered, HostScore, Preempted

KEPT: Final = "kept"
_REJECTED: Final = "rejected"
_AROUND_BYTES: Final = 40

Told = str | int | None
"""What an answer says of a node: `kept`, why it is rejected, or its score; None where it does not name the node."""


class Outcome(NamedTuple):
    """How a request was answered: the body, or the kind of error and its words."""

    body: bytes
    error: str = ""


class NodeChange(NamedTuple):
    """One node of which the two answers say different things."""

    node: str
    recorded: Told
    replayed: Told


class Difference(msgspec.Struct, frozen=True):
    """A request that got two answers."""

    at: float
    """Seconds since 1970."""
    path: str
    pod: str
    """`namespace/name`; empty where neither answer could read it."""
    snapshot: int
    """The number of the snapshot that was asked."""
    nodes: tuple[NodeChange, ...]
    text: str
    """Where the answers part, in words, if no node tells them apart."""


def by_node(verb: Verb, body: bytes) -> dict[str, Told]:
    """What an answer says of each node. `Unavailable` if it is no answer to this verb."""
    return dict(_READERS[verb](body))


def _filtered(body: bytes) -> Mapping[str, Told]:
    answer = extender_wire.decoded(body, Filtered)
    whole = answer.nodes.items or [] if answer.nodes else []
    kept = [str(node["metadata"]["name"]) for node in whole] + list(answer.node_names or ())
    return {**dict.fromkeys(kept, KEPT), **(answer.failed_nodes or {})}


def _scored(body: bytes) -> Mapping[str, Told]:
    return {host_score.host: host_score.score for host_score in extender_wire.decoded(body, list[HostScore])}


def _freed(body: bytes) -> Mapping[str, Told]:
    return dict.fromkeys(extender_wire.decoded(body, Preempted).node_name_to_meta_victims or (), KEPT)


_READERS: Final[Mapping[Verb, Callable[[bytes], Mapping[str, Told]]]] = {
    "filter": _filtered,
    "prioritize": _scored,
    "preempt": _freed,
}


def changes(verb: Verb, recorded: Outcome, replayed: Outcome) -> tuple[NodeChange, ...]:
    """The nodes of which the two say different things; none where one of them is an error."""
    if recorded.error or replayed.error:
        return ()
    try:
        before, after = by_node(verb, recorded.body), by_node(verb, replayed.body)
    except (NodewiseError, LookupError, TypeError, *UNREADABLE):
        return ()
    absent: Told = _REJECTED if verb == "preempt" else None
    every = dict.fromkeys([*before, *after])
    pairs = (NodeChange(node, before.get(node, absent), after.get(node, absent)) for node in every)
    return tuple(change for change in pairs if change.recorded != change.replayed)


def parting(recorded: Outcome, replayed: Outcome) -> str:
    """Where two answers part, in words."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(recorded.body, replayed.body, strict=False))
    )
    start = max(same - _AROUND_BYTES // 2, 0)
    before, after = (_shown(outcome, start) for outcome in (recorded, replayed))
    return f"from byte {same} on: {before} -> {after}"


def _shown(outcome: Outcome, start: int) -> str:
    text = outcome.body[start : start + _AROUND_BYTES].decode(errors="replace")
    return f"{outcome.error} {text!r}".lstrip()
