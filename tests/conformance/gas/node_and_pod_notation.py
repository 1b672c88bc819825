"""The short notation of the tables for nodes with GPUs and pods that request them, as Kubernetes objects.

A node is written as its labels, `;`, and its allocatable resources: `gn=0.1 D:gas-prefer-gpu=card1; i915=16 mc=2000`.
The capacity is equal to these resources, unless a second `;` and the capacity follow. A pod is written as its
containers, each with its requests in brackets: `[i915=1 mc=100] side[] init:setup[i915=1]`. A pod that already exists
is written as its node, its annotations, `;`, and its containers: `n1 c=card0|card1 t=|card1:gt0; [i915=1][i915=1]`.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.cluster import kubernetes_objects
from tests.cluster.api_client import Object

PREFIX: Final = "gpu.intel.com/"
TELEMETRY: Final = "telemetry.aware.scheduling."
CARDS: Final = "gas-container-cards"
TILES: Final = "gas-container-tiles"

_LABELS: Final = {
    "gn": "gpu-numbers",
    "cards": "cards",
    "numa": "numa-gpu-map",
    "xl": "xe-links",
    "pci": "pci-groups",
}
_RESOURCES: Final = {"mc": "millicores", "mem": "memory.max", "t": "tiles", "mon": "i915_monitoring"}
_DRIVERS: Final = {"i915": "xe", "i915_monitoring": "xe_monitoring"}
_CONTAINER: Final = re.compile(r"\s*(?:(init|sidecar):)?([\w-]*)\[([^]]*)\]")
_TELEMETRY: Final = re.compile(r"D(?:\((\w+)\))?:")


class RunningPod(NamedTuple):
    """A pod that already exists; `containers` is in the notation."""

    node: str
    annotations: dict[str, str]
    containers: str


def node(name: str, text: str, driver: str = "i915") -> Object:
    """Parse a node. `driver` is the resource that replaces `i915` in the text."""
    labels, allocatable, *capacity = text.split(";")
    node = kubernetes_objects.node(name, labels=dict(map(_label, labels.split())))
    plain = node["status"]["capacity"]
    node["status"]["allocatable"] = plain | _resources(allocatable, driver)
    node["status"]["capacity"] = plain | _resources(capacity[0] if capacity else allocatable, driver)
    return node


def pod(name: str, text: str, annotated: Mapping[str, str], driver: str = "i915") -> Object:
    """Parse a pod that is not bound. Containers without a name are named c0, c1, … by their position."""
    spec: dict[str, list[Object]] = {"containers": [], "initContainers": []}
    for kind, container_name, requests in _CONTAINER.findall(text):
        among = spec["initContainers" if kind else "containers"]
        resources = _resources(requests, driver)
        made = {
            "name": container_name or f"c{len(among)}",
            "image": "none",
            "resources": {"requests": resources, "limits": resources},
        }
        among.append(made | ({"restartPolicy": "Always"} if kind == "sidecar" else {}))
    rest = _CONTAINER.sub("", text).strip()
    if rest or not spec["containers"]:
        raise ValueError(f"a pod of {text!r}: {rest!r} is no container")
    metadata = {"name": name, "annotations": dict(annotated)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def running(text: str) -> RunningPod:
    """Parse a pod that already exists. `c` is its cards annotation and `t` its tiles annotation."""
    head, _, containers = text.partition(";")
    on, *words = head.split()
    return RunningPod(on, annotations(" ".join(words)), containers.strip())


def annotations(text: str) -> dict[str, str]:
    """Parse annotations: `c=` is a pod's cards, `t=` its tiles, and any other key is the annotation's name."""
    names = {"c": CARDS, "t": TILES}
    return {names.get(key, key): value for key, _, value in (word.partition("=") for word in text.split())}


def resource(short: str, driver: str = "i915") -> str:
    """The full name of a resource."""
    if "/" in short or short == "cpu":
        return short
    known = _RESOURCES.get(short, short)
    return PREFIX + (_DRIVERS.get(known, known) if driver == "xe" else known)


def short(resource: str) -> str:
    """The short name of a resource."""
    name = resource.removeprefix(PREFIX)
    return next((short for short, long in _RESOURCES.items() if long == name), name)


def _resources(text: str, driver: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {resource(name, driver): value for name, _, value in pairs}


def _label(word: str) -> tuple[str, str]:
    """Parse a label.

    `gn=0.1` is a GPU label and `gn2=Z.2` a continuation of it. `D:name=value` is a label of the telemetry policy `pol`,
    `D(a):…` one of the policy `a`.
    """
    name, _, value = word.partition("=")
    if of := _TELEMETRY.match(name):
        return f"{TELEMETRY}{of[1] or 'pol'}/{name[of.end() :]}", value or "true"
    if "/" in name:
        return name, value or "true"
    stem = name.rstrip("0123456789")
    return f"{PREFIX}{_LABELS[stem]}{name[len(stem) :]}", value
