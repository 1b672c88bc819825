"""The machine that we run on, and the pools that it would get: read, computed, and told in the log."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cpu import names, pools, speed_select, sysfs, topology
from nodewise.cpu.cpulist import format_ranges
from nodewise.cpu.kernel_files import read_text
from nodewise.cpu.pools import Ask, Plan
from nodewise.cpu.requests import Requests
from nodewise.cpu.topology import Topology
from nodewise.errors import Refused
from nodewise.kube.resources import NODES
from nodewise.observe import logs

MEMORY: Final = "proc/meminfo"
NO_LABELS: Final[Mapping[str, str]] = {}


class Machine(NamedTuple):
    """What pools are made from. `fast` is empty where SST-BF is off, `preferences` None where SST-CP is."""

    topology: Topology
    fast: frozenset[int] = frozenset()
    preferences: Mapping[int, str] | None = None

    def plan(self, ask: Ask) -> Plan:
        """The pools of such a machine. BadInput says why it cannot be divided like that."""
        return pools.plan(self.topology, ask, self.fast, self.preferences)


def read(root: Path, labels: Mapping[str, str] = NO_LABELS) -> Machine:
    """The machine whose `sys` and `proc` are below `root`; `labels` of the node say which features are on.

    BadInput names what cannot be read.
    """
    texts = sysfs.read(root)
    found = topology.parse(texts)
    fast = speed_select.fast_cpus(texts, sysfs.read_base_mhz(root)) if is_on(labels, names.SST_BF) else ()
    preferences = speed_select.preferences(texts) if is_on(labels, names.SST_CP) else None
    return Machine(found, frozenset(fast), preferences)


def is_on(labels: Mapping[str, str], feature: str) -> bool:
    """Whether Node Feature Discovery says so; it has written `True` as well."""
    return labels.get(feature) in ("true", "True")


def fetch_labels(requests: Requests, node: str) -> Mapping[str, str]:
    """The node's labels; none where we may not see it, or there is no such node, which is logged."""
    try:
        labels: Mapping[str, str] = requests.get(NODES.path(name=node))["metadata"].get("labels") or {}
    except Refused as error:
        logs.emit("cpu_labels_unknown", why=str(error))
        return NO_LABELS
    return labels


def tell(machine: Machine, plan: Plan) -> None:
    """Log what the pools were made from, and what they are."""
    found = machine.topology
    isolated = [core.core for core in found.cores if set(core.cpus) <= found.isolated]
    if found.isolated:
        logs.emit("cpu_isolated", cpus=format_ranges(found.isolated), cores=format_ranges(isolated))
    else:
        logs.emit("cpu_not_isolated")
    if machine.fast:
        logs.emit("cpu_fast", cpus=format_ranges(machine.fast))
    if machine.preferences is not None:
        classes = speed_select.power_classes(found.cores, machine.preferences)
        logs.emit("cpu_power", classes=", ".join(classes))
    for warning in plan.warnings:
        logs.emit("cpu_warning", what=str(warning))
    for pool, sockets in plan.pools.items():
        logs.emit("cpu_pool", pool=pool, lists=" ".join(text for texts in sockets.values() for text in texts))


def tell_huge_pages(root: Path) -> None:
    """Log it where no huge page is free."""
    try:
        text = read_text(root / MEMORY)
    except OSError as error:
        logs.emit("cpu_huge_pages_unknown", why=str(error))
        return
    found = re.search(r"^HugePages_Free: *([0-9]+)", text, re.MULTILINE)
    if found is None:
        logs.emit("cpu_huge_pages_unknown", why=f"no HugePages_Free in {MEMORY}")
    elif not int(found[1]):
        logs.emit("cpu_huge_pages")
