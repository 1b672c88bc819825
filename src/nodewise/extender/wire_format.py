"""The wire format of the scheduler extender protocol, v1: requests from bytes, responses to bytes.

Source: k8s.io/kube-scheduler v0.36 `extender/v1/types.go`. The structs there carry no JSON tags, so keys are Go
names. Node objects are kept and passed back as bytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine.decision import Decision
from nodewise.extender import lenient_request_decoder, node_name_json, request_limits
from nodewise.metrics.node_index import Names, NodeIndex

PodT = TypeVar("PodT", bound=msgspec.Struct)


class NodeList(msgspec.Struct):
    """Whole nodes, each as bytes."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, Generic[PodT], rename="pascal"):
    """The request of filter and prioritize: the pod, and whole nodes or names."""

    pod: PodT | None = None
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class _MetaPod(msgspec.Struct, gc=False):
    UID: str = ""


class MetaVictims(msgspec.Struct, rename="pascal", gc=False):
    """The pods that would be evicted from a node, by uid."""

    pods: list[_MetaPod] | None = None
    num_PDB_violations: int = msgspec.field(default=0, name="NumPDBViolations")  # noqa: N815


class _Uid(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _VictimPod(msgspec.Struct, gc=False):
    metadata: _Uid = _Uid()


class WholeVictims(msgspec.Struct, rename="pascal", gc=False):
    """The pods that would be evicted, whole: from a scheduler whose extender entry is not nodeCacheCapable."""

    pods: list[_VictimPod] | None = None
    num_PDB_violations: int = msgspec.field(default=0, name="NumPDBViolations")  # noqa: N815


class PreemptionArgs(msgspec.Struct, Generic[PodT], rename="pascal"):
    """The request of preempt: the victims by node."""

    pod: PodT | None = None
    node_name_to_victims: dict[str, WholeVictims | None] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class BindingArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """The request of bind: a pod and its node."""

    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = ""


class CandidateRequest(msgspec.Struct, Generic[PodT], frozen=True):
    """A decoded filter or prioritize request."""

    pod: PodT
    names: Names
    nodes: list[msgspec.Raw] | None
    """The whole nodes in the same order, if they came whole."""


class PreemptionRequest(msgspec.Struct, Generic[PodT], frozen=True):
    """A decoded preempt request."""

    pod: PodT
    victims: Mapping[str, MetaVictims]
    """By node name."""

    def uids(self) -> dict[str, frozenset[str]]:
        """The uids of the victims, by node name."""
        return {
            node: frozenset(pod.UID for pod in victims.pods or ()) for node, victims in self.victims.items()
        }


_encode: Final = msgspec.json.Encoder().encode
_read_binding: Final = msgspec.json.Decoder(BindingArgs)
_read_node: Final = msgspec.json.Decoder(request_limits.NamedNode).decode
_ARGS: Final = "an ExtenderArgs object"
_NULL: Final = msgspec.Raw(b"null")
_GO_NODE: Final = re.compile(rb'\{"metadata":\{"name":"([ !#-\[\]-~]*+)"').match
"""The beginning of a Node from kube-scheduler's cache as Go encodes it: the name without decoding the rest."""


class RequestDecoder(Generic[PodT]):
    """Decodes requests. `pod_type` has the merged fields of all agents."""

    def __init__(self, pod_type: type[PodT]) -> None:
        self._args = msgspec.json.Decoder(ExtenderArgs[pod_type])  # type: ignore[valid-type]
        self._preemption = msgspec.json.Decoder(PreemptionArgs[pod_type])  # type: ignore[valid-type]

    def decode_candidates(self, body: bytes, index: NodeIndex) -> CandidateRequest[PodT]:
        """A filter or prioritize request, its names found in the index. `BadInput` names the field that is wrong."""
        request_limits.check_candidate_count_and_pod_size(body)
        args: ExtenderArgs[PodT] = _decode(self._args, body, _lacks_candidates)
        pod = _require_field(args.pod, "Pod", "a Pod")
        if args.nodes is not None:
            raw = args.nodes.items or []
            request_limits.check_node_count(len(raw))
            names = _decode_node_names(raw)
            return CandidateRequest(pod, index.named(names), raw)
        if args.node_names == _NULL:
            raise BadInput("request", [Problem("Nodes", "null or absent", "Nodes or NodeNames")])
        listed = bytes(args.node_names)
        request_limits.check_name_count(listed)
        try:
            return CandidateRequest(pod, index.read(listed), None)
        except UNREADABLE as error:
            raise BadInput(
                "request", [_problem_of_msgspec_error(error, "NodeNames", "a list of names")]
            ) from error

    def decode_preemption(self, body: bytes) -> PreemptionRequest[PodT]:
        """A preempt request. `BadInput` names the field that is wrong."""
        request_limits.check_victim_count(body)
        args: PreemptionArgs[PodT] = _decode(self._preemption, body, _lacks_victims)
        pod = _require_field(args.pod, "Pod", "a Pod")
        if args.node_name_to_meta_victims is not None:
            victims_by_node = {
                node: victims or MetaVictims() for node, victims in args.node_name_to_meta_victims.items()
            }
            return PreemptionRequest(pod, victims_by_node)
        whole = _require_field(args.node_name_to_victims, "NodeNameToVictims", "victims by node name")
        return PreemptionRequest(
            pod, {node: _to_meta_victims(victims or WholeVictims()) for node, victims in whole.items()}
        )


class _NodesOnly(msgspec.Struct, rename="pascal"):
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


_read_nodes: Final = msgspec.json.Decoder(_NodesOnly)


class NodeDecoder(Generic[PodT]):
    """Decodes the whole nodes of a request. `node_type` has the merged fields of all agents."""

    def __init__(self, node_type: type[PodT]) -> None:
        self._decode = msgspec.json.Decoder(node_type).decode

    def nodes(self, body: bytes) -> list[PodT] | None:
        """The nodes in the order of the request; None if it has only names. `BadInput` names the wrong one."""
        request_limits.check_candidate_count_and_pod_size(body)
        args: _NodesOnly = _decode(_read_nodes, body, lambda args: args.nodes is None)
        if args.nodes is None:
            return None if args.node_names != _NULL else []
        raw = args.nodes.items or []
        request_limits.check_node_count(len(raw))
        complete = [lenient_request_decoder.is_complete(node) for node in raw]
        _check_lenient_node_count(len(complete) - sum(complete))
        return [self._decode_node(number, node, complete[number]) for number, node in enumerate(raw)]

    def _decode_node(self, number: int, raw: msgspec.Raw, is_complete: bool) -> PodT:
        try:
            return self._decode(
                raw
                if is_complete
                else lenient_request_decoder.rename_keys(bytes(raw), lenient_request_decoder.NODE)
            )
        except UNREADABLE as error:
            raise BadInput(
                "request", [_problem_of_msgspec_error(error, f"Nodes.items[{number}]", "a Node")]
            ) from error


def decode_binding(body: bytes) -> BindingArgs:
    """A bind request. `BadInput` names each field that is wrong."""
    args: BindingArgs = _decode(_read_binding, body, _lacks_binding_fields, "an ExtenderBindingArgs object")
    values = dict(zip(lenient_request_decoder.BINDING, msgspec.structs.astuple(args), strict=True))
    problems = [Problem(field, "empty or absent", "a name") for field, value in values.items() if not value]
    if problems:
        raise BadInput("request", problems)
    return args


def _lacks_binding_fields(args: BindingArgs) -> bool:
    return "" in msgspec.structs.astuple(args)


def _lacks_candidates(args: ExtenderArgs[Any]) -> bool:
    return args.pod is None or (args.nodes is None and args.node_names == _NULL)


def _lacks_victims(args: PreemptionArgs[Any]) -> bool:
    return args.pod is None or (args.node_name_to_meta_victims is None and args.node_name_to_victims is None)


def _to_meta_victims(victims: WholeVictims) -> MetaVictims:
    pods = [_MetaPod(pod.metadata.uid) for pod in victims.pods or []]
    return MetaVictims(pods, victims.num_PDB_violations)


def _require_field(value: Any, field: str, wanted: str) -> Any:
    if value is None:
        raise BadInput("request", [Problem(field, "null or absent", wanted)])
    return value


def _decode_node_names(nodes: Sequence[msgspec.Raw]) -> list[str]:
    names: list[str] = []
    odd = 0
    for number, node in enumerate(nodes):
        if match := _GO_NODE(node):
            names.append(match[1].decode())
            continue
        try:
            names.append(_read_node(node).metadata.name)
        except UNREADABLE:
            odd += 1
            _check_lenient_node_count(odd)
            names.append(_decode_node_name_leniently(number, node))
    return names


def _decode_node_name_leniently(number: int, node: msgspec.Raw) -> str:
    try:
        return _read_node(
            lenient_request_decoder.rename_keys(bytes(node), lenient_request_decoder.NODE_NAME)
        ).metadata.name
    except UNREADABLE as error:
        raise BadInput(
            "request", [_problem_of_msgspec_error(error, f"Nodes.items[{number}]", "a Node")]
        ) from error


def _check_lenient_node_count(count: int) -> None:
    if count > lenient_request_decoder.MOST_NODES:
        text = f"{count} nodes without the keys of a Node in their right case"
        raise BadInput(
            "request", [Problem("Nodes.items", text, f"at most {lenient_request_decoder.MOST_NODES}")]
        )


def _problem_of_msgspec_error(error: Exception, at: str, wanted: str) -> Problem:
    """A problem from an error of msgspec, whose text ends in `- at `$.path``: the path becomes part of the field."""
    text, _, path = str(error).partition(" - at `$")
    steps = path.rstrip("`").replace("[...]", "[*]")
    return Problem((at + steps).lstrip(".") or "body", text, wanted)


def _decode(decoder: Any, body: bytes, incomplete: Callable[[Any], bool], wanted: str = _ARGS) -> Any:
    """Decode strictly first, and leniently what only Go accepts: keys in other case, trailing bytes."""
    try:
        args = decoder.decode(body)
    except UNREADABLE as error:
        end = request_limits.find_end_of_value(error, body)
        if end is not None:
            return _decode(decoder, body[:end], incomplete, wanted)
        rewritten = lenient_request_decoder.normalize_request_json(body)
        if rewritten is None:
            raise BadInput("request", [_problem_of_msgspec_error(error, "", wanted)]) from error
    else:
        if not incomplete(args):
            return args
        rewritten = lenient_request_decoder.normalize_request_json(body)
        if rewritten is None:
            return args
    try:
        return decoder.decode(rewritten)
    except UNREADABLE as error:
        raise BadInput("request", [_problem_of_msgspec_error(error, "", wanted)]) from error


def filter_response(request: CandidateRequest[Any], decision: Decision) -> list[bytes]:
    """ExtenderFilterResult in parts: names for names, whole nodes (the bytes of the request) for whole nodes.

    `FailedNodes` is null if no agent has a verdict. Where evicting pods cannot help, a rejected node is in
    `FailedAndUnresolvableNodes` instead, which is null if it is empty. kube-scheduler leaves these nodes out of
    preemption; up to 1.37 it otherwise reports an error for each of them (kubernetes/kubernetes#139270).
    """
    kept = decision.feasible()
    failed = unresolvable = b"null"
    if not all(verdict.only_observes for _, verdict in decision.verdicts):
        for_good = decision.unresolvable()
        failed = _encode_failed_nodes(decision, ~(kept | for_good))
        if for_good.any():
            unresolvable = _encode_failed_nodes(decision, for_good)
    tail = b',"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}\n' % (failed, unresolvable)
    if request.nodes is None:
        names = node_name_json.encode_name_list(decision.names, np.flatnonzero(kept))
        return [b'{"Nodes":null,"NodeNames":', names, tail]
    parts: list[bytes] = [b","] * (2 * int(np.count_nonzero(kept)))
    parts[1::2] = [request.nodes[position] for position in np.flatnonzero(kept).tolist()]
    return [b'{"Nodes":{"metadata":{},"items":[', *parts[1:], b']},"NodeNames":null', tail]


def _encode_failed_nodes(decision: Decision, rejected: NDArray[np.bool_]) -> bytes:
    """Each of these rejected nodes with the reason of the first agent that rejects it, grouped by reason."""
    parts: list[bytes] = []
    if not rejected.any():
        return b"{}"
    left = rejected.copy()
    for _, verdict in decision.verdicts:
        codes = np.where(left, verdict.codes, 0)
        left &= codes == 0
        for code, reason in enumerate(verdict.reasons, 1):
            chosen = np.flatnonzero(codes == code)
            if len(chosen):
                parts.append(node_name_json.encode_name_map(decision.names, chosen, _encode(reason.text())))
    return b"{" + b",".join(parts) + b"}"


def prioritize_response(decision: Decision) -> bytes:
    """HostPriorityList: every candidate, with 0 if no agent scores it."""
    return node_name_json.encode_host_priority_list(decision.names, decision.points())


def preempt_response(request: PreemptionRequest[Any], decision: Decision) -> bytes:
    """ExtenderPreemptionResult: the nodes that accept the pod without the victims, with the same victims.

    kube-scheduler 1.38 also sends nodes without victims, so that an extender adds some. Such a node is left out if an
    agent still rejects it. Otherwise it comes back unchanged for the next extender, and kube-scheduler drops it if no
    extender adds victims (kubernetes v1.38 pkg/scheduler/framework/preemption `callExtenders`).
    """
    victims = {name: request.victims[name] for name in decision.names[decision.feasible()].tolist()}
    return _encode({"NodeNameToMetaVictims": victims}) + b"\n"


def bind_response(error: str) -> bytes:
    """ExtenderBindingResult; an empty error is success."""
    return _encode({"Error": error}) + b"\n"
