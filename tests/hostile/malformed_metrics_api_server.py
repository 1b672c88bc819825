"""An API server in memory whose metrics API also returns malformed responses."""

import asyncio
import contextlib
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nodewise.kube.resource_kinds import NAMESPACES, NODES
from nodewise.policies.policy_objects import RESOURCES
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.scheduling_model.in_memory_api_http_server import ApiRequest, ApiServer
from tests.hostile import three_node_cluster_objects

TASPOLICIES = RESOURCES["TASPolicy"]
GROUP = "/apis/custom.metrics.k8s.io"
METRICS = f"{GROUP}/v1beta2/nodes/%2A/"
_VERSION = {"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"}


class MalformedResponse(NamedTuple):
    """A response in its wire format. `pieces` may be endless and may wait."""

    pieces: Callable[[], AsyncIterator[bytes]]
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})


def plain_response(body: bytes, status: int = 200, **headers: str) -> MalformedResponse:
    """A response with its body in one piece."""

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    return MalformedResponse(
        pieces, status, {name.replace("_", "-"): value for name, value in headers.items()}
    )


def metric_list(*items: Any) -> MalformedResponse:
    """A response with a MetricValueList."""
    return plain_response(json.dumps({"kind": "MetricValueList", "items": items}).encode())


def metric_item(node: Any, value: Any, **more: Any) -> dict[str, Any]:
    """An item of a MetricValueList."""
    return {"describedObject": {"kind": "Node", "name": node}, "value": value} | more


def endless_response() -> MalformedResponse:
    """A response whose body is an endless sequence of spaces."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 2**20
            await asyncio.sleep(0)

    return MalformedResponse(pieces)


def hanging_response() -> MalformedResponse:
    """A response that stops after the beginning of its body."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"items":['
        await asyncio.sleep(3600)

    return MalformedResponse(pieces)


def compressed_response() -> MalformedResponse:
    """A compressed response of 100 kB that expands to 100 MiB."""
    return plain_response(gzip.compress(b" " * 100 * 2**20), content_encoding="gzip")


class MalformedApiServer(ApiServer):
    """An API server in memory whose responses `odd` overrides by path; `asked` counts the overridden requests."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(api)
        self.odd: dict[str, MalformedResponse] = {}
        self.asked: Counter[str] = Counter()

    async def serve_request(
        self, request: ApiRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        response = self.odd.get(request.path)
        if response is None:
            await super().serve_request(request, reader, writer)
            return
        self.asked[request.path] += 1
        lines = [f"{name}: {value}\r\n" for name, value in response.headers.items()]
        head = "".join([*lines, "transfer-encoding: chunked\r\n\r\n"])
        writer.write(in_memory_api_http_server.status_line(response.status) + head.encode())
        disconnected = in_memory_api_http_server.watch_disconnection(reader)
        async with contextlib.aclosing(response.pieces()) as pieces:  # type: ignore[type-var]
            while not disconnected.done():
                piece = asyncio.ensure_future(anext(pieces, b""))
                await asyncio.wait({piece, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if disconnected.done() or not piece.result():
                    piece.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await piece
                    break
                writer.write(b"%x\r\n%b\r\n" % (len(piece.result()), piece.result()))
                await writer.drain()
        if disconnected.done():
            raise ConnectionResetError
        disconnected.cancel()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@contextlib.contextmanager
def serving() -> Iterator[MalformedApiServer]:
    """Runs the server. The metric `temp` is correct, and tests change everything else."""
    api = FakeApi(TASPOLICIES)
    policy, *nodes = three_node_cluster_objects.objects()
    api.put(TASPOLICIES, policy)
    for node in nodes:
        api.put(NODES, node)
    labels = {"nodewise.io/trusted": "true"}
    api.put(NAMESPACES, {"metadata": {"name": "d", "labels": labels}})
    group = {"name": "custom.metrics.k8s.io", "preferredVersion": _VERSION, "versions": [_VERSION]}
    api.raw.update(
        {
            GROUP: json.dumps(group).encode(),
            f"{METRICS}temp": json.dumps(three_node_cluster_objects.values()).encode(),
        }
    )
    server = MalformedApiServer(api)
    server.start()
    try:
        yield server
    finally:
        server.stop()
