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


def entries(  # complexity: one branch for each rule
    documents: Sequence[Mapping[str, Any]],
) -> tuple[ConfiguredExtender, ...]:
    """Decode the list `extenders`. BadSettings names every field that kube-scheduler or the simulated one rejects.

    Ignorable extenders come last, as in kube-scheduler.
    """
    problems: list[Problem] = []
    valid: list[ConfiguredExtender] = []
    for index, document in enumerate(documents):
        field = f"extenders[{index}]"
        try:
            entry = msgspec.convert(document, ConfiguredExtender)
        except msgspec.ValidationError as error:
            problems.append(Problem(field, str(error), "the fields of an extender"))
            continue
        valid.append(entry)
        if entry.prioritize_verb and entry.weight <= 0:
            problems.append(Problem(f"{field}.weight", str(entry.weight), "a positive weight"))
        if entry.bind_verb:
            expected = "none: the simulated scheduler binds by itself"
            problems.append(Problem(f"{field}.bindVerb", shown(entry.bind_verb), expected))
        try:
            clock.parse_duration(entry.http_timeout)
        except ValueError as error:
            problems.append(Problem(f"{field}.httpTimeout", str(error), "a duration such as 1s"))
        if entry.tls_config and entry.tls_config.insecure and entry.tls_config.ca_file:
            problems.append(
                Problem(f"{field}.tlsConfig", "both insecure and caFile", "either insecure or caFile")
            )
    counts = Counter(resource.name for entry in valid for resource in entry.managed_resources)
    problems += [
        Problem("extenders", f"{name} in {count} managedResources", "each resource once")
        for name, count in counts.items()
        if count > 1
    ]
    if problems:
        raise BadSettings("the extenders of the scheduler's configuration", problems)
    return tuple(sorted(valid, key=lambda entry: entry.ignorable))


Answer = TypeVar("Answer")


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


class Preempted(msgspec.Struct, rename="pascal"):
    """Response of preempt: the remaining nodes with their victims."""

    node_name_to_meta_victims: dict[str, Any] | None = None


class _NodeItems(msgspec.Struct):
    items: Sequence[msgspec.Raw]
    metadata: dict[str, str] = {}


class _Arguments(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw
    nodes: _NodeItems | None
    node_names: Sequence[str] | None


def decode(body: bytes, kind: type[Answer]) -> Answer:
    """Decode a response; `null` is an empty one, and data after the first JSON value is ignored, as in Go.

    Unavailable for an invalid response, with Go's message where that does not depend on the position of the error.
    """
    text = body.decode(errors="replace").lstrip()
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "trailing characters" in str(error):
            value = json.JSONDecoder().raw_decode(text)[0]
        elif not text:
            raise Unavailable("EOF") from None
        elif "truncated" in str(error):
            raise Unavailable(_UNEXPECTED_END) from None
        elif text[0] not in '{["-0123456789tfn':
            message = f"invalid character '{text[0]}' looking for beginning of value"
            raise Unavailable(message) from None
        else:
            raise Unavailable(f"json: {error}") from None
    try:
        return msgspec.convert(value, kind | None) or kind()
    except msgspec.ValidationError as error:
        raise Unavailable(f"json: cannot unmarshal the answer: {error}") from None


_OK: Final = 200
_REAL_CLOCK: Final = SystemClock()  # timeouts use real time, independent of the simulated clock
_LATE_BODY: Final = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
_UNEXPECTED_END: Final = "unexpected EOF"
_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for a certificate that no trusted CA signed."""


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

    def _encode_nodes_request(self, pod: Pod, nodes: Sequence[NodeInfo]) -> bytes:
        if self.entry.node_cache_capable:
            return msgspec.json.encode(_Arguments(pod.raw, None, [info.name for info in nodes]))
        return msgspec.json.encode(_Arguments(pod.raw, _NodeItems([info.node.raw for info in nodes]), None))

    def _remaining_nodes(self, answer: Filtered, nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
        """Whole nodes in a response hold no pods: kube-scheduler treats them as empty from here on."""
        if self.entry.node_cache_capable and answer.node_names is not None:
            known = {info.name: info for info in nodes}
            for name in answer.node_names:
                if name not in known:
                    raise Unavailable(
                        f'extender "{self.entry.url_prefix}" claims a filtered node "{name}" '
                        "which is not found in the input node list"
                    )
            return [known[name] for name in answer.node_names]
        items = (answer.nodes.items if answer.nodes else None) or []
        try:
            return [NodeInfo(parsed_nodes_and_pods.node(item)) for item in items]
        except BadInput as error:
            raise Unavailable(f"json: cannot unmarshal the answer: {error}") from error

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
