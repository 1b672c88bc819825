"""A fake API server process: paged lists, watches, changes of node labels, and the custom metrics API.

    python -m bench.fake_api_server --cert FILE --key FILE --nodes 5000

Prints one JSON line with its `url`, then serves until it is terminated. Several metric responses of each metric are
prepared and alternate; only the timestamps are inserted per request, so this process needs little CPU. It serves on
several ports if there are several replicas to tell apart, and reports the bytes that it sent on each.
"""

import argparse
import asyncio
import itertools
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

import uvicorn
from tests.cluster import kubernetes_objects

from bench import etcd_population, generated_cluster_objects, server_command_line

METRICS_API: Final = "/apis/custom.metrics.k8s.io"
VERSION: Final = "v1beta2"
SENT: Final = "/bench/sent"
"""The path of the sent bytes: by port, those of lists and watches of nodes, and of all other responses."""
ROLL: Final = "/bench/roll"
"""A write to this path begins the change of `ROLLING`: the query `share` is the share of the nodes per minute; 1 labels
all nodes at once."""
VALUES_PER_METRIC: Final = 250_000
"""Values of the responses of a metric, in two to five responses: more than any cache of nodewise holds."""
BOOKMARK_S: Final = 20.0
NODES: Final = "/api/v1/nodes"
_FIRST_VERSION: Final = 1000

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

_RANGE: Final = re.compile(r"shardRange\(object\.metadata\.uid, *'(0x[0-9a-f]+)', *'(0x[0-9a-f]+)'\)")
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def fnv_1a(text: str) -> int:
    """The 64-bit hash of the API server's `shardRange` (k8s.io/apimachinery v0.38 pkg/sharding)."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


class ShardRanges:
    """The ranges of hashes of a `shardSelector`; without one, all objects are selected."""

    def __init__(self, selector: str) -> None:
        self._ranges = [(int(low, 16), int(high, 16)) for low, high in _RANGE.findall(selector)]
        self._selects_all = not selector

    def contains(self, hash_: int) -> bool:
        return self._selects_all or any(low <= hash_ < high for low, high in self._ranges)


class Change(NamedTuple):
    """A modified object."""

    version: int
    hash: int
    line: bytes


class Collection:
    """The objects of a kind. `patch` changes labels, which watches report."""

    def __init__(self, kind: str, objects: Sequence[bytes]) -> None:
        self.kind = kind
        self._objects = list(objects)
        identities = [_IDENTITY.search(data) for data in objects]  # None for an object without a uid
        self._numbers = {each[1].decode(): number for number, each in enumerate(identities) if each}
        self._hashes = [fnv_1a(each[2].decode()) if each else 0 for each in identities]
        self._applied: dict[str, list[str]] = {}
        """By name, the labels that were applied."""
        self._changes: list[Change] = []
        self.changed = asyncio.Event()
        """Set at the next change."""
        self.version = _FIRST_VERSION

    def page(self, limit: int, start: int, shards: ShardRanges) -> bytes:
        """A page of a list; the continue token is the index of the next object."""
        chosen: list[bytes] = []
        number = start
        while number < len(self._objects) and not (limit and len(chosen) == limit):
            if shards.contains(self._hashes[number]):
                chosen.append(self._objects[number])
            number += 1
        metadata = {"resourceVersion": str(self.version)}
        metadata |= {"continue": str(number)} if number < len(self._objects) else {}
        head = json.dumps({"kind": f"{self.kind}List", "metadata": metadata})[:-1].encode()
        return head + b',"items":[' + b",".join(chosen) + b"]}"

    def patch(self, name: str, content_type: str, body: Any) -> bytes | None:
        """Change the labels of an object by an apply or a merge patch; None for an unknown object."""
        number = self._numbers.get(name)
        if number is None:
            return None
        obj = json.loads(self._objects[number])
        labels: dict[str, Any] = (
            body.get("metadata", {}).get("labels") or {} if isinstance(body, dict) else {}
        )
        metadata = obj["metadata"]
        if "apply" in content_type:
            for key in self._applied.get(name, ()):
                metadata["labels"].pop(key, None)
            self._applied[name] = list(labels)
        metadata["labels"] = {
            key: value for key, value in (metadata["labels"] | labels).items() if value is not None
        }
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self._objects[number] = data = json.dumps(obj, separators=(",", ":")).encode()
        line = b'{"type":"MODIFIED","object":' + data + b"}\n"
        self._changes.append(Change(self.version, self._hashes[number], line))
        self.changed.set()
        self.changed = asyncio.Event()
        return data

    def lines_since(self, version: int, shards: ShardRanges) -> tuple[int, list[bytes]]:
        """The newest version, and the events of a watch since another one."""
        first = len(self._changes) - (self.version - version)
        chosen = [change.line for change in self._changes[max(first, 0) :] if shards.contains(change.hash)]
        return self.version, chosen

    def bookmark(self) -> bytes:
        obj = {"kind": self.kind, "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}}
        return json.dumps({"type": "BOOKMARK", "object": obj}).encode() + b"\n"


_IDENTITY: Final = re.compile(rb'"metadata": ?\{"name": ?"([^"]+)".*?"uid": ?"([^"]+)"')


class BenchApiServer:
    """An ASGI callable. `collections` are objects by the path of their list.

    Written objects other than nodes (a Lease, the status of a policy, an event) are stored and returned; watches do not
    report them.
    """

    def __init__(
        self,
        collections: Mapping[str, Collection],
        answers: Mapping[str, Iterator[bytes]],
        rolling: "RollingMetric",
    ) -> None:
        self._collections = collections
        self._answers = answers
        self._rolling = rolling
        self._written: dict[str, dict[str, Any]] = {}
        self._versions = itertools.count(2000)
        self._sent: Counter[str] = Counter()
        self._patches = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        query = {key: values[-1] for key, values in parse_qs(scope["query_string"].decode()).items()}
        body = await _body(receive)
        place = f"{scope['server'][1]} {'nodes' if path == NODES else 'others'}"

        async def send_counted(message: dict[str, Any]) -> None:
            self._sent[place] += len(message.get("body", b""))
            await send(message)

        if path in self._collections and query.get("watch") in {"1", "true"}:
            await _send_changes(receive, send_counted, self._collections[path], query)
        elif method == "GET":
            await _send_response(send_counted, *self._read(path, query))
        elif path == ROLL:
            self._rolling.begin(float(query["share"]))
            await _send_response(send, 200, b"{}")
        else:
            headers = dict(scope["headers"])
            content_type = headers.get(b"content-type", b"").decode()
            written = self._write(path, method, content_type, json.loads(body or b"{}"))
            await _send_response(send_counted, *written)

    def _read(self, path: str, query: Mapping[str, str]) -> tuple[int, bytes]:
        if path in self._collections:
            shards = ShardRanges(query.get("shardSelector", ""))
            limit, start = int(query.get("limit", "0")), int(query.get("continue", "0"))
            return 200, self._collections[path].page(limit, start, shards)
        if path in self._written:
            return 200, json.dumps(self._written[path]).encode()
        if path == METRICS_API:
            return 200, _group()
        if path == SENT:
            return 200, json.dumps({"sent": self._sent, "patches": self._patches}).encode()
        metric = path.removeprefix(f"{METRICS_API}/{VERSION}/nodes/*/")
        if metric == generated_cluster_objects.ROLLING or metric in self._answers:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
            prepared = next(self._answers[metric]) if metric in self._answers else self._rolling.answer()
            return 200, prepared.replace(generated_cluster_objects.TIMESTAMP_PLACEHOLDER, now)
        return _failure(404, "NotFound", f"the benchmark has no {path}")

    def _write(self, path: str, method: str, content_type: str, change: Any) -> tuple[int, bytes]:
        """Create, replace or patch; of objects other than nodes, a JSON patch changes nothing. A replacement of another
        version is a conflict, as Leases require.
        """
        folder, _, name = path.rpartition("/")
        if method == "PATCH" and folder == NODES:
            self._patches += 1
            return 200, self._collections[NODES].patch(name, content_type, change) or b"{}"
        steps = isinstance(change, list)
        known = self._written.get(path, {}) if method == "PATCH" else {}
        written = known | ({} if steps else change)
        metadata = written.get("metadata", {})
        place = f"{path}/{metadata.get('name', '')}" if method == "POST" else path
        if method == "POST" and place in self._written:
            return _failure(409, "AlreadyExists", f"{place} already exists")
        if method == "PUT":
            stored = self._written.get(place, {}).get("metadata", {})
            if metadata.get("resourceVersion") not in (None, "", stored.get("resourceVersion")):
                return _failure(409, "Conflict", f"{place} has been modified")
        written["metadata"] = metadata | {"resourceVersion": str(next(self._versions))}
        self._written[place] = written
        return 200, json.dumps(written).encode()


class RollingMetric:
    """The values of `ROLLING`: above the threshold on a window of nodes, which moves after `begin`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._share = 0.0
        self._begun_s = 0.0

    def begin(self, share: float) -> None:
        self._share, self._begun_s = share, time.monotonic()

    def answer(self) -> bytes:
        count = len(self._names)
        width = round(generated_cluster_objects.ROLLING_SHARE * count)
        moved = round(self._share * count * (time.monotonic() - self._begun_s) / 60)
        values = ["90" if (number - moved) % count < width else "10" for number in range(count)]
        if self._share == 1.0:
            values = ["90"] * count
        return generated_cluster_objects.value_list(generated_cluster_objects.ROLLING, self._names, values)


def _failure(code: int, reason: str, message: str) -> tuple[int, bytes]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return code, json.dumps(status | {"message": message}).encode()


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


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


async def _send_changes(
    receive: Receive, send: Send, collection: Collection, query: Mapping[str, str]
) -> None:
    """Send changes and bookmarks until the watch times out or the client disconnects."""
    shards = ShardRanges(query.get("shardSelector", ""))
    version = int(query.get("resourceVersion") or collection.version)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    )
    disconnected = asyncio.ensure_future(receive())
    end_at = time.monotonic() + float(query.get("timeoutSeconds", "inf"))
    bookmark_at = time.monotonic()
    while not disconnected.done() and (left_s := end_at - time.monotonic()) > 0:
        version, lines = collection.lines_since(version, shards)
        if time.monotonic() >= bookmark_at:
            lines.append(collection.bookmark())
            bookmark_at = time.monotonic() + BOOKMARK_S
        if lines:
            await send({"type": "http.response.body", "body": b"".join(lines), "more_body": True})
        else:
            changed = asyncio.ensure_future(collection.changed.wait())
            wait_s = min(bookmark_at - time.monotonic(), left_s)
            await asyncio.wait([disconnected, changed], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
    if not disconnected.done():
        disconnected.cancel()
        await send({"type": "http.response.body", "body": b""})


def build(count: int, pods: int = 0, *, rolling: bool = False) -> BenchApiServer:
    """Create the API server of a cluster with these numbers of nodes and pods, with `rolling_policy` on request."""
    names = sorted(generated_cluster_objects.names(count))  # in etcd's order
    images = json.dumps(generated_cluster_objects.node("", 0)["status"]["images"]).encode()
    nodes = [
        json.dumps(generated_cluster_objects.node(name, number, images=0))
        .encode()
        .replace(b'"images": []', b'"images": ' + images)
        for number, name in enumerate(names)
    ]
    policies = generated_cluster_objects.policies()
    if rolling:
        # one other policy, with three metrics: several replicas fetch the metrics of all nodes, on few cores
        policies = [policies[0], generated_cluster_objects.rolling_policy()]
    namespace = kubernetes_objects.namespace(generated_cluster_objects.NAMESPACE, trusted=True)
    collections = {
        NODES: Collection("Node", nodes),
        "/api/v1/pods": Collection("Pod", _pods(names, pods)),
        "/api/v1/namespaces": Collection("Namespace", [json.dumps(namespace).encode()] if rolling else []),
        "/apis/telemetry.intel.com/v1alpha1/taspolicies": Collection(
            "TASPolicy", [json.dumps(policy).encode() for policy in policies]
        ),
        "/apis/nodewise.io/v1alpha1/placementpolicies": Collection("PlacementPolicy", []),
        "/apis/nodewise.io/v1alpha1/clusterplacementpolicies": Collection("ClusterPlacementPolicy", []),
    }
    variants = min(max(VALUES_PER_METRIC // count, 2), 5)
    answers = {
        metric: itertools.cycle(
            [generated_cluster_objects.answer(metric, names, seed) for seed in range(variants)]
        )
        for metric in generated_cluster_objects.METRICS
    }
    return BenchApiServer(collections, answers, RollingMetric(names))


def _pods(names: Sequence[str], count: int) -> list[bytes]:
    """Pods of about 5 kB, spread over the nodes."""
    number, node = 12_345, "NODE-NAME"
    template = etcd_population.pod(number, node)
    metadata = template["metadata"]
    text = json.dumps(template)
    return [
        text.replace(metadata["name"], f"web-7d4b9c6f5d-{index:06d}")
        .replace(metadata["uid"], f"0b8f3c1e-3c5c-4d6f-9a53-{index:012d}")
        .replace(node, names[index % len(names)])
        .encode()
        for index in range(count)
    ]


def main() -> None:
    options = _arguments()
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(options.ports)]
    config = uvicorn.Config(
        build(options.nodes, options.pods, rolling=options.rolling),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        ssl_certfile=options.cert,
        ssl_keyfile=options.key,
    )
    server_command_line.announce(*(each.getsockname()[1] for each in opened))
    uvicorn.Server(config).run(sockets=opened)


def _arguments() -> argparse.Namespace:
    parser = server_command_line.argument_parser(__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--rolling", action="store_true", help="with a policy whose labels change")
    parser.add_argument("--ports", type=int, default=1, help="number of ports")
    return parser.parse_args()


if __name__ == "__main__":
    main()
