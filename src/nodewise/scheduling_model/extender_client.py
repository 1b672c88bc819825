"""Client of a scheduler extender that behaves like kube-scheduler's: configuration, messages, accepted responses
and errors.

Every failure is Unavailable; its text is the one that kube-scheduler writes into the pod's condition, except for errors
of the network. Sources: kubernetes v1.36.3 pkg/scheduler/extender.go, k8s.io/kube-scheduler v0.36.3 extender/v1.
"""

import json
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self, TypeVar

import httpx2
import msgspec

from nodewise.base import clock
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, Problem, Unavailable, shown
from nodewise.scheduling_model import parsed_nodes_and_pods
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo, Object, Pod

_WHAT = "the extenders of the scheduler's configuration"


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Keys as in the configuration; unknown keys are errors, as in kube-scheduler."""


class ManagedResource(_Struct, frozen=True):
    """A resource by which pods opt in to the extender."""

    name: str
    ignored_by_scheduler: bool = False
    """Whether the scheduler itself ignores this resource."""


class TlsConfig(_Struct, frozen=True):
    """TLS settings; files are PEM. Without `ca_file` the server is not verified."""

    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""


class ConfiguredExtender(_Struct, frozen=True):
    """One extender. An empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 0
    enable_https: bool = msgspec.field(name="enableHTTPS", default=False)
    tls_config: TlsConfig | None = None
    http_timeout: str = "0s"
    """A Go duration; zero means five seconds, as in kube-scheduler."""
    node_cache_capable: bool = False
    """Whether the extender receives node names instead of whole nodes."""
    managed_resources: tuple[ManagedResource, ...] = ()
    """The extender is called for pods that request one of these; for all pods if empty."""
    ignorable: bool = False

    @property
    def timeout_s(self) -> float:
        return clock.parse_duration(self.http_timeout) or 5.0

    @property
    def ignored(self) -> frozenset[str]:
        """The resources that the scheduler ignores."""
        return frozenset(
            resource.name for resource in self.managed_resources if resource.ignored_by_scheduler
        )


def entries(documents: Sequence[Mapping[str, Any]]) -> tuple[ConfiguredExtender, ...]:
    """Decode the list `extenders`. BadSettings names every field that kube-scheduler or the simulated one rejects.

    Ignorable extenders come last, as in kube-scheduler.
    """
    problems: list[Problem] = []
    valid: list[ConfiguredExtender] = []
    for index, document in enumerate(documents):
        entry, entry_problems = _decode_extender_entry(document, f"extenders[{index}]")
        problems += entry_problems
        valid += [entry] if entry else []
    problems += _duplicate_resource_problems(valid)
    if problems:
        raise BadSettings(_WHAT, problems)
    return tuple(sorted(valid, key=lambda entry: entry.ignorable))


def _decode_extender_entry(
    document: Mapping[str, Any], field: str
) -> tuple[ConfiguredExtender | None, list[Problem]]:
    try:
        entry = msgspec.convert(document, ConfiguredExtender)
    except msgspec.ValidationError as error:
        return None, [Problem(field, str(error), "the fields of an extender")]
    return entry, _extender_entry_problems(entry, field)


def _extender_entry_problems(entry: ConfiguredExtender, field: str) -> list[Problem]:
    problems = []
    if entry.prioritize_verb and entry.weight <= 0:
        problems.append(Problem(f"{field}.weight", str(entry.weight), "a positive weight"))
    if entry.bind_verb:
        wanted = "none: the simulated scheduler binds by itself"
        problems.append(Problem(f"{field}.bindVerb", shown(entry.bind_verb), wanted))
    try:
        clock.parse_duration(entry.http_timeout)
    except ValueError as error:
        problems.append(Problem(f"{field}.httpTimeout", str(error), "a duration such as 1s"))
    if entry.tls_config and entry.tls_config.insecure and entry.tls_config.ca_file:
        problems.append(Problem(f"{field}.tlsConfig", "both insecure and caFile", "one of them"))
    return problems


def _duplicate_resource_problems(valid: Sequence[ConfiguredExtender]) -> list[Problem]:
    counts = Counter(resource.name for entry in valid for resource in entry.managed_resources)
    return [
        Problem("extenders", f"{name} in {count} managedResources", "each resource once")
        for name, count in counts.items()
        if count > 1
    ]


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
        return _UNEXPECTED_END
    if text[0] not in '{["-0123456789tfn':
        return f"invalid character '{text[0]}' looking for beginning of value"
    return f"json: {why}"


_OK: Final = 200
_REAL_CLOCK: Final = SystemClock()
_LATE_BODY: Final = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
_UNEXPECTED_END: Final = "unexpected EOF"
_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for a certificate that no trusted CA signed."""
"""Timeouts use real time, independent of the simulated clock."""


class FilteredNodes(NamedTuple):
    """Result of filter: the feasible nodes, and reasons by rejected node; `failed_for_good` overrides `failed`."""

    nodes: list[NodeInfo]
    failed: Mapping[str, str]
    failed_for_good: Mapping[str, str]


class ExtenderClient:
    """One configured extender with its connection. BadSettings if its certificates cannot be read.

    `transport` replaces the network.
    """

    def __init__(self, entry: ConfiguredExtender, transport: httpx2.BaseTransport | None = None) -> None:
        self.entry = entry
        self._managed = frozenset(resource.name for resource in entry.managed_resources)
        self._server_name = entry.tls_config.server_name if entry.tls_config else ""
        self._http = httpx2.Client(
            verify=_tls_context(entry),
            timeout=entry.timeout_s,
            limits=httpx2.Limits(keepalive_expiry=90),
            transport=transport,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_interested(self, pod: Pod) -> bool:
        """Whether a container of the pod requests or limits a managed resource; pod-level resources do not count."""
        if not self._managed:
            return True
        containers = (*(pod.spec.get("containers") or ()), *(pod.spec.get("initContainers") or ()))
        requirements = (container.get("resources") or {} for container in containers)
        return any(
            self._managed & {*(container.get("requests") or ()), *(container.get("limits") or ())}
            for container in requirements
        )

    def filter(self, pod: Pod, nodes: Sequence[NodeInfo]) -> FilteredNodes:
        """The feasible nodes; all of them if the extender has no filter verb."""
        if not self.entry.filter_verb:
            return FilteredNodes(list(nodes), {}, {})
        body = self._encode_nodes_request(pod, nodes)
        answer = decode(self._post(self.entry.filter_verb, body), Filtered)
        if answer.error:
            raise Unavailable(answer.error)
        for_good = answer.failed_and_unresolvable_nodes or {}
        return FilteredNodes(self._remaining_nodes(answer, nodes), answer.failed_nodes or {}, for_good)

    def prioritize(self, pod: Pod, nodes: Sequence[NodeInfo]) -> list[tuple[str, int]]:
        """Names and scores as received; empty if the extender has no prioritize verb."""
        if not self.entry.prioritize_verb:
            return []
        body = self._encode_nodes_request(pod, nodes)
        answer = decode(self._post(self.entry.prioritize_verb, body), list[HostScore])
        return [(host_score.host, host_score.score) for host_score in answer]

    def preempt(
        self, pod: Pod, victims: Mapping[str, Victims], nodes: Mapping[str, NodeInfo]
    ) -> dict[str, Victims]:
        """The remaining candidates with their victims."""
        whole = not self.entry.node_cache_capable
        body = encode_preempt_request(pod, victims, whole=whole)
        answer = decode(self._post(self.entry.preempt_verb, body), Preempted)
        by_node = answer.node_name_to_meta_victims or {}
        return {
            name: self._read_victims_of_node(name, on_node or MetaVictims(), nodes)
            for name, on_node in by_node.items()
        }

    def _encode_nodes_request(self, pod: Pod, nodes: Sequence[NodeInfo]) -> bytes:
        if self.entry.node_cache_capable:
            return encode_nodes_request(pod, None, [info.name for info in nodes])
        return encode_nodes_request(pod, [info.node.raw for info in nodes], None)

    def _remaining_nodes(self, answer: Filtered, nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
        """Whole nodes in a response hold no pods: kube-scheduler treats them as empty from here on."""
        if self.entry.node_cache_capable and answer.node_names is not None:
            known = {info.name: info for info in nodes}
            return [self._require_known_node(name, known) for name in answer.node_names]
        items = (answer.nodes.items if answer.nodes else None) or []
        try:
            return [NodeInfo(parsed_nodes_and_pods.node(item)) for item in items]
        except BadInput as error:
            raise Unavailable(f"json: cannot unmarshal the answer: {error}") from error

    def _require_known_node(self, name: str, known: Mapping[str, NodeInfo]) -> NodeInfo:
        if name in known:
            return known[name]
        raise Unavailable(
            f'extender "{self.entry.url_prefix}" claims a filtered node "{name}" '
            "which is not found in the input node list"
        )

    def _read_victims_of_node(
        self, name: str, victims: MetaVictims, nodes: Mapping[str, NodeInfo]
    ) -> Victims:
        if name not in nodes:
            raise Unavailable(f'nodeinfo not found for node name "{name}"')
        on_node = {pod.uid: pod for pod in nodes[name].pods}
        pods = tuple(self._find_victim_on_node(meta_pod, name, on_node) for meta_pod in victims.pods or ())
        return Victims(pods, victims.violations)

    def _find_victim_on_node(self, meta_pod: MetaPod, node_name: str, on_node: Mapping[str, Pod]) -> Pod:
        if meta_pod.uid in on_node:
            return on_node[meta_pod.uid]
        raise Unavailable(
            f"extender: {self.entry.url_prefix} claims to preempt pod (UID: &{{{meta_pod.uid}}}) "
            f"on node: {node_name}, but the pod is not found on that node"
        )

    def _post(self, verb: str, body: bytes) -> bytes:
        """The body of a response with status 200. Each chunk checks the timeout, so slow bodies are cut off."""
        url = f"{self.entry.url_prefix.rstrip('/')}/{verb}"
        headers = {"Content-Type": "application/json"}
        names = {"sni_hostname": self._server_name} if self._server_name else {}
        end_s = _REAL_CLOCK.monotonic() + self.entry.timeout_s
        try:
            with self._http.stream("POST", url, content=body, headers=headers, extensions=names) as answer:
                if answer.status_code != _OK:
                    code = answer.status_code
                    raise Unavailable(f"failed {verb} with extender at URL {url}, code {code}")
                return _read_body_until_deadline(answer, end_s)
        except httpx2.RequestError as error:
            raise Unavailable(f'Post "{url}": {_go_error_text(error)}') from error
        except httpx2.InvalidURL as error:
            raise Unavailable(f'parse "{url}": {error}') from error


def _go_error_text(error: httpx2.RequestError) -> str:
    """The text of Go's HTTP client for a timeout and for an unknown CA; for other errors that of httpx2."""
    if isinstance(error, httpx2.TimeoutException):
        return "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _UNKNOWN_AUTHORITY:
            return "tls: failed to verify certificate: x509: certificate signed by unknown authority"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _read_body_until_deadline(answer: httpx2.Response, end_s: float) -> bytes:
    pieces = []
    try:
        for piece in answer.iter_bytes():
            pieces.append(piece)
            if _REAL_CLOCK.monotonic() > end_s:
                raise Unavailable(_LATE_BODY)
    except httpx2.TimeoutException:
        raise Unavailable(_LATE_BODY) from None
    except httpx2.RequestError:
        raise Unavailable(_UNEXPECTED_END) from None
    return b"".join(pieces)


def _tls_context(entry: ConfiguredExtender) -> ssl.SSLContext:
    """With enableHTTPS and no CA the server is not verified, as in kube-scheduler."""
    tls = entry.tls_config or TlsConfig()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = f"{tls.ca_file} {tls.cert_file} {tls.key_file}".strip()
        problem = Problem("tlsConfig", f"{files}: {error}", "PEM files of a CA, a certificate and its key")
        raise BadSettings(f"the extender at {entry.url_prefix}", [problem]) from error
    if tls.insecure or (entry.enable_https and not tls.ca_file):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
