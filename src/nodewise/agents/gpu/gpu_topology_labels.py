"""How the GPUs of a node belong together, by its labels: NUMA nodes, links, and GPUs on one bus.

A label that cannot be read, or exceeds a limit, is reported as a problem.
"""

from collections.abc import Callable, Mapping
from typing import Final

from nodewise.agents.gpu import gpu_node_label_parsers
from nodewise.agents.gpu.gpu_node_label_parsers import Link
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile

AddProblem = Callable[[str], None]

MOST_GROUPED_GPUS: Final = 64
"""The most GPUs of a node with NUMA nodes or links; bits of an array hold their positions."""
MOST_SUBDEVICES: Final = 64
"""The most sub-devices of a GPU; real ones have up to eight. Bits of an array hold them."""
MOST_LINKS: Final = 1024
"""The most links of a node; eight GPUs of two sub-devices, all linked in both directions, have 224."""
MOST_GROUPS: Final = 64


def parse_bus_groups(
    tags: Mapping[str, str], profile: ResourceProfile, add: AddProblem
) -> dict[str, frozenset[str]]:
    """By GPU, the GPUs on its bus."""
    try:
        return gpu_node_label_parsers.parse_groups(
            gpu_node_label_parsers.join_split_label(tags, f"{profile.prefix}pci-groups")
        )
    except ValueError as error:
        add(str(error))
        return {}


def parse_numa_nodes(
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], add: AddProblem
) -> tuple[tuple[frozenset[str], ...], str]:
    """The NUMA nodes, or the problem of their label."""
    key = f"{profile.prefix}numa-gpu-map"
    try:
        groups = gpu_node_label_parsers.parse_numa_map(gpu_node_label_parsers.join_split_label(tags, key))
    except ValueError as error:
        add(f"label {key}: {error}")
        return (), str(error)
    if groups and len(subdevices) > MOST_GROUPED_GPUS:
        problem = f"{len(subdevices)} GPUs; NUMA nodes count for at most {MOST_GROUPED_GPUS}"
        add(f"label {key}: {problem}")
        return (), problem
    if len(groups) > MOST_GROUPS:
        add(f"label {key}: {len(groups)} NUMA nodes; at most {MOST_GROUPS} count")
    return tuple(frozenset(group & subdevices.keys()) for group in groups[:MOST_GROUPS]), ""


def parse_node_links(
    tags: Mapping[str, str], profile: ResourceProfile, subdevices: Mapping[str, int], add: AddProblem
) -> tuple[Link, ...]:
    """The links between the node's GPUs. If sub-devices are counted, only between existing ones."""
    key = f"{profile.prefix}xe-links"
    try:
        text = gpu_node_label_parsers.join_split_label(tags, key)
        by_index = (
            gpu_node_label_parsers.parse_device_indices(
                gpu_node_label_parsers.join_split_label(tags, f"{profile.prefix}gpu-numbers")
            )
            if text
            else ()
        )
    except ValueError as error:
        add(f"label {key}: {error}")
        return ()
    parsed, stopped = gpu_node_label_parsers.parse_links(text, by_index)
    if stopped:
        add(f"label {key}: {stopped}")
    if parsed and len(subdevices) > MOST_GROUPED_GPUS:
        add(f"label {key}: {len(subdevices)} GPUs; links count for at most {MOST_GROUPED_GPUS}")
        return ()
    existing = [link for link in parsed if _link_subdevices_exist(link, subdevices)]
    if len(existing) < len(parsed):
        add(f"label {key}: {len(parsed) - len(existing)} links to GPUs or tiles that the node does not have")
    if len(existing) > MOST_LINKS:
        add(f"label {key}: {len(existing)} links; at most {MOST_LINKS} count")
    return tuple(existing[:MOST_LINKS])


def _link_subdevices_exist(link: Link, subdevices: Mapping[str, int]) -> bool:
    left, right = subdevices.get(link.left, -1), subdevices.get(link.right, -1)
    known = left >= 0 and right >= 0
    return (
        known
        and link.left_subdevice < (left or MOST_SUBDEVICES)
        and link.right_subdevice < (right or MOST_SUBDEVICES)
    )
