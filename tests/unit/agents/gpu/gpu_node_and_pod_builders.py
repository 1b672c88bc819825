"""Nodes and pods for the tests of the gpu agent, in the short forms of the specification's cases."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from nodewise.agents.gpu.gpu_pod_fields import GpuPod
from nodewise.agents.gpu.node_gpus import GPUS, GpuNode

INTEL = "gpu.intel.com/"
SHORT = {"mc": "millicores", "mem": "memory.max", "t": "tiles", "mon": "i915_monitoring"}
LABELS = {
    "gn": "gpu-numbers",
    "numa": "numa-gpu-map",
    "xl": "xe-links",
    "pci": "pci-groups",
    "cards": "cards",
}


def resources(text: str) -> dict[str, str]:
    """Parse amounts of Intel's resources, such as `i915=1 mc=100`. A name with a slash is used unchanged."""
    pairs = (part.split("=") for part in text.split())
    return {name if "/" in name else INTEL + SHORT.get(name, name): amount for name, amount in pairs}


def labels(text: str) -> dict[str, str]:
    """Parse labels such as `gn=0.1 gn2=Z.2 D:gas-prefer-gpu=card1`.

    `D:` is a label of the telemetry policy `pol`, `D(a):` one of the policy `a`.
    """
    values = {}
    for part in text.split():
        key, _, value = part.partition("=")
        base = key.rstrip("23456789")
        if base in LABELS:
            key = f"{INTEL}{LABELS[base]}{key.removeprefix(base)}"
        elif key.startswith("D"):
            policy, _, name = key[1:].partition(":")
            key = f"telemetry.aware.scheduling.{policy.strip('()') or 'pol'}/{name}"
        values[key] = value
    return values


def node(tags: str = "", allocatable: str = "", *, gpus: str | None = None) -> GpuNode:
    return raw_node(labels(tags), resources(allocatable), gpus)


def raw_node(tags: Any, allocatable: Any, gpus: str | None = None) -> GpuNode:
    annotations = {"other": "x"} if gpus is None else {GPUS: gpus}
    document = {
        "metadata": {"name": "n", "labels": tags, "annotations": annotations},
        "status": {"allocatable": allocatable},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=GpuNode)


def pod(*containers: str, init: Sequence[Mapping[str, Any]] = (), **annotations: str) -> GpuPod:
    """A pod with containers c0, c1, … that have these requests. `gas_deny="card0"` is the annotation gas-deny."""
    renamed = {key.replace("_", "-"): value for key, value in annotations.items()}
    return raw_pod([container(f"c{at}", text) for at, text in enumerate(containers)], init, renamed)


def container(name: str, requests: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": resources(requests)}} | more


def raw_pod(containers: Any, init: Any = (), annotations: Any = None) -> GpuPod:
    document = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": containers, "initContainers": init},
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=GpuPod)
