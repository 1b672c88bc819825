"""The replicas of a running nodewise: finds their pods, and requests a path of each by port-forward to its admin port.

The API server passes a WebSocket with the subprotocol v4.channel.k8s.io to the kubelet, and the container runtime
serves it (k8s.io/cri-streaming v0.36, `portforward/websocket.go`). A connection has two channels, data and error. Each
message begins with the number of its channel, and each channel begins with the port as two bytes. kubectl itself
tunnels SPDY (KEP-4006), which needs Kubernetes 1.31 and a second multiplexing protocol.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import httpcore2
import httpx2
import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.api_server_interface import Api
from nodewise.kube.http_client import HttpApi
from nodewise.kube.resource_kinds import PODS, selector

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_ERROR: Final = 1
_HEADER_BYTES: Final = 2
MOST_BYTES: Final = 64 << 20
"""Limit of a response. Replicas end a page of decisions after 2 MiB, or with the decision that exceeds them."""


class PodPort(NamedTuple):
    """A port of a pod that serves plain HTTP."""

    namespace: str
    pod: str
    port: int


class _ForwardedStream(httpcore2.AsyncNetworkStream):
    """The bytes of one connection to the pod's port."""

    def __init__(self, web_socket: "AsyncWebSocketSession", port: int) -> None:
        self._web_socket = web_socket
        self._port = port
        self._unread = b""
        self._total_bytes = 0
        self._headers_left = {_DATA: _HEADER_BYTES, _ERROR: _HEADER_BYTES}
        """Bytes of the port that each channel still begins with."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109 - the interface
        """The next bytes of the pod; empty at the end of the connection."""
        # start-up time: servers do not need it
        from httpx2.websockets import HTTPXWSException, WebSocketDisconnect

        while not self._unread:
            try:
                self._receive(await self._web_socket.receive_bytes())
            except WebSocketDisconnect:
                return b""
            except HTTPXWSException as error:
                raise self._broken_connection() from error
        part, self._unread = self._unread[:max_bytes], self._unread[max_bytes:]
        return part

    def _receive(self, message: bytes) -> None:
        channel, content = message[0] if message else _DATA, message[1:]
        if channel not in self._headers_left:
            problem = Problem("", f"a message on channel {channel}", f"channel {_DATA} or {_ERROR}")
            raise Unavailable("port-forward", [problem])
        header, content = content[: self._headers_left[channel]], content[self._headers_left[channel] :]
        self._headers_left[channel] -= len(header)
        if channel == _ERROR and content:
            raise Unavailable("port-forward", [Problem("", content.decode(errors="replace").strip(), "")])
        self._unread = content
        self._total_bytes += len(content)
        if self._total_bytes > MOST_BYTES:
            raise Unavailable("port-forward", [Problem("answer", f"more than {MOST_BYTES >> 20} MiB", "")])

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - the interface
        from httpx2.websockets import HTTPXWSException  # start-up time: servers do not need it

        if not buffer:  # the end of the request: the pod may have answered and closed the connection
            return
        try:
            await self._web_socket.send_bytes(bytes([_DATA]) + buffer)
        except HTTPXWSException as error:  # the session has ended, and `read` would wait for ever
            raise self._broken_connection() from error

    def _broken_connection(self) -> Unavailable:
        """A runtime that cannot connect closes its socket; the reset because of an unread request may overtake its
        error message.
        """
        return Unavailable.of("port-forward", "", "the connection broke", f"a listener on port {self._port}")

    async def aclose(self) -> None:
        await self._web_socket.close()

    def get_extra_info(self, info: str) -> Any:  # noqa: ARG002 - the interface
        return None


async def get(
    api: HttpApi, pod_port: PodPort, path: str, query: Mapping[str, str], timeout_s: float
) -> bytes:
    """The body of the response to a GET request. Every failure is a `NodewiseError`, for example `Unavailable` if
    nothing listens on the port, and `Refused` for an HTTP status that is not 2xx.

    The user needs the verbs `get` and `create` of pods/portforward: the API server authorizes `get` for the method of
    the request, and since Kubernetes 1.35 also `create`, which `kubectl port-forward` over SPDY needs.
    """
    target = f"{path}?{urlencode(query)}" if query else path
    url = httpcore2.URL(f"http://localhost:{pod_port.port}{target}")
    forward_path = PODS.path(pod_port.namespace, pod_port.pod, "portforward")
    ports = {"ports": str(pod_port.port)}
    try:
        async with asyncio.timeout(timeout_s), api.web_socket(forward_path, ports, _PROTOCOL) as web_socket:
            stream = _ForwardedStream(web_socket, pod_port.port)
            response = await httpcore2.AsyncHTTP11Connection(url.origin, stream).request("GET", url)
    except httpcore2.ProtocolError as error:
        raise Unavailable("port-forward", [Problem("", str(error), "an HTTP response")]) from error
    except TimeoutError as error:
        problem = Problem("", f"no answer within {timeout_s:g} s", "")
        raise Unavailable("port-forward", [problem], timeout_s=timeout_s) from error
    if not httpx2.codes.is_success(response.status):
        raise Refused(f"HTTP status {response.status}")
    return response.content


NAMESPACE: Final = "nodewise"
"""The namespace of nodewise in all manifests and in the documentation."""
EXTENDER: Final = "extender"
CONTROLLER: Final = "controller"
_SELECTOR: Final = selector("app.kubernetes.io/name", "nodewise")
_COMPONENT: Final = "app.kubernetes.io/component"
_PORT_NAME: Final = "health"
_DEFAULT_PORT: Final = 9002
_MAX_NAMED: Final = 5
"""The largest number of namespaces in a message."""
_FORBIDDEN: Final = "forbidden"
"""In the API server's message about a missing right."""
_REMEDY: Final = (
    "to reach the replicas in namespace {} you need the rights to list pods, and to get and create pods/portforward, "
    "docs/rights.md"
)


class Replica(NamedTuple):
    """A pod that runs `nodewise extender` or `nodewise controller`."""

    namespace: str
    pod: str
    component: str
    """`EXTENDER` or `CONTROLLER`."""
    port: int
    """The admin port."""

    def __str__(self) -> str:
        return f"Pod/{self.namespace}/{self.pod}"


class AdminServer(NamedTuple):
    """A replica that is no pod, whose admin port this machine reaches."""

    url: str

    def __str__(self) -> str:
        return self.url


async def get_from_server(
    server: AdminServer, path: str, query: Mapping[str, str], timeout_s: float
) -> bytes:
    """The body of the response of an admin port. `Unavailable` without one, `Refused` for a status that is not 2xx."""
    # reading the system's CAs takes longer than a replica's response, and admin ports have no TLS
    no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        async with httpx2.AsyncClient(verify=no_tls, timeout=timeout_s, trust_env=False) as client:
            response = await client.get(f"{server.url.rstrip('/')}{path}", params=dict(query))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        problem = Problem(server.url, f"no answer: {str(error) or type(error).__name__}", "")
        raise Unavailable("the admin port", [problem]) from error
    if not response.is_success:
        problem = Problem(server.url, f"HTTP status {response.status_code}", "")
        refusal = Refused("the admin port", [problem])
        refusal.http_status = response.status_code
        raise refusal
    return response.content


class ReplicaAnswer(NamedTuple):
    """The body of a replica's response, or why there is none."""

    replica: Replica
    body: bytes | None
    error: str = ""


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    container_port: int = 0


class _Container(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] | None = None


class _Spec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Pods(msgspec.Struct, frozen=True):
    items: tuple[_Pod, ...] | None = None


async def find_replicas(api: Api, namespaces: Sequence[str], timeout_s: float) -> list[Replica]:
    """The running replicas of extender and controller, by the labels of the chart and the manifests.

    `Unavailable` if there is no replica, `Refused` with the missing right.
    """
    replicas: list[Replica] = []
    for namespace in namespaces:
        try:
            body = await api.get(PODS.path(namespace), {"labelSelector": _SELECTOR}, timeout_s=timeout_s)
        except Refused as error:
            if _FORBIDDEN not in str(error):
                raise
            raise _with_missing_rights(error, namespace) from error
        replicas += parse_replicas(body)
    if not replicas:
        actual = f"no running pod of nodewise in namespace {', '.join(namespaces)}"
        remedy = "name its namespace with --nodewise-namespace"
        # Tenants can give their pods the labels of a replica, so another namespace is never chosen, only named.
        if others := await _namespaces_with_replicas(api, timeout_s):
            remedy = f"{remedy}; pods with its labels are in {', '.join(others)}"
        raise Unavailable.of("looking for replicas", "", actual, "at least one running pod", remedy=remedy)
    return replicas


async def _namespaces_with_replicas(api: Api, timeout_s: float) -> list[str]:
    """The first ones by name; none without the right to list pods of all namespaces."""
    try:
        body = await api.get(PODS.path(), {"labelSelector": _SELECTOR}, timeout_s=timeout_s)
    except Refused:
        return []
    return sorted({replica.namespace for replica in parse_replicas(body)})[:_MAX_NAMED]


def parse_replicas(  # complexity: most fields of a Pod may be absent
    body: bytes,
) -> list[Replica]:
    """The running replicas in a list of Pods. `BadInput` if it is none."""
    try:
        pods = msgspec.json.decode(body, type=_Pods).items or ()
    except UNREADABLE as error:
        raise BadInput("the pods of nodewise", [Problem("", str(error), "a list of Pods")]) from error
    replicas = []
    for pod in pods:
        component = (pod.metadata.labels or {}).get(_COMPONENT, "")
        is_running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        if is_running and component in (EXTENDER, CONTROLLER):
            ports = (port for container in pod.spec.containers for port in container.ports or ())
            numbers = (port.container_port for port in ports if port.name == _PORT_NAME)
            admin_port = next(numbers, _DEFAULT_PORT)
            replicas.append(Replica(pod.metadata.namespace, pod.metadata.name, component, admin_port))
    return replicas


async def ask(
    api: HttpApi, replicas: Sequence[Replica], path: str, query: Mapping[str, str], timeout_s: float
) -> list[ReplicaAnswer]:
    """The responses of replicas to GET of a path, requested concurrently, in the order of the replicas.

    A failure concerns its own replica only, except that without the right to forward ports there is `Refused`.
    """
    return await asyncio.gather(*(_ask_one(api, replica, path, query, timeout_s) for replica in replicas))


async def _ask_one(
    api: HttpApi, replica: Replica, path: str, query: Mapping[str, str], timeout_s: float
) -> ReplicaAnswer:
    pod_port = PodPort(replica.namespace, replica.pod, replica.port)
    try:
        return ReplicaAnswer(replica, await get(api, pod_port, path, query, timeout_s))
    except Refused as error:
        if _FORBIDDEN in str(error):
            raise _with_missing_rights(error, replica.namespace) from error
        return ReplicaAnswer(replica, None, str(error))
    except NodewiseError as error:
        return ReplicaAnswer(replica, None, str(error))


def _with_missing_rights(error: Refused, namespace: str) -> Refused:
    """The error with the missing rights. The API server names `get` in its message, and not `create`."""
    return Refused(error.what, error.problems, remedy=_REMEDY.format(namespace))
