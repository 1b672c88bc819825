"""The extender's protocol in JSON, from kube-scheduler's side. Source: k8s.io/kube-scheduler v0.36.3 extender/v1.

Answers are read by the exact names of their keys; Go would take them in any case of letters.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from nodewise.errors import Unavailable
from nodewise.simulate.scheduler_objects import Object, Pod

Answer = TypeVar("Answer")


class Victims(NamedTuple):
    """Pods to be evicted from one node, the most important first."""

    pods: tuple[Pod, ...]
    budget_violations: int = 0
    """How many disruption budgets this breaks; the stand-in knows no budgets, an extender may."""


class NodeList(msgspec.Struct):
    items: list[Object] | None = None


class Filtered(msgspec.Struct, rename="pascal"):
    """What filter answers: the nodes that are left, as names or whole, and why others are not."""

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
    """What preempt answers: the nodes that are left, and whom to evict there."""

    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class _NodeItems(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, str] = {}


class _Arguments(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw
    nodes: _NodeItems | None
    node_names: Sequence[str] | None


_ENCODER: Final = msgspec.json.Encoder()


def nodes_request(pod: Pod, whole: Sequence[msgspec.Raw] | None, names: Sequence[str] | None) -> bytes:
    """The body of filter and prioritize; one of the two lists is None."""
    items = None if whole is None else _NodeItems(list(whole))
    return _ENCODER.encode(_Arguments(pod.raw, items, names))


def preempt_request(pod: Pod, victims: Mapping[str, Victims], *, whole: bool) -> bytes:
    """The body of preempt: victims by node, as objects or by uid."""
    by_node = {name: _victims(on_node, whole=whole) for name, on_node in victims.items()}
    fields = ("NodeNameToVictims", "NodeNameToMetaVictims")
    used = fields[0] if whole else fields[1]
    return _ENCODER.encode({"Pod": pod.raw, **dict.fromkeys(fields), used: by_node})


def _victims(victims: Victims, *, whole: bool) -> Object:
    pods = [pod.raw if whole else {"UID": pod.uid} for pod in victims.pods]
    return {"Pods": pods, "NumPDBViolations": victims.budget_violations}


def decoded(body: bytes, kind: type[Answer]) -> Answer:
    """An answer; `null` is an empty one, and what follows the first value is not looked at, as in Go.

    Unavailable where it is none, in Go's words as far as they are the same for every mistake.
    """
    try:
        return msgspec.convert(_first_value(body), kind | None) or kind()
    except msgspec.ValidationError as error:
        raise Unavailable(f"json: cannot unmarshal the answer: {error}") from None


def _first_value(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "trailing characters" not in str(error):
            raise Unavailable(_unreadable(body, str(error))) from None
        text = body.decode(errors="replace").lstrip()
        return json.JSONDecoder().raw_decode(text)[0]


def _unreadable(body: bytes, why: str) -> str:
    text = body.decode(errors="replace").lstrip()
    if not text:
        return "EOF"
    if "truncated" in why:
        return "unexpected EOF"
    if text[0] not in '{["-0123456789tfn':
        return f"invalid character '{text[0]}' looking for beginning of value"
    return f"json: {why}"
