"""A fake API server process: paged lists, watches, and the custom metrics API.

    python -m bench.fake_api_server --cert FILE --key FILE --client-ca FILE --nodes 5000

Prints one JSON line with its `url`, then serves until it is terminated. Several metric responses of each metric are
prepared and alternate; only the timestamps are inserted per request, so this process needs little CPU.
"""

import asyncio
import itertools
import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn

from bench import generated_cluster_objects, server_command_line

METRICS_API: Final = "/apis/custom.metrics.k8s.io"
VERSION: Final = "v1beta2"
VARIANTS: Final = 5
"""Responses per metric: 250,000 values in all, more than any cache of nodewise holds."""
BOOKMARK_S: Final = 20.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class BenchApiServer:
    """An ASGI callable. `collections` are objects, as JSON, by the path of their list.

    Written objects (a Lease, the status of a policy, an event) are stored and returned; watches do not report them.
    """

    def __init__(
        self, collections: Mapping[str, tuple[str, Sequence[bytes]]], answers: Mapping[str, Iterator[bytes]]
    ) -> None:
        self._collections = collections
        self._answers = answers
        self._written: dict[str, dict[str, Any]] = {}
        self._versions = itertools.count(2000)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()}
        body = await _body(receive)
        if path in self._collections and query.get("watch") in {"1", "true"}:
            timeout_s = float(query.get("timeoutSeconds", "inf"))
            await _send_bookmarks(receive, send, self._collections[path][0], timeout_s)
        elif method == "GET":
            await _send_response(send, *self._read(path, query))
        else:
            await _send_response(send, 200, self._write(path, method, json.loads(body)))

    def _read(self, path: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        if path in self._collections:
            kind, objects = self._collections[path]
            return 200, _page(kind, objects, int(query.get("limit", "0")), int(query.get("continue", "0")))
        if path in self._written:
            return 200, json.dumps(self._written[path]).encode()
        if path == METRICS_API:
            return 200, _group()
        metric = path.removeprefix(f"{METRICS_API}/{VERSION}/nodes/*/")
        if metric in self._answers:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
            return 200, next(self._answers[metric]).replace(
                generated_cluster_objects.TIMESTAMP_PLACEHOLDER, now
            )
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        return 404, json.dumps(status | {"message": f"the benchmark has no {path}"}).encode()

    def _write(self, path: str, method: str, change: dict[str, Any]) -> bytes:
        """Create, replace or patch; a JSON patch changes nothing."""
        steps = isinstance(change, list)
        known = self._written.get(path, {}) if method == "PATCH" else {}
        written = known | ({} if steps else change)
        metadata = written.get("metadata", {})
        written["metadata"] = metadata | {"resourceVersion": str(next(self._versions))}
        self._written[f"{path}/{metadata.get('name', '')}" if method == "POST" else path] = written
        return json.dumps(written).encode()


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _page(kind: str, objects: Sequence[bytes], limit: int, start: int) -> bytes:
    """A page of a list; the continue token is the index of the next object."""
    end = start + limit if limit else len(objects)
    metadata = {"resourceVersion": "1000"} | ({"continue": str(end)} if end < len(objects) else {})
    head = json.dumps({"kind": f"{kind}List", "metadata": metadata})[:-1].encode()
    return head + b',"items":[' + b",".join(objects[start:end]) + b"]}"


def _group() -> bytes:
    version = {"groupVersion": f"custom.metrics.k8s.io/{VERSION}", "version": VERSION}
    return json.dumps(
        {
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": "custom.metrics.k8s.io",
            "versions": [version],
            "preferredVersion": version,
        }
    ).encode()


async def _send_response(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_bookmarks(receive: Receive, send: Send, kind: str, timeout_s: float) -> None:
    """Send bookmarks until the watch times out or the client disconnects; objects never change."""
    bookmark = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": {"resourceVersion": "1000"}}}
    line = json.dumps(bookmark).encode() + b"\n"
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    disconnected = asyncio.ensure_future(receive())
    end_at = time.monotonic() + timeout_s
    while not disconnected.done() and (left_s := end_at - time.monotonic()) > 0:
        await send({"type": "http.response.body", "body": line, "more_body": True})
        await asyncio.wait([disconnected], timeout=min(BOOKMARK_S, left_s))
    if not disconnected.done():
        disconnected.cancel()
        await send({"type": "http.response.body", "body": b""})


def build(count: int) -> BenchApiServer:
    """Create the API server of a cluster with `count` nodes."""
    names = sorted(generated_cluster_objects.names(count))  # in etcd's order
    nodes = [
        json.dumps(generated_cluster_objects.node(name, number)).encode() for number, name in enumerate(names)
    ]
    policies = [json.dumps(policy).encode() for policy in generated_cluster_objects.policies()]
    collections: dict[str, tuple[str, Sequence[bytes]]] = {
        "/api/v1/nodes": ("Node", nodes),
        "/api/v1/pods": ("Pod", []),
        "/api/v1/namespaces": ("Namespace", []),
        "/apis/telemetry.intel.com/v1alpha1/taspolicies": ("TASPolicy", policies),
        "/apis/nodewise.io/v1alpha1/placementpolicies": ("PlacementPolicy", []),
        "/apis/nodewise.io/v1alpha1/clusterplacementpolicies": ("ClusterPlacementPolicy", []),
    }
    answers = {
        metric: itertools.cycle(
            [generated_cluster_objects.answer(metric, names, seed) for seed in range(VARIANTS)]
        )
        for metric in generated_cluster_objects.METRICS
    }
    return BenchApiServer(collections, answers)


def main() -> None:
    parser = server_command_line.argument_parser(__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    options = parser.parse_args()
    opened = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        build(options.nodes),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        ssl_certfile=options.cert,
        ssl_keyfile=options.key,
        ssl_ca_certs=options.client_ca,
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )
    server_command_line.announce(opened.getsockname()[1])
    uvicorn.Server(config).run(sockets=[opened])


if __name__ == "__main__":
    main()
