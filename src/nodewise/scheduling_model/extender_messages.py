"""JSON messages of the extender protocol, from the scheduler's side. Source: k8s.io/kube-scheduler v0.36.3 extender/v1.

Keys of responses are case-sensitive here; Go ignores case.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from nodewise.base.errors import Unavailable
from nodewise.scheduling_model.parsed_nodes_and_pods import Object, Pod

Answer = TypeVar("Answer")


class Victims(NamedTuple):
    """Pods to evict from one node, the most important first."""

    pods: tuple[Pod, ...]
    budget_violations: int = 0
    """Number of violated disruption budgets; the simulated scheduler has no budgets, an extender may report some."""


class NodeList(msgspec.Struct):
    items: list[Object] | None = None


class Filtered(msgspec.Struct, rename="pascal"):
    """Response of filter: the feasible nodes, as names or whole, and reasons for the others."""

    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str | None = None


class HostScore(msgspec.Struct, rename="pascal"):
    host: str = ""
    score: int = 0


class MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct):
    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Preempted(msgspec.Struct, rename="pascal"):
    """Response of preempt: the remaining nodes with their victims."""

    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class _NodeItems(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, str] = {}


class _Arguments(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw
    nodes: _NodeItems | None
    node_names: Sequence[str] | None


_ENCODER: Final = msgspec.json.Encoder()


def encode_nodes_request(pod: Pod, whole: Sequence[msgspec.Raw] | None, names: Sequence[str] | None) -> bytes:
    """Encode the request of filter and prioritize; exactly one of the two lists is None."""
    items = None if whole is None else _NodeItems(list(whole))
    return _ENCODER.encode(_Arguments(pod.raw, items, names))


def encode_preempt_request(pod: Pod, victims: Mapping[str, Victims], *, whole: bool) -> bytes:
    """Encode the request of preempt: victims by node, as whole objects or as uids."""
    by_node = {name: _encode_victims(on_node, whole=whole) for name, on_node in victims.items()}
    fields = ("NodeNameToVictims", "NodeNameToMetaVictims")
    used = fields[0] if whole else fields[1]
    return _ENCODER.encode({"Pod": pod.raw, **dict.fromkeys(fields), used: by_node})


def _encode_victims(victims: Victims, *, whole: bool) -> Object:
    pods = [pod.raw if whole else {"UID": pod.uid} for pod in victims.pods]
    return {"Pods": pods, "NumPDBViolations": victims.budget_violations}


def decode(body: bytes, kind: type[Answer]) -> Answer:
    """Decode a response; `null` is an empty one, and data after the first JSON value is ignored, as in Go.

    Unavailable for an invalid response, with Go's message where that does not depend on the position of the error.
    """
    try:
        return msgspec.convert(_cut_first_json_value(body), kind | None) or kind()
    except msgspec.ValidationError as error:
        raise Unavailable(f"json: cannot unmarshal the answer: {error}") from None


def _cut_first_json_value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "trailing characters" not in str(error):
            raise Unavailable(_unreadable_response_error(body, str(error))) from None
        text = body.decode(errors="replace").lstrip()
        return json.JSONDecoder().raw_decode(text)[0]


def _unreadable_response_error(body: bytes, why: str) -> str:
    text = body.decode(errors="replace").lstrip()
    if not text:
        return "EOF"
    if "truncated" in why:
        return "unexpected EOF"
    if text[0] not in '{["-0123456789tfn':
        return f"invalid character '{text[0]}' looking for beginning of value"
    return f"json: {why}"
