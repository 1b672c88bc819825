"""HTTP requests to a port of a pod through the API server, as `kubectl port-forward` sends them.

The API server passes a WebSocket with the subprotocol v4.channel.k8s.io to the kubelet, and the container runtime
serves it (k8s.io/cri-streaming v0.36, `portforward/websocket.go`). A connection has two channels, data and error. Each
message begins with the number of its channel, and each channel begins with the port as two bytes. kubectl itself
tunnels SPDY through a WebSocket (KEP-4006), which needs Kubernetes 1.31 and a second multiplexing protocol.

The runtime connects to the port on loopback, in the pod's network.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

import httpcore2
import httpx2

from nodewise.base.errors import Problem, Refused, Unavailable
from nodewise.kube.http_client import HttpApi
from nodewise.kube.resource_kinds import PODS

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
        from httpx2.websockets import (
            HTTPXWSException,
            WebSocketDisconnect,
        )  # start-up time: servers do not need it

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
        problem = Problem("", "the connection broke", f"a listener on port {self._port}")
        return Unavailable("port-forward", [problem])

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
    try:
        async with asyncio.timeout(timeout_s):
            return await _send_request(api, pod_port, target)
    except TimeoutError as error:
        problem = Problem("", f"no answer within {timeout_s:g} s", "")
        raise Unavailable("port-forward", [problem], timeout_s=timeout_s) from error


async def _send_request(api: HttpApi, pod_port: PodPort, target: str) -> bytes:
    path = PODS.path(pod_port.namespace, pod_port.pod, "portforward")
    url = httpcore2.URL(f"http://localhost:{pod_port.port}{target}")
    async with api.web_socket(path, {"ports": str(pod_port.port)}, _PROTOCOL) as web_socket:
        connection = httpcore2.AsyncHTTP11Connection(url.origin, _ForwardedStream(web_socket, pod_port.port))
        try:
            response = await connection.request("GET", url)
        except httpcore2.ProtocolError as error:
            raise Unavailable("port-forward", [Problem("", str(error), "an HTTP response")]) from error
    if not httpx2.codes.is_success(response.status):
        raise Refused(f"HTTP status {response.status}")
    return response.content
