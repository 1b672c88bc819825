"""Nodes with GPUs, pods that request them, and nodewise with the gpu agent and the shipped rights."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster import api_user_kubeconfigs, child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import OWN_NAMESPACE, CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox

PREFIX = "gpu.intel.com/"
CARDS = "gas-container-cards"
MANAGED = [{"name": f"{PREFIX}i915"}, {"name": f"{PREFIX}xe"}]
FAST = ("--kube-qps=200", "--kube-burst=400")


def node(name: str, cards: int = 8, shares: int = 1, cpu: str = "64", **each: int) -> Object:
    """A node with GPUs. `shares` and the further resources are amounts per GPU."""
    amounts = {f"{PREFIX}i915": str(cards * shares)}
    amounts |= {f"{PREFIX}{resource}": str(cards * amount) for resource, amount in each.items()}
    labels = {f"{PREFIX}gpu-numbers": ".".join(map(str, range(cards)))}
    return kubernetes_objects.node(name, cpu=cpu, memory="256Gi", pods=500, labels=labels, extra=amounts)


def pod(name: str, i915: int = 1, **amounts: int) -> Object:
    """A pod of one container that requests GPUs. The further resources are amounts for all GPUs of the pod together."""
    wanted = {f"{PREFIX}{resource}": str(amount) for resource, amount in {"i915": i915, **amounts}.items()}
    return kubernetes_objects.pod(name, limits=wanted)


def user(plane: ControlPlane) -> User:
    """A user with the shipped rights of the gpu agent."""
    made = plane.user(f"nodewise-{child_processes.number()}")
    for kind, namespace in (("ClusterRole", ""), ("Role", OWN_NAMESPACE)):
        shipped = extender_process.manifest("gpu.yaml")
        more: list[Object] = next(manifest for manifest in shipped if manifest["kind"] == kind)["rules"]
        api_user_kubeconfigs.grant(plane.api, made.name, [*extender_process.rules(kind), *more], namespace)
    return made


@contextlib.contextmanager
def extender(
    plane: ControlPlane,
    folder: Path,
    *more: str,
    certificates: CertificateFiles | None = None,
    by: User | None = None,
) -> Iterator[ExtenderProcess]:
    """Runs an extender with the gpu agent and yields it once it is ready."""
    by = by or user(plane)
    with extender_process.extender(
        plane, folder, "--agents=gpu", *FAST, *more, certificates=certificates, by=by
    ) as running:
        yield running


def entry(running: ExtenderProcess, **fields: Any) -> Object:
    """The extender's entry of a scheduler configuration."""
    return running.entry(bindVerb="bind", managedResources=MANAGED, **fields)


def cards_of(pod: Object) -> list[str]:
    """All GPUs of a pod according to its annotation."""
    text = pod["metadata"].get("annotations", {}).get(CARDS, "")
    return [card for part in text.split("|") for card in part.split(",") if card]


def allocation_record(sandbox: Sandbox, node: str, namespace: str = OWN_NAMESPACE) -> Mapping[str, Any]:
    """The entries of a node's allocation record by pod UID; empty if there is no record."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/gpu-{node}"
    pod = sandbox.api.find(path) or {"metadata": {}}
    entries: Mapping[str, Any] = json.loads(
        pod["metadata"].get("annotations", {}).get("nodewise.io/holdings", "{}")
    )
    return entries
