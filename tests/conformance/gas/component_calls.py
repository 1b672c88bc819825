"""Calls the component that a row of parts.yaml names, with values in the notation of the tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from nodewise.agents.gpu import (
    agent,
    allocation_record,
    extended_resource_amounts,
    gpu_node_labels,
    node_allocations,
    node_gpus,
    pod_gpu_requests,
)
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod, GpuPod
from nodewise.agents.gpu.node_allocations import PodIndex
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.vendor_resource_names import INTEL
from tests.cluster.api_client import Object
from tests.conformance.gas import node_and_pod_notation
from tests.conformance.gas.case_table_rows import GasPartRow


def call_component(row: GasPartRow) -> Any:
    """The component's result; for `cards` only the fields that the row names. Invalid input: ValueError or
    OverflowError.
    """
    if row.part == "demand":
        return _demand(row.given, row.annotations)
    actual = _plain(_PARTS[row.part](row.given))
    return {field: actual[field] for field in row.gives} if row.part == "cards" else actual


def _demand(text: str, annotations: Mapping[str, str]) -> None:
    pod = msgspec.convert(node_and_pod_notation.pod("p", text, annotations), GpuPod)
    problem = pod_gpu_requests.parse_demand(pod, INTEL, GpuOptions()).problem
    if problem is not None:
        raise ValueError(problem.text())


def _joined(labels: dict[str, str]) -> str:
    return gpu_node_labels.join_split_label(labels, min(labels))


def _groups(arguments: list[Any]) -> list[frozenset[str]]:
    tags, *names = arguments
    groups = gpu_node_labels.parse_groups(gpu_node_labels.join_split_label(tags, min(tags)))
    return [gpu_node_labels.expand_groups([name], groups) for name in names]


def _cards(text: str) -> dict[str, Any]:
    fields = node_gpus.parse_node_gpus(_node(text), INTEL)._asdict()
    return {_FIELDS_OF_TABLES.get(name, name): value for name, value in fields.items()}


def _node(text: str) -> GpuNode:
    return msgspec.json.decode(msgspec.json.encode(node_and_pod_notation.node("n", text)), type=GpuNode)


def _books(pod_texts: list[str]) -> list[Any]:
    """The allocations of all pods, and those of all pods but the last."""
    pods = [_running(f"p{number}", text) for number, text in enumerate(pod_texts)]
    return [_held(pods), _held(pods[:-1])]


def _held(pods: list[AllocatedPod]) -> Any:
    by_key = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
    allocations = node_allocations.allocations_of_node(
        "n1", allocation_record.EMPTY, pods, PodIndex(by_key, "1"), INTEL
    )
    return {card: _short(held) for card, held in allocations.amounts.items()}


def _running(name: str, text: str) -> AllocatedPod:
    running = node_and_pod_notation.running(text)
    made = node_and_pod_notation.pod(name, running.containers, running.annotations)
    made["metadata"]["uid"] = name
    made["spec"]["nodeName"] = running.node
    return msgspec.convert(made, AllocatedPod)


def _ended(fields: dict[str, str]) -> bool:
    metadata = {"name": "p", "deletionTimestamp": fields.get("deletionTimestamp")}
    pod: Object = {"metadata": metadata, "status": {"phase": fields["phase"]}}
    return node_allocations.has_ended(msgspec.convert(pod, AllocatedPod))


def _short(held: Mapping[str, int]) -> dict[str, int]:
    return {node_and_pod_notation.short(resource): amount for resource, amount in held.items()}


def _plain(value: Any) -> Any:
    """The value in the types of a table: sorted lists for sets, lists for tuples, dicts for mappings."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


_FIELDS_OF_TABLES: Final = {
    "names": "cards",
    "subdevices_off": "tiles_off",
    "subdevices_descheduled": "tiles_descheduled",
    "subdevices_preferred": "tiles_preferred",
}
"""The field names of the tables that differ from those of `NodeGpus`."""

_PARTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "amount": extended_resource_amounts.parse_amount,
    "books": _books,
    "cards": _cards,
    "devices": gpu_node_labels.parse_device_indices,
    "divided": lambda arguments: extended_resource_amounts.divide_amounts(*arguments),
    "ended": _ended,
    "groups": _groups,
    "joined": _joined,
    "links": lambda arguments: gpu_node_labels.parse_links(
        arguments[0], gpu_node_labels.parse_device_indices(arguments[1])
    )[0],
    "reordered": lambda arguments: agent.move_preferred_first(*arguments),
    "tiles": allocation_record.parse_subdevices,
    "total": extended_resource_amounts.sum_amounts,
}
