"""Client of a scheduler extender that behaves like kube-scheduler's, over plain HTTP and with names of nodes.

Every failure is Unavailable; for a status, a timeout and an error of the extender its text is the one that
kube-scheduler writes into the pod's condition. Sources: kubernetes v1.36.3 pkg/scheduler/extender.go,
k8s.io/kube-scheduler v0.36.3 extender/v1.
"""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import httpx2
import msgspec

from nodewise.base import clock
from nodewise.base.errors import UNREADABLE, Unavailable

Object = dict[str, Any]
"""An object as decoded JSON."""
Answer = TypeVar("Answer")

_OK: Final = 200
_NOT_SENT: Final = ("apiVersion", "kind")


class ManagedResource(msgspec.Struct, frozen=True, rename="camel"):
    """A resource by which pods opt in to the extender."""

    name: str
    ignored_by_scheduler: bool = False
    """Whether the scheduler itself ignores this resource."""


class ConfiguredExtender(msgspec.Struct, frozen=True, rename="camel"):
    """One extender of a KubeSchedulerConfiguration. An empty verb is not called."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    http_timeout: str = "5s"
    managed_resources: tuple[ManagedResource, ...] = ()
    """The extender is called for pods that request one of these; for all pods if empty."""
    ignorable: bool = False


def entries(documents: Sequence[Mapping[str, Any]]) -> list[ConfiguredExtender]:
    """Decode the list `extenders`. Ignorable extenders come last, as in kube-scheduler."""
    return sorted(msgspec.convert(documents, list[ConfiguredExtender]), key=lambda entry: entry.ignorable)


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


def decode(body: bytes, kind: type[Answer]) -> Answer:
    """Decode a response; `null` is an empty one. Unavailable for an invalid response."""
    try:
        return msgspec.json.decode(body, type=kind | None) or kind()
    except UNREADABLE as error:
        raise Unavailable(f"json: cannot unmarshal the answer: {error}") from None


class FilteredNodes(NamedTuple):
    """Result of filter: the names of feasible nodes, and reasons by rejected node."""

    names: list[str]
    failed: Mapping[str, str]
    failed_for_good: Mapping[str, str]


class ExtenderClient:
    """One configured extender with its connection. `transport` replaces the network."""

    def __init__(self, entry: ConfiguredExtender, transport: httpx2.BaseTransport | None = None) -> None:
        self.entry = entry
        self._managed = frozenset(resource.name for resource in entry.managed_resources)
        self._http = httpx2.Client(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts no certificate: only plain HTTP is used
            timeout=clock.parse_duration(entry.http_timeout),
            transport=transport,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def is_interested(self, pod: Object) -> bool:
        """Whether a container of the pod requests or limits a managed resource."""
        if not self._managed:
            return True
        containers = (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ()))
        requirements = (container.get("resources") or {} for container in containers)
        return any(
            self._managed & {*(container.get("requests") or ()), *(container.get("limits") or ())}
            for container in requirements
        )

    def filter(self, pod: Object, names: Sequence[str]) -> FilteredNodes:
        """The feasible nodes; all of them if the extender has no filter verb."""
        if not self.entry.filter_verb:
            return FilteredNodes(list(names), {}, {})
        answer = decode(self._post(self.entry.filter_verb, pod, names), Filtered)
        if answer.error:
            raise Unavailable(answer.error)
        for_good = answer.failed_and_unresolvable_nodes or {}
        return FilteredNodes(answer.node_names or [], answer.failed_nodes or {}, for_good)

    def prioritize(self, pod: Object, names: Sequence[str]) -> list[HostScore]:
        """Scores as received; empty if the extender has no prioritize verb."""
        if not self.entry.prioritize_verb:
            return []
        return decode(self._post(self.entry.prioritize_verb, pod, names), list[HostScore])

    def _post(self, verb: str, pod: Object, names: Sequence[str]) -> bytes:
        """The body of a response with status 200."""
        url = f"{self.entry.url_prefix.rstrip('/')}/{verb}"
        sent_pod = {key: value for key, value in pod.items() if key not in _NOT_SENT}
        try:
            answer = self._http.post(url, json={"Pod": sent_pod, "Nodes": None, "NodeNames": list(names)})
        except httpx2.TimeoutException as error:
            late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise Unavailable(f'Post "{url}": {late}') from error
        except httpx2.RequestError as error:
            raise Unavailable(f'Post "{url}": {error}') from error
        if answer.status_code != _OK:
            raise Unavailable(f"failed {verb} with extender at URL {url}, code {answer.status_code}")
        return answer.content
