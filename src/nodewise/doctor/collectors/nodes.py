"""Nodes: their number, resources and GPUs, and the configuration of kubelets on nodes with CPU pools."""

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from nodewise.agents.gpu import node_gpus
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.vendor_resource_names import PROFILES, ResourceProfile
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, short
from nodewise.doctor.collectors.schedulers import collect_schedulers
from nodewise.doctor.collectors.session import (
    ClusterReader,
    MissingFact,
    Session,
    attempt,
    missing_fact,
    parse_json,
)
from nodewise.doctor.collectors.workloads import collect_extenders
from nodewise.doctor.facts import GpuNodeInfo, KubeletConfiguration, UnavailableFact
from nodewise.doctor.parsing.objects import get_mapping, get_text, get_text_mapping
from nodewise.kube.resource_kinds import NODES, RESOURCE_SLICES
from nodewise.metrics import node_attributes
from nodewise.metrics.node_attributes import NodeAttributes, NodeStatusFields
from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX

_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_MAX_KUBELETS: Final = 50
_LONGEST_DRIVER: Final = 63
_PCI: Final = re.compile(
    r"feature\.node\.kubernetes\.io/pci-(10de|03[0-9a-f]{2}_10de|0380_(?:1002|8086))\.present"
)
"""Labels of node feature discovery for a PCI device: a GPU of NVIDIA, and display controllers of AMD and Intel that are
no part of a processor.
"""
_VENDORS: Final = {"10de": "nvidia.com/", "1002": "amd.com/", "8086": "gpu.intel.com/"}
POOLS_LABEL: Final = "cmk.intel.com/cmk-node"
"""The label of nodes that nodewise-cpu gave pools (`nodewise_cpu.cmk_names.LABEL`)."""


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    labels: msgspec.Raw = msgspec.Raw(b"null")


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _Status(NodeStatusFields, frozen=True, gc=False):
    conditions: tuple[_Condition, ...] | None = None


class _Taint(msgspec.Struct, frozen=True, gc=False):
    key: str = ""
    effect: str = ""


class _Spec(msgspec.Struct, frozen=True, gc=False):
    taints: tuple[_Taint, ...] | None = None


class _NodeObject(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _SliceSpec(msgspec.Struct, frozen=True, gc=False):
    driver: str = ""
    node: str = msgspec.field(default="", name="nodeName")


class _Slice(msgspec.Struct, frozen=True, gc=False):
    spec: _SliceSpec = _SliceSpec()


class ParsedNode(NamedTuple):
    """What is kept of a node; `metadata` and `status` as sources of metrics read them."""

    metadata: _Metadata
    status: NodeStatusFields
    gpus: GpuNodeInfo | None
    has_pools: bool
    resources: frozenset[str]
    """Those that it has allocatable."""
    has_verdicts: bool
    """Whether it has a label of native mode."""
    is_measured: bool
    """Whether it is ready, and takes pods other than those of the control plane."""


class ParsedNodes(NamedTuple):
    """All nodes, and what sources of metrics read of them."""

    nodes: Sequence[ParsedNode]
    measured: NodeAttributes
    may_have_gpus: bool
    """Whether a gpu agent runs whose profile is known."""


async def collect_nodes(session: Session) -> ParsedNodes:
    """All nodes, with GPUs by the profiles of the extenders' gpu agents."""
    extenders = await session.get_or(collect_extenders, ())
    names = {
        extender.settings.get("gpu_profile", "intel") for extender in extenders if "gpu" in extender.agents
    } or (set() if extenders else await _find_profiles_of_entries(session))
    profiles = [PROFILES[name] for name in sorted(names) if name in PROFILES]
    nodes = await session.reader.get_list(NODES, partial(parse_node, profiles))
    measured = cooperative_scheduling.run_without_pauses(node_attributes.read_node_attributes(nodes))
    return ParsedNodes(nodes, measured, bool(profiles))


async def _find_profiles_of_entries(session: Session) -> set[str]:
    """The profiles whose resources kube-scheduler sends to nodewise, which runs outside of the cluster."""
    resources = {
        resource.name
        for scheduler in await session.get_or(collect_schedulers, ())
        if not isinstance(scheduler.configuration, UnavailableFact)
        for entry in scheduler.configuration.nodewise_entries
        for resource in entry.managed_resources
    }
    return {name for name, profile in PROFILES.items() if resources & {*profile.counts}}


def parse_node(profiles: Sequence[ResourceProfile], body: bytes) -> ParsedNode | None:
    """A node with its GPUs according to the first profile that finds some."""
    try:
        node = msgspec.json.decode(body, type=_NodeObject)
    except UNREADABLE:
        return None
    labels = get_text_mapping(parse_json(bytes(node.metadata.labels)))
    amounts = get_mapping(parse_json(bytes(node.status.allocatable)))
    # a copy, because raw fields keep the whole page of the list in memory
    status = NodeStatusFields(node.status.addresses, msgspec.Raw(bytes(node.status.allocatable)))
    resources = frozenset(
        sys.intern(name) for name, amount in amounts.items() if str(amount) not in ("0", "")
    )
    parsed = (_parse_gpus(body, node.metadata.name, profile, resources, labels) for profile in profiles)
    gpus = next((info for info in parsed if info), None)
    has_verdicts = any(key.startswith(VERDICT_LABEL_PREFIX) for key in labels)
    has_pools = labels.get(POOLS_LABEL) == "true"
    return ParsedNode(
        _Metadata(node.metadata.name), status, gpus, has_pools, resources, has_verdicts, _is_measured(node)
    )


def _is_measured(node: _NodeObject) -> bool:
    """A node without the condition Ready counts as ready."""
    ready = [condition.status for condition in node.status.conditions or () if condition.type == "Ready"]
    return ready in ([], ["True"]) and not any(
        taint.key in _CONTROL_PLANE and taint.effect != "PreferNoSchedule" for taint in node.spec.taints or ()
    )


def _parse_gpus(
    body: bytes,
    name: str,
    profile: ResourceProfile,
    resources: frozenset[str],
    labels: Mapping[str, str],
) -> GpuNodeInfo | None:
    """None for a node without GPUs. One with GPUs has an amount of their resource, or a label that says so."""
    offered = [resource for resource in profile.counts if resource in resources]
    if not offered:
        # with other resources of the vendor, such as slices of GPUs, nothing is missing
        is_offered = any(resource.startswith(profile.prefix) for resource in resources)
        label = "" if is_offered else _find_gpu_label(profile, labels)
        return GpuNodeInfo(name, 0, "", label=label) if label else None
    try:
        gpus = node_gpus.parse_node_gpus(msgspec.json.decode(body, type=GpuNode), profile)
    except UNREADABLE as error:
        return GpuNodeInfo(name, 0, offered[0], (short(str(error)),))
    return GpuNodeInfo(name, len(gpus.names), offered[0], tuple(map(short, gpus.problems[:1])))


def _find_gpu_label(profile: ResourceProfile, labels: Mapping[str, str]) -> str:
    """A label that says that a node has GPUs of a profile; empty without one."""
    for key, value in sorted(labels.items()):
        match = _PCI.fullmatch(key)
        if match and value == "true" and _VENDORS[match[1][-4:]] == profile.prefix:
            return key
        if key in profile.gpu_labels and value not in ("", "0"):
            return key
    return ""


async def collect_node_count(session: Session) -> int:
    return len((await session.require(collect_nodes)).nodes)


async def collect_node_resources(session: Session) -> frozenset[str]:
    nodes = (await session.require(collect_nodes)).nodes
    return frozenset().union(*(node.resources for node in nodes))


async def collect_nodes_with_verdicts(session: Session) -> int:
    return sum(node.has_verdicts for node in (await session.require(collect_nodes)).nodes)


async def collect_nodes_not_measured(session: Session) -> frozenset[str]:
    nodes = (await session.require(collect_nodes)).nodes
    return frozenset(node.metadata.name for node in nodes if not node.is_measured)


async def collect_gpu_nodes(session: Session) -> tuple[GpuNodeInfo | UnavailableFact, ...]:
    """Nodes with GPUs, and nodes with devices of DRA drivers. Without the right to read these, nodes whose GPUs are
    known only by a label are omitted.
    """
    for extender in await session.get_or(collect_extenders, ()):
        profile = extender.settings.get("gpu_profile", "intel")
        if "gpu" in extender.agents and profile not in PROFILES:
            what = f"the GPU profile of {extender.workload.where}"
            raise missing_fact(what, "it is a file of its own", is_minor=True)
    parsed = await session.require(collect_nodes)
    if not parsed.may_have_gpus:
        return ()
    infos = [node.gpus for node in parsed.nodes if node.gpus]
    slices = await attempt(session.reader.get_list(RESOURCE_SLICES, _parse_slice))
    if isinstance(slices, UnavailableFact):
        offered = [info for info in infos if info.resource]
        return (*offered, slices._replace(is_minor=len(offered) == len(infos)))
    return _add_drivers(infos, slices)


def _add_drivers(infos: Sequence[GpuNodeInfo], slices: Sequence[_SliceSpec]) -> tuple[GpuNodeInfo, ...]:
    """These nodes with their drivers, and further nodes with slices."""
    drivers: dict[str, set[str]] = {}
    for spec in slices:
        drivers.setdefault(spec.node, set()).add(sys.intern(short(spec.driver, _LONGEST_DRIVER)))
    known = {info.node: info for info in infos}
    known |= {
        node: known.get(node, GpuNodeInfo(node, 0, ""))._replace(drivers=tuple(sorted(of_node)))
        for node, of_node in drivers.items()
    }
    return tuple(known.values())


def _parse_slice(body: bytes) -> _SliceSpec | None:
    """The driver and the node of a slice; None for one of several nodes."""
    try:
        spec = msgspec.json.decode(body, type=_Slice).spec
    except UNREADABLE:
        return None
    return spec if spec.node else None


async def collect_kubelets(session: Session) -> tuple[KubeletConfiguration | UnavailableFact, ...]:
    """The configuration of kubelets on nodes with CPU pools. If there are many, of some nodes, spread over the list."""
    nodes = (await session.require(collect_nodes)).nodes
    with_pools = [node.metadata.name for node in nodes if node.has_pools]
    stride = max(1, -(-len(with_pools) // _MAX_KUBELETS))
    selected = with_pools[::stride]
    results = await asyncio.gather(*(attempt(_read_kubelet(session.reader, name)) for name in selected))
    if len(selected) == len(with_pools):
        return tuple(results)
    reason = f"{len(selected)} of {len(with_pools)} nodes with pools were read"
    return (*results, UnavailableFact("kubelets", reason, is_minor=True))


async def _read_kubelet(reader: ClusterReader, name: str) -> KubeletConfiguration:
    what = f"kubelet of Node/{name}"
    path = NODES.path(name=name, subresource="proxy") + "/configz"
    try:
        response = await reader.get(what, "get nodes/proxy", path, is_proxied=True)
    except MissingFact as missing:  # without a right that is missing, the kubelet does not respond
        is_minor = not missing.unavailable.right
        raise MissingFact(missing.unavailable._replace(is_minor=is_minor)) from missing
    configuration = get_mapping(response, "kubeletconfig")
    if not configuration:
        raise missing_fact(what, "it shows no configuration", is_minor=True)
    fields = ("cpuManagerPolicy", "topologyManagerPolicy", "memoryManagerPolicy")
    return KubeletConfiguration(name, *(short(get_text(configuration, field), 40) for field in fields))
