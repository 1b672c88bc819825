"""The advertisement of a node's exclusive cores: extended resources, a label and a taint.

Nothing is written if the node is up to date, so these functions may be called every few seconds. Changes by others are
kept: their taints keep all of their fields.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from nodewise.base.errors import BadInput, Conflict, shown
from nodewise.kube.resource_kinds import NODES
from nodewise.observe import logs
from nodewise_cpu.cluster import api_server
from nodewise_cpu.cluster.api_server import ApiClient, ApiFeatures, Object
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, LABEL, NON_ISOLCPUS_CORES, TAINT
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import EXCLUSIVE, NON_ISOLCPUS

TAINTS_ANNOTATION: Final = "scheduler.alpha.kubernetes.io/taints"
"""The annotation that held taints before Kubernetes 1.7, as JSON."""
OURS: Final = {"key": TAINT, "value": "true", "effect": "NoSchedule"}

_MANAGER: Final = {"fieldManager": "nodewise-cpu"}
_TRIES: Final = 10
_PAUSE_S: Final = 0.2


def count_resources_to_advertise(
    allocations: Allocations, offline: AbstractSet[int] = frozenset()
) -> Mapping[str, int]:
    """The number of each resource: one for each CPU list of its pool. BadInput without the pool exclusive.

    Free lists with `offline` CPUs do not count, because no task could run on them.
    """
    if EXCLUSIVE not in allocations.pools:
        raise BadInput.of(
            "cannot count the node's cores: pool exclusive does not exist",
            "pools",
            ", ".join(allocations.pools) or "none",
            EXCLUSIVE,
        )
    pools = {EXCLUSIVE_CORES: EXCLUSIVE, NON_ISOLCPUS_CORES: NON_ISOLCPUS}
    return {
        resource: sum(
            bool(cpu_list.tasks) or offline.isdisjoint(cpu_list.cpus)
            for cpu_list in allocations.pools[pool].cpu_lists
        )
        for resource, pool in pools.items()
        if pool in allocations.pools
    }


def advertise(
    api: ApiClient, node: str, wanted: Mapping[str, int], *, taint: bool, features: ApiFeatures | None = None
) -> bool:
    """Advertise the resources, and set the label. Returns whether the node changed.

    With `taint` the node gets the taint; without, an existing one stays. A resource with the number 0 is removed,
    except for exclusive cores. Refused if the API server supports no such resources; Conflict if others change the node
    before every attempt.
    """
    features = features or api_server.fetch_features(api)
    api_server.check_resource_support(features)

    def labelled(node_object: Object) -> Object:
        taints = read_taints(node_object, features)
        label = _label_patch(node_object, "true")
        if not taint or any(is_cpu_manager_taint(existing) for existing in taints):
            return label
        others = [existing for existing in taints if existing.get("key") != TAINT]
        return _merge_objects(label, taints_patch([*others, OURS], features))

    steps = {"status": lambda node_object: _capacity_patch(node_object, features, wanted), "": labelled}
    return _patch_node(api, node, steps)


def withdraw_node_resources(api: ApiClient, node: str, *, features: ApiFeatures | None = None) -> bool:
    """Remove the resources, the taint and the label. Returns whether the node changed."""
    features = features or api_server.fetch_features(api)

    def without_taint(node_object: Object) -> Object:
        taints = read_taints(node_object, features)
        others = [taint for taint in taints if taint.get("key") != TAINT]
        return taints_patch(others, features) if len(others) < len(taints) else {}

    steps = {
        "": without_taint,
        "status": lambda node_object: _capacity_patch(node_object, features, None),
    }
    changed = _patch_node(api, node, steps)
    return _patch_node(api, node, {"": lambda node_object: _label_patch(node_object, None)}) or changed


def _patch_node(api: ApiClient, node: str, steps: Mapping[str, Callable[[Object], Object]]) -> bool:
    """Apply patches, by subresource. Each is made from the current node, again after a conflict."""
    changed = False
    for subresource, plan in steps.items():
        for number in range(_TRIES):
            current = api.get(NODES.path(name=node))
            patch = plan(current)
            if not patch:
                break
            version = {name: current["metadata"][name] for name in ("uid", "resourceVersion")}
            try:
                api.patch(
                    NODES.path(name=node, subresource=subresource),
                    _merge_objects({"metadata": version}, patch),
                    "merge",
                    _MANAGER,
                )
            except Conflict:
                if number == _TRIES - 1:
                    raise
                time.sleep(random.uniform(0, _PAUSE_S * (number + 1)))  # noqa: S311 - jitter is no secret
                continue
            logs.emit("cpu_node_patched", node=node, patch=json.dumps(patch, sort_keys=True))
            changed = True
            break
    return changed


def _capacity_patch(  # complexity: parts that a node may lack
    node: Object, features: ApiFeatures, wanted: Mapping[str, int] | None
) -> Object:
    """The patch of the node's status. With None all resources are removed."""
    status = node.get("status") or {}
    capacity, allocatable = (status.get(name) or {} for name in ("capacity", "allocatable"))
    patch: dict[str, dict[str, str | None]] = {"capacity": {}, "allocatable": {}}
    for resource, name in features.resources.items():
        count = 0 if wanted is None else wanted.get(resource, 0)
        if count or (wanted is not None and resource == EXCLUSIVE_CORES):
            if str(capacity.get(name)) != str(count):
                patch["capacity"][name] = str(count)
        elif name in allocatable:
            patch["capacity"][name] = patch["allocatable"][name] = None
        elif name in capacity:
            patch["capacity"][name] = None
    filled = {part: changes for part, changes in patch.items() if changes}
    return {"status": filled} if filled else {}


def _label_patch(node: Object, value: str | None) -> Object:
    labels = node["metadata"].get("labels") or {}
    return {} if labels.get(LABEL) == value else {"metadata": {"labels": {LABEL: value}}}


def is_cpu_manager_taint(taint: Mapping[str, Any]) -> bool:
    """Whether this is the CPU manager's taint."""
    return all(taint.get(name) == value for name, value in OURS.items())


def read_taints(node: Object, features: ApiFeatures) -> Sequence[Mapping[str, Any]]:
    """The node's taints with all fields; BadInput if the annotation of old API servers cannot be parsed."""
    if features.taints == "spec":
        return (node.get("spec") or {}).get("taints") or []
    text = (node["metadata"].get("annotations") or {}).get(TAINTS_ANNOTATION) or "[]"
    try:
        taints = json.loads(text)
    except (RecursionError, ValueError):
        taints = None
    if not isinstance(taints, list) or not all(isinstance(taint, dict) for taint in taints):
        raise BadInput.of(
            "cannot read the node's taints", TAINTS_ANNOTATION, shown(text), "a list of taints, as JSON"
        )
    return taints


def taints_patch(taints: Sequence[Mapping[str, Any]], features: ApiFeatures) -> Object:
    """The patch that sets these taints."""
    if features.taints == "spec":
        return {"spec": {"taints": list(taints)}}
    return {"metadata": {"annotations": {TAINTS_ANNOTATION: json.dumps(list(taints), sort_keys=True)}}}


def _merge_objects(base: Object, other: Object) -> dict[str, Any]:
    """Both objects in one. Values for the same key are objects, which are merged as well."""
    both = {name: _merge_objects(base[name], other[name]) for name in base.keys() & other.keys()}
    return {**base, **other, **both}
