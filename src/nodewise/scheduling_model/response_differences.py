"""Comparison of two responses to the same request: byte by byte, and for different ones node by node."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, NodewiseError
from nodewise.engine.decision import Verb
from nodewise.scheduling_model import extender_client
from nodewise.scheduling_model.extender_client import Filtered, HostScore, Preempted

KEPT: Final = "kept"
_REJECTED: Final = "rejected"
_AROUND_BYTES: Final = 40

NodeResult = str | int | None
"""Result for a node in a response: `kept`, the reason of its rejection, or its score; None if it is not named."""


class ExtenderResponse(NamedTuple):
    """A response: its body; for an error, the error class and the message as body."""

    body: bytes
    error: str = ""


class NodeChange(NamedTuple):
    """One node with different results in the two responses."""

    node: str
    recorded: NodeResult
    replayed: NodeResult


class Difference(msgspec.Struct, frozen=True):
    """A request with two different responses."""

    at: float
    """Seconds since 1970."""
    path: str
    pod: str
    """`namespace/name`; empty if the pod could not be decoded."""
    snapshot: int
    """Generation of the snapshot."""
    nodes: tuple[NodeChange, ...]
    text: str
    """Description of the first different bytes, if all node results are equal."""


def results_by_node(verb: Verb, body: bytes) -> dict[str, NodeResult]:
    """Results by node. Unavailable if the body is no response to this verb."""
    return dict(_READERS[verb](body))


def _filter_results(body: bytes) -> Mapping[str, NodeResult]:
    answer = extender_client.decode(body, Filtered)
    whole = answer.nodes.items or [] if answer.nodes else []
    kept = [str(node["metadata"]["name"]) for node in whole] + list(answer.node_names or ())
    return {**dict.fromkeys(kept, KEPT), **_rejected_nodes(answer)}


def _rejected_nodes(answer: Filtered) -> dict[str, str]:
    return {**(answer.failed_nodes or {}), **(answer.failed_and_unresolvable_nodes or {})}


def _prioritize_results(body: bytes) -> Mapping[str, NodeResult]:
    return {
        host_score.host: host_score.score for host_score in extender_client.decode(body, list[HostScore])
    }


def _preempt_results(body: bytes) -> Mapping[str, NodeResult]:
    return dict.fromkeys(extender_client.decode(body, Preempted).node_name_to_meta_victims or (), KEPT)


_READERS: Final[Mapping[Verb, Callable[[bytes], Mapping[str, NodeResult]]]] = {
    "filter": _filter_results,
    "prioritize": _prioritize_results,
    "preempt": _preempt_results,
}


def are_same(verb: Verb, recorded: ExtenderResponse, replayed: ExtenderResponse) -> bool:
    """Whether two responses are equal byte by byte.

    The recorded response of an older version, which has all rejected nodes in `FailedNodes`, is also the same if only
    that differs.
    """
    if recorded == replayed:
        return True
    if verb != "filter" or recorded.error or replayed.error:
        return False
    try:
        before, after = (extender_client.decode(each.body, Filtered) for each in (recorded, replayed))
    except (NodewiseError, *UNREADABLE):
        return False
    if before.failed_and_unresolvable_nodes is not None:
        return False
    in_one_map = msgspec.structs.replace(
        after, failed_nodes=_rejected_nodes(after), failed_and_unresolvable_nodes=None
    )
    return after.failed_nodes is not None and before == in_one_map


def changes(verb: Verb, recorded: ExtenderResponse, replayed: ExtenderResponse) -> tuple[NodeChange, ...]:
    """The nodes with different results; empty if one of the responses is an error."""
    if recorded.error or replayed.error:
        return ()
    try:
        before, after = results_by_node(verb, recorded.body), results_by_node(verb, replayed.body)
    except (NodewiseError, LookupError, TypeError, *UNREADABLE):
        return ()
    absent: NodeResult = _REJECTED if verb == "preempt" else None
    every = dict.fromkeys([*before, *after])
    pairs = (NodeChange(node, before.get(node, absent), after.get(node, absent)) for node in every)
    return tuple(change for change in pairs if change.recorded != change.replayed)


def first_difference(recorded: ExtenderResponse, replayed: ExtenderResponse) -> str:
    """Describe the first different bytes of two responses."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(recorded.body, replayed.body, strict=False))
    )
    start = max(same - _AROUND_BYTES // 2, 0)
    before, after = (_format_response_excerpt(outcome, start) for outcome in (recorded, replayed))
    return f"from byte {same} on: {before} -> {after}"


def _format_response_excerpt(outcome: ExtenderResponse, start: int) -> str:
    text = outcome.body[start : start + _AROUND_BYTES].decode(errors="replace")
    return f"{outcome.error} {text!r}".lstrip()
