"""Client of a scheduler extender that behaves like kube-scheduler's: requests, accepted responses and errors.

Every failure is Unavailable; its text is the one that kube-scheduler writes into the pod's condition. Source:
kubernetes v1.36.3 pkg/scheduler/extender.go.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import httpx2

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, Problem, Unavailable
from nodewise.scheduling_model import extender_messages, go_http_error_texts, parsed_nodes_and_pods
from nodewise.scheduling_model.extender_configuration import ConfiguredExtender, TlsConfig
from nodewise.scheduling_model.extender_messages import (
    Filtered,
    HostScore,
    MetaPod,
    MetaVictims,
    Preempted,
    Victims,
)
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from nodewise.scheduling_model.parsed_nodes_and_pods import Pod

_OK: Final = 200
_REAL_CLOCK: Final = SystemClock()
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
        answer = extender_messages.decode(self._post(self.entry.filter_verb, body), Filtered)
        if answer.error:
            raise Unavailable(answer.error)
        for_good = answer.failed_and_unresolvable_nodes or {}
        return FilteredNodes(self._remaining_nodes(answer, nodes), answer.failed_nodes or {}, for_good)

    def prioritize(self, pod: Pod, nodes: Sequence[NodeInfo]) -> list[tuple[str, int]]:
        """Names and scores as received; empty if the extender has no prioritize verb."""
        if not self.entry.prioritize_verb:
            return []
        body = self._encode_nodes_request(pod, nodes)
        answer = extender_messages.decode(self._post(self.entry.prioritize_verb, body), list[HostScore])
        return [(host_score.host, host_score.score) for host_score in answer]

    def preempt(
        self, pod: Pod, victims: Mapping[str, Victims], nodes: Mapping[str, NodeInfo]
    ) -> dict[str, Victims]:
        """The remaining candidates with their victims."""
        whole = not self.entry.node_cache_capable
        body = extender_messages.encode_preempt_request(pod, victims, whole=whole)
        answer = extender_messages.decode(self._post(self.entry.preempt_verb, body), Preempted)
        by_node = answer.node_name_to_meta_victims or {}
        return {
            name: self._read_victims_of_node(name, on_node or MetaVictims(), nodes)
            for name, on_node in by_node.items()
        }

    def _encode_nodes_request(self, pod: Pod, nodes: Sequence[NodeInfo]) -> bytes:
        if self.entry.node_cache_capable:
            return extender_messages.encode_nodes_request(pod, None, [info.name for info in nodes])
        return extender_messages.encode_nodes_request(pod, [info.node.raw for info in nodes], None)

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
            raise Unavailable(
                f'Post "{url}": {go_http_error_texts.go_error_text(error, httpx2.URL(url))}'
            ) from error
        except httpx2.InvalidURL as error:
            raise Unavailable(f'parse "{url}": {error}') from error


def _read_body_until_deadline(answer: httpx2.Response, end_s: float) -> bytes:
    pieces = []
    try:
        for piece in answer.iter_bytes():
            pieces.append(piece)
            if _REAL_CLOCK.monotonic() > end_s:
                raise Unavailable(go_http_error_texts.LATE_BODY)
    except httpx2.TimeoutException:
        raise Unavailable(go_http_error_texts.LATE_BODY) from None
    except httpx2.RequestError:
        raise Unavailable(go_http_error_texts.SHORT_BODY) from None
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
