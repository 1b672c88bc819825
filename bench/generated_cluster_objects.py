"""Data of the benchmarks: nodes, policies, pods and responses of the metrics API. Pure functions.

Every metric response rejects the same nodes: `REJECTED_SHARE` of all, by two rules that no node violates
together, so figures do not depend on which response was read last. All other values change.
"""

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

NAMESPACE: Final = "shop"
POLICY: Final = "web"
REJECTED_SHARE: Final = 0.5
TEMPERATURE, ERRORS, POWER = "node_cpu_temp", "node_disk_errors", "node_power_watts"
ROLLING: Final = "node_rolling"
"""A metric of the policy of `rolling_policy`: the nodes that it labels change one after another."""
ROLLING_SHARE: Final = 0.01
"""Share of the nodes that get the label within a minute, while as many lose it."""
OTHERS: Final = tuple(f"node_{name}" for name in ("psi_cpu", "psi_io", "psi_mem", "tx", "rx", "fan", "steal"))
METRICS: Final = (TEMPERATURE, ERRORS, POWER, *OTHERS)
"""Three metrics of the pod's policy and seven of another policy: ten are fetched in every period."""
HALF_LABEL: Final = "node.example/half"
"""A label that never changes: whether the policy accepts the node."""
TIMESTAMP_PLACEHOLDER: Final = b"1970-01-01T00:00:00Z"
"""Placeholder for the time of the request in prepared responses."""

Object = dict[str, Any]


def names(count: int) -> list[str]:
    """Node names in the format of a cloud provider: `ip-10-0-12-34.eu-central-1.compute.internal`."""
    return [f"ip-10-{n >> 16}-{n >> 8 & 255}-{n & 255}.eu-central-1.compute.internal" for n in range(count)]


def uid(what: str) -> str:
    """A uid whose digits are as random as those of the API server, so that shards get equal parts."""
    digits = hashlib.md5(what.encode(), usedforsecurity=False).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def node(name: str, number: int, images: int = 61) -> Object:
    """A Node of about 10 kB, mostly images, as a kubelet reports it."""
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": uid(f"node {number}"),
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": _labels(name, number),
        },
        "spec": {
            "podCIDR": f"100.64.{number % 256}.0/24",
            "providerID": f"aws:///eu-central-1a/i-{number:017x}",
        },
        "status": {
            "capacity": {
                "cpu": "32",
                "memory": "131072000Ki",
                "pods": "110",
                "ephemeral-storage": "209702892Ki",
            },
            "allocatable": {"cpu": "31850m", "memory": "127926272Ki", "pods": "110"},
            "conditions": [
                _condition(kind) for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "addresses": [
                {"type": "InternalIP", "address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"}
            ],
            "images": [_image(number, image) for image in range(images)],
        },
    }


def is_rejected(number: int) -> bool:
    """Whether the node with this number violates a rule of the policy, in every response: half of all do."""
    return _is_hot(number) or _has_errors(number)


def _labels(name: str, number: int) -> dict[str, str]:
    return {
        HALF_LABEL: "rejected" if is_rejected(number) else "accepted",
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m6i.8xlarge",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": f"eu-central-1{'abc'[number % 3]}",
    }


def _condition(kind: str) -> Object:
    return {
        "type": kind,
        "status": "True" if kind == "Ready" else "False",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": f"Kubelet{kind}",
        "message": f"kubelet has posted {kind}",
    }


def _image(number: int, image: int) -> Object:
    digest = f"{number * 7919 + image:064x}"
    return {
        "names": [f"registry.example/team-{image % 7}/service-{image}@sha256:{digest}"],
        "sizeBytes": 50_000_000 + image,
    }


def policies() -> list[Object]:
    """The pod's policy, with two filter rules and one score rule, and a policy for the other metrics."""
    filtering = [
        {"metricname": TEMPERATURE, "operator": "GreaterThan", "target": 80},
        {"metricname": ERRORS, "operator": "GreaterThan", "target": 0},
    ]
    ranking = [{"metricname": POWER, "operator": "LessThan"}]
    others = [{"metricname": name, "operator": "GreaterThan", "target": 10**9} for name in OTHERS]
    return [
        policy(POLICY, {"dontschedule": {"rules": filtering}, "scheduleonmetric": {"rules": ranking}}),
        policy("batch", {"dontschedule": {"rules": others}}),
    ]


def rolling_policy() -> Object:
    """A policy that labels the nodes of which `ROLLING` is above 50."""
    rule = {"metricname": ROLLING, "operator": "GreaterThan", "target": 50, "labels": ["rolling=yes"]}
    return policy("rolling", {"labeling": {"rules": [rule]}})


def policy(name: str, strategies: Object) -> Object:
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"policy-{name}",
            "resourceVersion": "7",
            "generation": 1,
        },
        "spec": {"strategies": strategies},
    }


def requests(nodes: list[str], count: int, make_pod: Callable[[int], Object] | None = None) -> list[bytes]:
    """Bodies of filter and prioritize as kube-scheduler encodes them, with names.

    Each has another pod, and its list begins at another node, because kube-scheduler continues where it stopped; so no
    response can be cached. `make_pod` creates a pod from its number; the default creates pods of the policy.
    """
    return [
        _request_body((make_pod or pod)(number), None, _in_feasible_order(_rotated(nodes, number, count)))
        for number in range(count)
    ]


def whole_requests(nodes: list[str], count: int) -> list[bytes]:
    """Bodies with whole nodes instead of names, about 10 kB each; 52 MB at 5,000 nodes."""
    written = {name: _compact(_as_sent(node(name, number))) for number, name in enumerate(nodes)}
    bodies = []
    for number in range(count):
        items = b",".join(written[name] for name in _in_feasible_order(_rotated(nodes, number, count)))
        before, after = _request_body(pod(number), {"metadata": {}, "items": []}, None).split(b'"items":[]')
        bodies.append(before + b'"items":[' + items + b"]" + after)
    return bodies


def _request_body(asking: Object, whole: Object | None, names: list[str] | None) -> bytes:
    return _compact({"Pod": asking, "Nodes": whole, "NodeNames": names})


def _compact(obj: Object) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


def _as_sent(obj: Object) -> Object:
    """The object without kind and apiVersion, which kube-scheduler does not send."""
    return {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}


def _rotated(nodes: list[str], number: int, count: int) -> list[str]:
    start = number * len(nodes) // count
    return nodes[start:] + nodes[:start]


def _in_feasible_order(nodes: list[str]) -> list[str]:
    """The order in which kube-scheduler's parallel workers find feasible nodes, each in its own chunk."""
    size = min(math.isqrt(len(nodes)), len(nodes) // _WORKERS + 1)
    chunks = [nodes[start : start + size] for start in range(0, len(nodes), size)]
    taken = (chunks[start : start + _WORKERS] for start in range(0, len(chunks), _WORKERS))
    return [
        name
        for concurrent_chunks in taken
        for names in itertools.zip_longest(*concurrent_chunks)
        for name in names
        if name
    ]


_WORKERS: Final = 16
"""kube-scheduler's default parallelism; a chunk has the square root of the number of nodes (v1.36 chunkSizeFor)."""


def pod(number: int) -> Object:
    container = {
        "name": "web",
        "image": "registry.example/shop/web:1.4.2",
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(20)],
        "resources": {
            "limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": "500m", "memory": "512Mi"},
        },
        "volumeMounts": [
            {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        ],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    metadata = {
        "name": f"web-7d4b9c6f5d-{number:05d}",
        "namespace": NAMESPACE,
        "uid": f"0b8f3c1e-3c5c-4d6f-9a53-{number:012d}",
        "labels": {"app": "web", "telemetry-policy": POLICY},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    spec = {
        "containers": [container],
        "schedulerName": "default-scheduler",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}


def answer(metric: str, nodes: list[str], seed: int) -> bytes:
    """A MetricValueList (v1beta2) about all nodes, about 1 MB at 5,000, with placeholders for the times of values."""
    return value_list(metric, nodes, _values(metric, len(nodes), random.Random(f"{metric} {seed}")))


def value_list(metric: str, nodes: Sequence[str], values: Sequence[str]) -> bytes:
    """A MetricValueList with these values of the nodes."""
    item = (
        '{"describedObject":{"kind":"Node","name":"%s","apiVersion":"/v1"},'
        '"metric":{"name":"%s","selector":null},"timestamp":"%s","value":"%s"}'
    )
    stamp = TIMESTAMP_PLACEHOLDER.decode()
    items = ",".join(item % (name, metric, stamp, value) for name, value in zip(nodes, values, strict=True))
    head = '{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":['
    return f"{head}{items}]}}\n".encode()


def _values(metric: str, count: int, chance: random.Random) -> list[str]:
    """Mostly distinct values, except error counts. Three in five nodes with even numbers are hot, and two in five with
    odd numbers have errors: half of all.
    """
    if metric == TEMPERATURE:
        return [
            f"{chance.randrange(80_001, 99_000) if _is_hot(n) else chance.randrange(30_000, 80_000)}m"
            for n in range(count)
        ]
    if metric == ERRORS:
        return [str(chance.randrange(1, 50)) if _has_errors(n) else "0" for n in range(count)]
    return [f"{chance.randrange(1, 900_000_000)}m" for _ in range(count)]


def _is_hot(number: int) -> bool:
    return number % 10 in {0, 2, 4}


def _has_errors(number: int) -> bool:
    return number % 10 in {1, 3}
