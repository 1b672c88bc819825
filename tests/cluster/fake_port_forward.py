"""A fake of what serves port-forward in a cluster: the API server itself, or the kubelet behind a real one.

It passes `tests/unit/kube/port_forward_suite.py`, as the real kubelet and containerd do.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from tests.cluster import asgi_server_thread
from tests.cluster.api_client import ClusterApi
from tests.cluster.asgi_server_thread import Receive, Scope, Send, ServerTls, answer
from tests.cluster.certificates import CertificatePair

_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = b"\0", b"\1"
ADMIN_PORT: Final = 9102
"""The admin port of replicas, which is not the default."""


class FakePortForward:
    """An ASGI application. `ports` maps namespace, pod and its port to a port on loopback that stands for it."""

    def __init__(self) -> None:
        self.ports: dict[tuple[str, str, int], int] = {}
        self.refusals: dict[str, int] = {}
        """The HTTP status of the response instead of an upgrade, by pod."""
        self.requests: list[str] = []
        """The pods of all upgrade requests, in order."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await answer(send, 404, {"kind": "Status", "message": f"no {scope['path']} here"})
            return
        namespace, pod = _named_pod(scope["path"])
        query = parse_qs(scope["query_string"].decode())
        port = int((query.get("ports") or query["port"])[0])  # the API server's parameter, or the kubelet's
        self.requests.append(pod)
        assert (await receive())["type"] == "websocket.connect"
        if status := self.refusals.get(pod):
            await _refuse(
                send,
                status,
                f'pods "{pod}" is forbidden: User "eve" cannot create resource "pods/portforward"',
            )
        elif dict(scope["headers"]).get(b"accept", b"*/*") != b"*/*":
            await _refuse(send, 406, "406: Not Acceptable")
        elif _PROTOCOL not in scope["subprotocols"]:
            await _refuse(send, 400, f"subprotocols {scope['subprotocols']}")
        else:
            await send({"type": "websocket.accept", "subprotocol": _PROTOCOL})
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._forward(self.ports.get((namespace, pod, port), 0), port, receive, send)

    async def _forward(self, target: int, port: int, receive: Receive, send: Send) -> None:
        for channel in (_DATA, _ERROR):
            await _send(send, channel + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError as error:
            await receive()  # a request that arrives after the end would reset the connection
            await _send(send, _ERROR + f"error forwarding port {port}: connection refused: {error}".encode())
        else:
            pump = asyncio.create_task(_pump(receive, writer))
            while part := await reader.read(32768):
                await _send(send, _DATA + part)
            pump.cancel()
            writer.close()
        await send({"type": "websocket.close", "code": 1000})


def _named_pod(path: str) -> tuple[str, str]:
    """Namespace and pod of /api/v1/namespaces/N/pods/P/portforward or of the kubelet's /portForward/N/P."""
    parts = path.strip("/").split("/")
    return (parts[1], parts[2]) if parts[0] == "portForward" else (parts[3], parts[5])


async def _pump(receive: Receive, writer: asyncio.StreamWriter) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        channel, content = message["bytes"][:1], message["bytes"][1:]
        assert channel == _DATA, f"a message on channel {channel!r}"
        writer.write(content)
        await writer.drain()
    writer.close()


async def _send(send: Send, message: bytes) -> None:
    await send({"type": "websocket.send", "bytes": message})


async def _refuse(send: Send, status: int, message: str) -> None:
    body: Any = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": status,
    }
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": msgspec.json.encode(body)})


@contextlib.contextmanager
def kubelet_of(api: ClusterApi, node: str, serving: CertificatePair) -> Iterator[FakePortForward]:
    """The kubelet of a node, as far as the API server needs it for port-forward."""
    fake = FakePortForward()
    with asgi_server_thread.serving(fake, ServerTls(serving)) as address:
        endpoint = {"kubeletEndpoint": {"Port": int(address.rpartition(":")[2])}}
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        api.patch(
            f"/api/v1/nodes/{node}/status", {"status": {"addresses": addresses, "daemonEndpoints": endpoint}}
        )
        yield fake


def add_replica(
    api: ClusterApi,
    kubelet: FakePortForward,
    node: str,
    namespace: str,
    name: str,
    health: str,
    component: str = "extender",
) -> None:
    """A running pod of the extender or the controller, whose admin port is that of a process with this URL."""
    labels = {"app.kubernetes.io/name": "nodewise", "app.kubernetes.io/component": component}
    container = {
        "name": "nodewise",
        "image": "none",
        "ports": [{"name": "health", "containerPort": ADMIN_PORT}],
    }
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0},
        }
    )
    api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": {"phase": "Running"}})
    kubelet.ports[namespace, name, ADMIN_PORT] = int(health.rpartition(":")[2])
