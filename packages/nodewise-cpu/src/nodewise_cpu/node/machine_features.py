"""A machine with the features that the choice of pools depends on, and log lines about both."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.base.errors import Refused
from nodewise.kube.resource_kinds import NODES
from nodewise.observe import logs
from nodewise_cpu import cmk_names, pool_planning, speed_select, sysfs, topology
from nodewise_cpu.api_client_interface import ApiClient
from nodewise_cpu.cpu_set_formats import format_cpu_ranges
from nodewise_cpu.kernel_file_reader import read_text
from nodewise_cpu.pool_planning import PoolOptions, PoolPlan
from nodewise_cpu.topology import Topology

MEMORY: Final = "proc/meminfo"
NO_LABELS: Final[Mapping[str, str]] = {}


class PoolInputs(NamedTuple):
    """The input of `pools.plan`. `fast` is empty if SST-BF is off, `preferences` is None if SST-CP is."""

    topology: Topology
    fast: frozenset[int] = frozenset()
    preferences: Mapping[int, str] | None = None

    def plan(self, options: PoolOptions) -> PoolPlan:
        """The pools of this machine. BadInput if it has too few cores, or other ones than named."""
        return pool_planning.plan(self.topology, options, self.fast, self.preferences)


def read(root: Path, labels: Mapping[str, str] = NO_LABELS) -> PoolInputs:
    """The machine whose `sys` and `proc` are below `root`. The node's `labels` tell which features are on.

    BadInput names the files that cannot be read.
    """
    texts = sysfs.read(root)
    has_fast, has_classes = (
        is_feature_enabled(labels, cmk_names.SST_BF),
        is_feature_enabled(labels, cmk_names.SST_CP),
    )
    fast = speed_select.cpus_above_base_frequency(texts, sysfs.read_base_mhz(root)) if has_fast else ()
    preferences = speed_select.preferences(texts) if has_classes else None
    return PoolInputs(topology.parse(texts), frozenset(fast), preferences)


def is_feature_enabled(labels: Mapping[str, str], feature: str) -> bool:
    """Whether a label of Node Feature Discovery is true; some versions wrote `True`."""
    return labels.get(feature) in ("true", "True")


def fetch_labels(api: ApiClient, node: str) -> Mapping[str, str]:
    """The node's labels; none, with a log line, if the node does not exist or may not be read."""
    try:
        labels: Mapping[str, str] = api.get(NODES.path(name=node))["metadata"].get("labels") or {}
    except Refused as error:
        logs.emit("cpu_labels_unknown", why=str(error))
        return NO_LABELS
    return labels


def log_pool_plan(machine: PoolInputs, plan: PoolPlan) -> None:
    """Log the machine's features and the planned pools."""
    topology = machine.topology
    isolated = [core.core for core in topology.cores if set(core.cpus) <= topology.isolated]
    if topology.isolated:
        logs.emit(
            "cpu_isolated", cpus=format_cpu_ranges(topology.isolated), cores=format_cpu_ranges(isolated)
        )
    else:
        logs.emit("cpu_not_isolated")
    if machine.fast:
        logs.emit("cpu_fast", cpus=format_cpu_ranges(machine.fast))
    if machine.preferences is not None:
        classes = speed_select.group_cores_by_power_class(topology.cores, machine.preferences)
        logs.emit("cpu_power", classes=", ".join(classes))
    for warning in plan.warnings:
        logs.emit("cpu_warning", what=str(warning))
    for pool, sockets in plan.pools.items():
        logs.emit("cpu_pool", pool=pool, lists=" ".join(text for texts in sockets.values() for text in texts))


def log_missing_huge_pages(root: Path) -> None:
    """Log that no huge page is free, or that the number is unknown."""
    try:
        text = read_text(root / MEMORY)
    except OSError as error:
        logs.emit("cpu_huge_pages_unknown", why=str(error))
        return
    free = re.search(r"^HugePages_Free: *([0-9]+)", text, re.MULTILINE)
    if free is None:
        logs.emit("cpu_huge_pages_unknown", why=f"no HugePages_Free in {MEMORY}")
    elif not int(free[1]):
        logs.emit("cpu_huge_pages")
