"""The objects of a hostile namespace at its limits: pods with large annotations, pending pods, and policies."""

from collections.abc import Iterator
from typing import Final

from bench import etcd_population
from bench.etcd_population import EtcdEntry
from bench.generated_cluster_objects import Object
from nodewise.agents.gpu.gpu_pod_fields import MOST_PENDING_BYTES
from nodewise.policies.options import TelemetryOptions

NAMESPACE: Final = "hostile"
BUDGETS: Final = TelemetryOptions()
METRICS: Final = tuple(f"hostile_{number}" for number in range(BUDGETS.metrics_per_namespace))
LARGE_PODS: Final = 200
ANNOTATION_BYTES: Final = 255_000
"""Annotations of a large pod. The API server accepts 256 KiB."""
READ_BYTES: Final = MOST_PENDING_BYTES - 1000
"""Of these, the annotation that the gpu agent reads. It is stored with the pod, and again with the pods that wait for a
node; of a larger pod, the gpu agent would store nothing."""
PENDING_PODS: Final = 1000
POLICIES: Final = 2
THRESHOLD: Final = 450_000
"""Half of the values of a metric exceed it."""


def pods() -> Iterator[EtcdEntry]:
    """Pending pods that request a GPU and have as many annotations as possible, and pods that request nothing."""
    for number in range(LARGE_PODS):
        pod = _pending_pod(f"large-{number}", number)
        notes = {"gas-allow": "x" * READ_BYTES, "note": "x" * (ANNOTATION_BYTES - READ_BYTES)}
        pod["metadata"] |= {"annotations": notes}
        pod["spec"]["containers"][0]["resources"] = {
            kind: {"gpu.intel.com/i915": "1"} for kind in ("limits", "requests")
        }
        yield _entry(pod)
    for number in range(PENDING_PODS):
        pod = _pending_pod(f"pending-{number}", LARGE_PODS + number)
        del pod["metadata"]["labels"]["telemetry-policy"]
        yield _entry(pod)


def policies() -> list[Object]:
    """Policies with as many rules and metrics as the budgets permit.

    Their rules have states of nodes, and reject other nodes after each refresh, so that as many flaps are remembered as
    possible.
    """
    rules = [
        {
            "metric": METRICS[number % len(METRICS)],
            "above": THRESHOLD + number,
            "release": THRESHOLD - 1,
            **({"for": "1s"} if number % 4 == 0 else {}),
        }
        for number in range(BUDGETS.rules_per_namespace)
    ]
    return [
        {
            "apiVersion": "nodewise.io/v1alpha1",
            "kind": "PlacementPolicy",
            "metadata": {"name": f"policy-{number}", "namespace": NAMESPACE},
            "spec": {"podSelector": {}, "avoid": rules[number::POLICIES]},
        }
        for number in range(POLICIES)
    ]


def _pending_pod(name: str, number: int) -> Object:
    pod = etcd_population.pod(10**6 + number, "")
    pod["metadata"] |= {"name": name, "namespace": NAMESPACE}
    return pod


def _entry(pod: Object) -> EtcdEntry:
    key = f"/registry/pods/{NAMESPACE}/{pod['metadata']['name']}"
    return EtcdEntry(key, etcd_population.stored(pod))
