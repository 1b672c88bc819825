"""The wire format of the scheduler extender protocol, v1: requests from bytes, responses to bytes.

Requests are limited before they are decoded, and decoded leniently, as Go's JSON decoder does.

Source: k8s.io/kube-scheduler v0.36 `extender/v1/types.go`. The structs there carry no JSON tags, so keys are Go
names. Node objects are kept and passed back as bytes.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agent import MAX_SCORE
from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine.decision import Decision
from nodewise.metrics import node_index
from nodewise.metrics.node_index import Names, NameTable, NodeIndex, Numbers

MOST_CANDIDATES: Final = 2**18
"""Nodes of one request. Kubernetes supports 5,000."""
_SMALL_BYTES: Final = 2**20
_MOST_POD_BYTES: Final = 2**22
"""Of the pod; etcd accepts 1.5 MiB."""
MOST_VALUES: Final = 3 * 2**19
"""Commas in a body, about as many as values, up to which the body is decoded without further checks. 5,000 whole nodes
of 10 kB have little more than half of it.
"""
_MOST_VICTIMS: Final = 2**22
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)").search
_COMMA, _QUOTE, _BACKSLASH = b',"\\'
_PIECE_BYTES: Final = 2**18
_ARGS: Final = "an ExtenderArgs object"
_SAMPLED: Final = 8
"""An estimate counts one of this many parts of each piece."""


class _Metadata(msgspec.Struct, gc=False):
    name: str


class NamedNode(msgspec.Struct, gc=False):
    """The field of a whole node that is used."""

    metadata: _Metadata


class _NodeList(msgspec.Struct):
    items: list[NamedNode] | None = None


class _Outline(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw = msgspec.Raw()
    nodes: _NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw()


_outline: Final = msgspec.json.Decoder(_Outline).decode


def check_candidate_count_and_pod_size(body: bytes) -> None:
    """`BadInput` for a filter or prioritize request of more than `MOST_CANDIDATES`, or with a pod that is too large."""
    if len(body) <= _SMALL_BYTES or _count_byte(body, _COMMA, _SAMPLED) <= MOST_VALUES:
        return
    try:
        outline = _decode_outline(body)
    except UNREADABLE as error:
        raise _bad_field("", error, _ARGS) from error
    check_node_count(len(outline.nodes.items or ()) if outline.nodes else 0)
    check_name_count(bytes(outline.node_names))
    if len(outline.pod) > _MOST_POD_BYTES:
        raise _bad_request("Pod", f"{len(outline.pod)} bytes", f"at most {_MOST_POD_BYTES}")


def _decode_outline(body: bytes) -> _Outline:
    """The outline of the first JSON value; Go ignores what follows it."""
    try:
        return _outline(body)
    except UNREADABLE as error:
        end = find_end_of_value(error, body)
        if end is None:
            raise
        return _outline(body[:end])


def find_end_of_value(error: Exception, body: bytes) -> int | None:
    """The end of the first JSON value of the body, if the error is about bytes after it; else None."""
    match = _TRAILING(str(error))
    # msgspec counts the byte that it did not expect
    return int(match[1]) - 1 if match and 0 < int(match[1]) <= len(body) else None


def _bad_field(field: str, error: Exception, expected: str) -> BadInput:
    """The error of a field from an error of msgspec, whose text ends in `- at `$.path``, a path below the field."""
    text, _, path = str(error).partition(" - at `$")
    steps = path.rstrip("`").replace("[...]", "[*]")
    return _bad_request((field + steps).lstrip(".") or "body", text, expected)


def check_node_count(count: int) -> None:
    """`BadInput` for too many whole nodes."""
    if count > MOST_CANDIDATES:
        raise _bad_request("Nodes.items", f"{count} nodes", f"at most {MOST_CANDIDATES}")


def check_name_count(listed: bytes) -> None:
    """`BadInput` for a JSON list of too many names, or of as many other values."""
    if len(listed) <= 2 * MOST_CANDIDATES:
        return
    count = max(_count_byte(listed, _QUOTE) // 2, _count_byte(listed, _COMMA) + 1)
    if count > MOST_CANDIDATES:
        raise _bad_request("NodeNames", f"{count} names", f"at most {MOST_CANDIDATES}")


def check_victim_count(body: bytes) -> None:
    """`BadInput` for a preempt request of too many values."""
    if len(body) > _SMALL_BYTES and (values := _count_byte(body, _COMMA)) > _MOST_VICTIMS:
        raise _bad_request("body", f"{values} values", f"at most {_MOST_VICTIMS}")


def _bad_request(field: str, seen: str, wanted: str) -> BadInput:
    return BadInput("request", [Problem(field, seen, wanted)])


def _count_byte(data: bytes | memoryview, byte: int, sampled: int = 1) -> int:
    """Number of occurrences of a byte, counted in pieces that fit into the CPU's cache: a third of the time.

    With `sampled`, an estimate from one of so many parts of each piece, at random, which a client cannot predict.
    """
    values: Any = np.frombuffer(data, np.uint8)
    size = _PIECE_BYTES // sampled
    pieces = range(0, len(values), _PIECE_BYTES)
    starts = (start + size * random.randrange(sampled) for start in pieces)  # noqa: S311 - no secret
    return sampled * sum(int(np.count_nonzero(values[start : start + size] == byte)) for start in starts)


MOST_BYTES: Final = 2**26
"""Longest body whose keys are matched in any case, bytes: 5,000 whole nodes have 52 MB. Each level of keys is copied
once more.
"""
MOST_KEYS: Final = 1024
"""Keys of an object whose keys are renamed; an object with more is left unchanged."""
MOST_NODES: Final = 2**14
"""Whole nodes of one request with keys in other case: three times as many as Kubernetes supports."""

Shape = Mapping[str, Any]
"""Keys in their right case that lead to the fields in use; an empty shape stands for a value that is not changed."""

NODE_NAME: Final[Shape] = {"metadata": {"name": {}}}
NODE: Final[Shape] = {
    "metadata": {"name": {}, "annotations": {}, "labels": {}},
    "status": {"allocatable": {}, "capacity": {}},
}
_CONTAINERS: Final[Shape] = {"name": {}, "resources": {"requests": {}, "limits": {}}, "restartPolicy": {}}
BINDING: Final[Shape] = {"PodName": {}, "PodNamespace": {}, "PodUID": {}, "Node": {}}
REQUEST: Final[Shape] = {
    **BINDING,
    "Pod": {
        "metadata": {"name": {}, "namespace": {}, "uid": {}, "labels": {}, "annotations": {}},
        "spec": {"containers": _CONTAINERS, "initContainers": _CONTAINERS},
    },
    "Nodes": {"items": {}},
    "NodeNames": {},
    "NodeNameToVictims": {},
    "NodeNameToMetaVictims": {},
}


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _NodeMetadata(msgspec.Struct, frozen=True, gc=False):
    name: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    annotations: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    labels: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    capacity: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _NodeKeys(msgspec.Struct, frozen=True, gc=False):
    metadata: _NodeMetadata = _NodeMetadata()
    status: _NodeStatus = _NodeStatus()


_node_keys: Final = msgspec.json.Decoder(_NodeKeys).decode


def normalize_request_json(body: bytes) -> bytes | None:
    """The body with the keys of `REQUEST` in their right case and without trailing bytes; None if that changes nothing.

    `BadInput` for a body with too many bytes or values: it costs a pass over the body, and a copy for each level of
    keys.
    """
    size = ""
    if len(body) > MOST_BYTES:
        size = f"{len(body)} bytes"
    elif len(body) > _SMALL_BYTES and (values := _count_byte(body, _COMMA)) > MOST_VALUES:
        size = f"{values} values"
    if size:
        expected = "a smaller body, or all keys spelt as kube-scheduler spells them"
        raise _bad_request("body", f"{size} and a key that is missing or in other case", expected)
    rewritten = rename_keys(body.strip(), REQUEST)
    return None if rewritten == body else rewritten


def is_complete(node: msgspec.Raw) -> bool:
    """Whether a whole node has all keys that agents read, in their right case."""
    try:
        keys = _node_keys(node)
    except UNREADABLE:
        return False
    values = (*msgspec.structs.astuple(keys.metadata), *msgspec.structs.astuple(keys.status))
    return msgspec.UNSET not in values


def rename_keys(raw: bytes, shape: Shape) -> bytes:
    """An object, or each object of a list, with its keys as in `shape`, recursively; anything else unchanged.

    A list inside a list is not changed either: it holds no field in use, and each level would be a copy.
    """
    if not shape:
        return raw
    try:
        if raw[:1] == b"[":
            items = map(bytes, _items(raw))
            return _encode(
                [msgspec.Raw(item if item[:1] == b"[" else rename_keys(item, shape)) for item in items]
            )
        fields = _fields(raw)
    except UNREADABLE:
        return raw
    if len(fields) > MOST_KEYS:
        return raw
    known = {key.lower(): key for key in shape}
    renamed: dict[str, msgspec.Raw] = {}
    for key, value in fields.items():
        name = known.get(key.lower(), key)
        inner = shape.get(name)
        renamed[name] = msgspec.Raw(rename_keys(bytes(value), inner)) if inner else value
    return _encode(renamed)


_HOST, _SCORE = b'{"Host":', b'"Score":'
_SCORES: Final = [b"%d}" % score for score in range(MAX_SCORE + 1)]


def _as_words(texts: Sequence[bytes]) -> NDArray[np.uint64]:
    """The texts as rows of words, with spaces before them, which JSON allows between its parts."""
    width = -(-max(map(len, texts)) // 8) * 8
    return np.frombuffer(b"".join(text.rjust(width) for text in texts), np.uint64).reshape(len(texts), -1)


_HOST_WORDS, _SCORE_WORDS = _as_words([_HOST])[0], _as_words([_SCORE + _SCORES[0].rjust(7) + b","])[0]
_SCORE_ENDS: Final = _as_words([score + b"," for score in _SCORES])[:, 0]
"""The last word of a node with its score."""
_COMMA_TO_COLON: Final = np.frombuffer(bytes(7) + bytes([ord(",") ^ ord(":")]), np.uint64)
"""Changes the last byte of a word."""
Part = bytes | memoryview
"""A part of a response. Arrays are not copied."""


def _encoded_name_table(names: Names) -> NameTable | None:
    """The table of the index; None if it lacks one, or one of the names."""
    return None if names.strange or not len(names) else names.index.table


def _quote_names_at_positions(names: Names, positions: Numbers) -> list[bytes]:
    return [b'"%b"' % name for name in node_index.encode_names(names[positions].tolist())]


def _without_last_comma(rows: NDArray[np.uint64]) -> memoryview:
    return rows.reshape(-1).view(np.uint8).data[:-1]


def encode_name_list(names: Names, positions: Numbers) -> list[Part]:
    """`["a","b"]` for the names at these positions, in parts."""
    table = _encoded_name_table(names)
    if table is None or not len(positions):
        return [b"[" + b",".join(_quote_names_at_positions(names, positions)) + b"]"]
    return [b"[", _without_last_comma(table.text(names.numbers.take(positions))), b"]"]


def encode_name_map(names: Names, positions: Numbers, value: bytes) -> Part:
    """`"a":value,"b":value` without braces; `value` is JSON. At least one position."""
    table = _encoded_name_table(names)
    if table is None:
        return (b":" + value + b",").join(_quote_names_at_positions(names, positions)) + b":" + value
    text, end = table.text(names.numbers.take(positions)), _as_words([value + b","])
    text[:, -1] ^= _COMMA_TO_COLON
    rows = np.empty((len(text), text.shape[1] + end.shape[1]), np.uint64)
    rows[:, : text.shape[1]] = text
    rows[:, text.shape[1] :] = end
    return _without_last_comma(rows)


def encode_host_priority_list(names: Names, points: NDArray[np.int64]) -> list[Part]:
    """A HostPriorityList: `[{"Host":"a","Score":10},{"Host":"b","Score":0}]` with a newline, in parts."""
    table = _encoded_name_table(names)
    if table is None:
        quoted = _quote_names_at_positions(names, np.arange(len(names)))
        parts = [
            _HOST + name + b"," + _SCORE + _SCORES[score]
            for name, score in zip(quoted, points.tolist(), strict=True)
        ]
        return [b"[" + b",".join(parts) + b"]\n"]
    rows = table.framed_text(_HOST_WORDS, _SCORE_WORDS, names.numbers)
    rows[:, -1] = _SCORE_ENDS.take(points)
    return [b"[", _without_last_comma(rows), b"]\n"]


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
_read_node: Final = msgspec.json.Decoder(NamedNode).decode
_NULL, _EMPTY = msgspec.Raw(b"null"), msgspec.Raw(b"[]")
_NAMES_KEY: Final = re.compile(rb'"NodeNames": ?\[').search
_MOST_BYTES_BEFORE_NAMES: Final = 2**18
_GO_NODE: Final = re.compile(rb'\{"metadata":\{"name":"([ !#-\[\]-~]*+)"').match
"""The beginning of a Node from kube-scheduler's cache as Go encodes it: the name without decoding the rest."""


class RequestDecoder(Generic[PodT]):
    """Decodes requests. `pod_type` has the merged fields of all agents."""

    def __init__(self, pod_type: type[PodT]) -> None:
        self._args = msgspec.json.Decoder(ExtenderArgs[pod_type])  # type: ignore[valid-type]
        self._preemption = msgspec.json.Decoder(PreemptionArgs[pod_type])  # type: ignore[valid-type]

    def decode_candidates(self, body: bytes, index: NodeIndex) -> CandidateRequest[PodT]:
        """A filter or prioritize request, its names found in the index. `BadInput` names the field that is wrong."""
        request = self._decode_known_names(body, index)
        if request is not None:
            return request
        check_candidate_count_and_pod_size(body)
        args: ExtenderArgs[PodT] = _decode(self._args, body, _lacks_candidates)
        pod = _require_field(args.pod, "Pod", "a Pod")
        if args.nodes is not None:
            raw = args.nodes.items or []
            check_node_count(len(raw))
            names = _decode_node_names(raw)
            return CandidateRequest(pod, index.named(names), raw)
        if args.node_names == _NULL:
            raise _bad_request("Nodes", "null or absent", "Nodes or NodeNames")
        listed = bytes(args.node_names)
        check_name_count(listed)
        try:
            return CandidateRequest(pod, index.read(listed), None)
        except UNREADABLE as error:
            raise _bad_field("NodeNames", error, "a list of names") from error

    def _decode_known_names(self, body: bytes, index: NodeIndex) -> CandidateRequest[PodT] | None:
        """The request if it ends with a list of known names, as those of kube-scheduler do; else None.

        The list is not decoded but compared with the names of the index. The text before it is decoded with an empty
        list in its place, so it is valid JSON, and the list is the value of this key and not part of another value.
        """
        key = _NAMES_KEY(body, 0, _MOST_BYTES_BEFORE_NAMES)
        if key is None or not body.endswith(b"]}") or len(body) > MOST_BYTES:
            return None
        if body[key.start() - 1] == _BACKSLASH:  # a key that ends with this text
            return None
        start = key.end() - 1
        listed = memoryview(body)[start:]
        # as in `check_name_count`, before memory is needed for each name
        if (
            len(listed) > MOST_CANDIDATES * index.least_bytes
            and _count_byte(listed, _COMMA) >= MOST_CANDIDATES
        ):
            return None
        names = index.find(body, start, len(body) - 1)
        if names is None:
            return None
        try:
            args: ExtenderArgs[PodT] = self._args.decode(body[:start] + b"[]}")
        except UNREADABLE:
            return None
        if args.pod is None or args.nodes is not None or args.node_names != _EMPTY:
            return None
        return CandidateRequest(args.pod, names, None)

    def decode_preemption(self, body: bytes) -> PreemptionRequest[PodT]:
        """A preempt request. `BadInput` names the field that is wrong."""
        check_victim_count(body)
        args: PreemptionArgs[PodT] = _decode(self._preemption, body, _lacks_victims)
        pod = _require_field(args.pod, "Pod", "a Pod")
        if args.node_name_to_meta_victims is not None:
            by_node = args.node_name_to_meta_victims.items()
            return PreemptionRequest(pod, {node: victims or MetaVictims() for node, victims in by_node})
        whole = _require_field(args.node_name_to_victims, "NodeNameToVictims", "victims by node name")
        victims_by_node = {}
        for node, victims in whole.items():
            pods = [_MetaPod(pod.metadata.uid) for pod in (victims.pods if victims else None) or []]
            victims_by_node[node] = MetaVictims(pods, victims.num_PDB_violations if victims else 0)
        return PreemptionRequest(pod, victims_by_node)


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
        check_candidate_count_and_pod_size(body)
        args: _NodesOnly = _decode(_read_nodes, body, lambda args: args.nodes is None)
        if args.nodes is None:
            return None if args.node_names != _NULL else []
        raw = args.nodes.items or []
        check_node_count(len(raw))
        complete = [is_complete(node) for node in raw]
        _check_lenient_node_count(len(complete) - sum(complete))
        nodes = []
        for number, node in enumerate(raw):
            try:
                nodes.append(self._decode(node if complete[number] else rename_keys(bytes(node), NODE)))
            except UNREADABLE as error:
                raise _bad_field(f"Nodes.items[{number}]", error, "a Node") from error
        return nodes


def decode_binding(body: bytes) -> BindingArgs:
    """A bind request. `BadInput` names each field that is wrong."""
    args: BindingArgs = _decode(_read_binding, body, _lacks_binding_fields, "an ExtenderBindingArgs object")
    values = dict(zip(BINDING, msgspec.structs.astuple(args), strict=True))
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


def _require_field(value: Any, field: str, wanted: str) -> Any:
    if value is None:
        raise _bad_request(field, "null or absent", wanted)
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
            try:
                names.append(_read_node(rename_keys(bytes(node), NODE_NAME)).metadata.name)
            except UNREADABLE as error:
                raise _bad_field(f"Nodes.items[{number}]", error, "a Node") from error
    return names


def _check_lenient_node_count(count: int) -> None:
    if count > MOST_NODES:
        text = f"{count} nodes without the keys of a Node in their right case"
        raise _bad_request("Nodes.items", text, f"at most {MOST_NODES}")


def _decode(decoder: Any, body: bytes, incomplete: Callable[[Any], bool], wanted: str = _ARGS) -> Any:
    """Decode strictly first, and leniently what only Go accepts: keys in other case, trailing bytes."""
    try:
        args = decoder.decode(body)
    except UNREADABLE as error:
        end = find_end_of_value(error, body)
        if end is not None:
            return _decode(decoder, body[:end], incomplete, wanted)
        rewritten = normalize_request_json(body)
        if rewritten is None:
            raise _bad_field("", error, wanted) from error
    else:
        if not incomplete(args):
            return args
        rewritten = normalize_request_json(body)
        if rewritten is None:
            return args
    try:
        return decoder.decode(rewritten)
    except UNREADABLE as error:
        raise _bad_field("", error, wanted) from error


def filter_response(request: CandidateRequest[Any], decision: Decision) -> list[Part]:
    """ExtenderFilterResult in parts: names for names, whole nodes (the bytes of the request) for whole nodes.

    `FailedNodes` is null if no agent has a verdict. Where evicting pods cannot help, a rejected node is in
    `FailedAndUnresolvableNodes` instead, which is null if it is empty. kube-scheduler leaves these nodes out of
    preemption; up to 1.37 it otherwise reports an error for each of them (kubernetes/kubernetes#139270).
    """
    kept = decision.feasible()
    failed: list[Part] = [b"null"]
    unresolvable: list[Part] = [b"null"]
    if not all(verdict.only_observes for _, verdict in decision.verdicts):
        for_good = decision.unresolvable()
        failed = _encode_failed_nodes(decision, ~(kept | for_good))
        if for_good.any():
            unresolvable = _encode_failed_nodes(decision, for_good)
    tail = (b',"FailedNodes":', *failed, b',"FailedAndUnresolvableNodes":', *unresolvable, b',"Error":""}\n')
    positions = kept.nonzero()[0]
    if request.nodes is None:
        return [b'{"Nodes":null,"NodeNames":', *encode_name_list(decision.names, positions), *tail]
    parts: list[Part] = [b","] * (2 * len(positions))
    parts[1::2] = [request.nodes[position] for position in positions.tolist()]
    return [b'{"Nodes":{"metadata":{},"items":[', *parts[1:], b']},"NodeNames":null', *tail]


def _encode_failed_nodes(decision: Decision, rejected: NDArray[np.bool_]) -> list[Part]:
    """Each of these rejected nodes with the reason of the first agent that rejects it, grouped by reason."""
    parts: list[Part] = []
    if not rejected.any():
        return [b"{}"]
    left = rejected.copy()
    for _, verdict in decision.verdicts:
        codes = verdict.codes * left
        left &= codes == 0
        for code, reason in enumerate(verdict.reasons, 1):
            chosen = (codes == code).nonzero()[0]
            if len(chosen):
                parts += [b",", encode_name_map(decision.names, chosen, _encode(reason.text()))]
    return [b"{", *parts[1:], b"}"]


def prioritize_response(decision: Decision) -> list[Part]:
    """HostPriorityList in parts: every candidate, with 0 if no agent scores it."""
    return encode_host_priority_list(decision.names, decision.points())


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
