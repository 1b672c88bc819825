"""What a node is and has, as one value: its cores, its pools, and what is wrong with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodewise.cpu import state as states
from nodewise.cpu.book import Book, Stored
from nodewise.cpu.node import kubelet
from nodewise.cpu.node.machine import Machine
from nodewise.cpu.state import State
from nodewise.cpu.topology import Cpu, Topology
from nodewise.errors import NodewiseError

Check = Mapping[str, Any]
"""`ok`, and `errors` as texts."""


def make(book: Book, machine: Machine, kubelet_dir: Path = kubelet.DEFAULT_FOLDER) -> dict[str, Any]:
    """As `node-report` prints it. Whatever is wrong stands in it.

    The kubelet's own CPU manager is told of where its checkpoint is in `kubelet_dir`.
    """
    try:
        stored: Stored | None = book.read()
        errors: list[str] = []
    except NodewiseError as error:
        stored, errors = None, [f"unable to read the node's pools: {error}"]
    description = None
    if stored is not None:
        description = states.as_description(stored.state)
        errors = [*states.overlaps(stored.state), *absent(stored.state, machine.topology)]
    checks = {"configDirectory": check(errors)}
    checks |= check_kubelet(kubelet_dir, stored.state if stored else State({}))
    return {"checks": checks, "description": description, "topology": as_topology(machine)}


def check(errors: list[str]) -> Check:
    return {"ok": not errors, "errors": errors}


def check_kubelet(folder: Path, state: State) -> dict[str, Check]:
    """Whether the kubelet's own managers of CPUs and memory are at odds with the pools; nothing without a checkpoint.

    With the static policy it says besides, of each pool, what of the kubelet's own would replace it.
    """
    try:
        found = kubelet.read(folder)
    except NodewiseError as error:
        return {"kubelet": check([str(error)])}
    if found is None:
        return {}
    told = check([str(problem) for problem in kubelet.conflicts(found, state)])
    more = {"instead": kubelet.instead(state)} if found.is_static else {}
    return {"kubelet": {**told, "policy": found.policy, **more}}


def absent(state: State, topology: Topology) -> list[str]:
    """CPU lists that name CPUs which are offline, or not there: they went after the pools were made."""
    online = topology.online
    return [
        f"{pool.name}:{slot.text} (not online: {sorted(set(slot.cpus) - online)})"
        for pool, slot in state.slots
        if not online.issuperset(slot.cpus)
    ]


def as_topology(machine: Machine) -> dict[str, Any]:
    """CMK's form: sockets by number, in each the cores, in each the CPUs that are online."""
    found = machine.topology
    cpus = {cpu.cpu: cpu for cpu in found.cpus}
    return {
        "sockets": {
            str(socket): {
                "id": socket,
                "cores": [
                    {"id": core.core, "cpus": [_cpu(cpus[one], machine) for one in core.cpus]}
                    for core in found.cores
                    if core.socket == socket
                ],
            }
            for socket in found.sockets
        }
    }


def _cpu(cpu: Cpu, machine: Machine) -> dict[str, Any]:
    fast = {"sst_bf": True} if cpu.cpu in machine.fast else {}
    return {"id": cpu.cpu, "isolated": cpu.isolated, **fast}
