"""A process that stands in for an API server: lists by pages, watches, and the custom metrics API behind it.

    python -m bench.apiserver --cert FILE --key FILE --client-ca FILE --nodes 5000

Prints one JSON line with its `url`, then serves until it is told to end. Answers about metrics are prepared,
several of each, and take turns; only the time is put in when one is asked for, so this process stays cheap.
"""

import asyncio
import itertools
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

import uvicorn

from bench import cluster_data, server_process

METRICS_API: Final = "/apis/custom.metrics.k8s.io"
VERSION: Final = "v1beta2"
VARIANTS: Final = 5
"""So many answers of each metric take turns: 250,000 values, more than any cache of ours holds."""
BOOKMARK_S: Final = 20.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class ApiServer:
    """An ASGI callable. `collections` are the objects by the path of their list, each as JSON.

    What is written (a Lease, the status of a policy, an event) is kept and given back; nobody is told of it.
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
            await _watched(receive, send, self._collections[path][0])
        elif method == "GET":
            await _sent(send, *self._read(path, query))
        else:
            await _sent(send, 200, self._write(path, method, json.loads(body)))

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
            return 200, next(self._answers[metric]).replace(cluster_data.STAMP, now)
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        return 404, json.dumps(status | {"message": f"the bench has no {path}"}).encode()

    def _write(self, path: str, method: str, change: dict[str, Any]) -> bytes:
        """Create, replace or patch; a patch of a list of steps changes nothing."""
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
    """A page of a list; the token of the next one is the number of its first object."""
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


async def _sent(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _watched(receive: Receive, send: Send, kind: str) -> None:
    """Nothing happens to any object; now and then a bookmark says so, until the client goes."""
    bookmark = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": {"resourceVersion": "1000"}}}
    line = json.dumps(bookmark).encode() + b"\n"
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    left = asyncio.ensure_future(receive())
    while not left.done():
        await send({"type": "http.response.body", "body": line, "more_body": True})
        await asyncio.wait([left], timeout=BOOKMARK_S)


def built(count: int) -> ApiServer:
    """The API server of a fleet of so many nodes."""
    names = sorted(cluster_data.names(count))  # as etcd has them
    nodes = [json.dumps(cluster_data.node(name, number)).encode() for number, name in enumerate(names)]
    policies = [json.dumps(policy).encode() for policy in cluster_data.policies()]
    collections: dict[str, tuple[str, Sequence[bytes]]] = {
        "/api/v1/nodes": ("Node", nodes),
        "/api/v1/pods": ("Pod", []),
        "/api/v1/namespaces": ("Namespace", []),
        "/apis/telemetry.intel.com/v1alpha1/taspolicies": ("TASPolicy", policies),
    }
    answers = {
        metric: itertools.cycle([cluster_data.answer(metric, names, seed) for seed in range(VARIANTS)])
        for metric in cluster_data.METRICS
    }
    return ApiServer(collections, answers)


def main() -> None:
    parser = server_process.arguments(__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    options = parser.parse_args()
    opened = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        built(options.nodes),
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
    server_process.announce(opened.getsockname()[1])
    uvicorn.Server(config).run(sockets=[opened])


if __name__ == "__main__":
    main()
