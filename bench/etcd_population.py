"""Writes tens of thousands of nodes and pods directly into etcd, as the API server stores them, within seconds.

The API server reads JSON from its storage as well as protobuf, so a stored object is the object's JSON without the
resourceVersion, which comes from etcd.
"""

import itertools
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import httpx2

from bench import generated_cluster_objects
from bench.generated_cluster_objects import Object

WRITE_BYTES: Final = 500_000
"""Size of one transaction; etcd accepts 1.5 MiB."""
WRITE_KEYS: Final = 100
"""Operations of one transaction; etcd accepts 128."""
CONCURRENCY: Final = 2
GROUP: Final = 16
"""Transactions that are prepared at a time, so that not all objects are in memory."""
PROGRESS_EVERY: Final = 10_000
WAITING_PODS: Final = 1000
"""Number of unschedulable pods: as many as nodewise evaluates in one pass."""


class EtcdEntry(NamedTuple):
    """A key and an encoded object in etcd."""

    key: str
    value: bytes


def nodes(names: Iterable[str]) -> Iterator[EtcdEntry]:
    """Nodes of about 10 kB."""
    for number, name in enumerate(names):
        yield EtcdEntry(f"/registry/minions/{name}", stored(generated_cluster_objects.node(name, number)))


def pods(names: list[str], count: int) -> Iterator[EtcdEntry]:
    """Pods of about 5 kB, spread over the nodes; the first `WAITING_PODS` are unschedulable."""
    for number in range(count):
        node = "" if number < WAITING_PODS else names[number % len(names)]
        obj = pod(number, node)
        yield EtcdEntry(
            f"/registry/pods/{generated_cluster_objects.NAMESPACE}/{obj['metadata']['name']}", stored(obj)
        )


def stored(obj: Object) -> bytes:
    """Encode an object as the API server stores it."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return json.dumps(obj | {"metadata": metadata}, separators=(",", ":")).encode()


def pod(number: int, node: str) -> Object:
    """A Pod of a Deployment with the fields of admission, controllers and kubelet; bound or unschedulable."""
    template = generated_cluster_objects.pod(number)
    metadata = template["metadata"] | {
        "generateName": "web-7d4b9c6f5d-",
        "annotations": {"checksum/config": f"{number * 7919:064x}", "prometheus.io/scrape": "true"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": "web-7d4b9c6f5d",
                "uid": "1c9f3f0e-8d0a-4b8f-9b63-000000000001",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": _managed_fields(),
    }
    spec = template["spec"] | _SPEC | ({"nodeName": node} if node else {})
    status = _running(number) if node else _waiting()
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


_SPEC: Final[Object] = {
    "volumes": [
        {
            "name": "token",
            "projected": {
                "defaultMode": 420,
                "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {
                        "configMap": {
                            "name": "kube-root-ca.crt",
                            "items": [{"key": "ca.crt", "path": "ca.crt"}],
                        }
                    },
                ],
            },
        }
    ],
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "securityContext": {},
    "enableServiceLinks": True,
    "tolerations": [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        for key in ("not-ready", "unreachable")
    ],
}


def _managed_fields() -> list[Object]:
    owned = {"f:metadata": {"f:labels": {"f:app": {}, "f:telemetry-policy": {}}, "f:generateName": {}}}
    env = {f'k:{{"name":"SETTING_{number}"}}': {".": {}, "f:name": {}, "f:value": {}} for number in range(20)}
    container = {".": {}, "f:env": env, "f:image": {}, "f:name": {}, "f:resources": {}, "f:ports": {}}
    spec = {"f:spec": {"f:containers": {'k:{"name":"web"}': container}, "f:restartPolicy": {}}}
    common = {"apiVersion": "v1", "fieldsType": "FieldsV1", "operation": "Update", "time": _TIME}
    return [
        common | {"manager": "kube-controller-manager", "fieldsV1": owned | spec},
        common | {"manager": "kubelet", "subresource": "status", "fieldsV1": {"f:status": {"f:phase": {}}}},
    ]


_TIME: Final = "2026-01-01T00:00:00Z"


def _condition(kind: str, **extra: str) -> Object:
    return {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _TIME} | extra


def _running(number: int) -> Object:
    address = f"100.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": _TIME,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_condition(kind) for kind in kinds],
        "containerStatuses": [
            {
                "name": "web",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "image": "registry.example/shop/web:1.4.2",
                "imageID": f"registry.example/shop/web@sha256:{7919:064x}",
                "containerID": f"containerd://{number * 104729:064x}",
                "state": {"running": {"startedAt": _TIME}},
            }
        ],
    }


def _waiting() -> Object:
    """Status of a pod that kube-scheduler's own plugins rejected, so nodewise does not requeue it."""
    message = "0/5000 nodes are available: 5000 Insufficient cpu. preemption: 0/5000 nodes are available."
    condition = _condition("PodScheduled", status="False", reason="Unschedulable", message=message)
    return {"phase": "Pending", "qosClass": "Burstable", "conditions": [condition]}


def batches(entries: Iterable[EtcdEntry]) -> Iterator[list[EtcdEntry]]:
    """Group entries into transactions."""
    batch: list[EtcdEntry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) == WRITE_KEYS or size + len(entry.value) > WRITE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += len(entry.value)
    if batch:
        yield batch


def fill(etcd: str, entries: Iterable[EtcdEntry], report_progress: Callable[[int], Any]) -> None:
    """Write all entries through etcd's JSON gateway; `report_progress` gets the number of written entries.

    `httpx2.HTTPStatusError` if etcd rejects a transaction.
    """
    written = 0
    with (
        httpx2.Client(base_url=etcd, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):

        def put(batch: list[EtcdEntry]) -> int:
            puts = [
                {"requestPut": {"key": _text(key.encode()), "value": _text(value)}} for key, value in batch
            ]
            client.post("/v3/kv/txn", json={"success": puts}).raise_for_status()
            return len(batch)

        waiting = batches(entries)
        while group := list(itertools.islice(waiting, GROUP)):
            before, written = written, written + sum(pool.map(put, group))
            if before // PROGRESS_EVERY < written // PROGRESS_EVERY:
                report_progress(written)


def _text(data: bytes) -> str:
    return b64encode(data).decode()
