"""What the kubelet's own CPU and memory managers do on this node, and where that is at odds with the pools.

With the policy `static` the kubelet gives CPUs to containers by itself and writes their cpusets; its checkpoints
(pkg/kubelet/cm/cpumanager/state and memorymanager/state of Kubernetes) tell which. With `none` it leaves both alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise import trusted_files
from nodewise.cpu import cpulist
from nodewise.cpu.pools import EXCLUSIVE, INFRA, NON_ISOLCPUS, SHARED
from nodewise.cpu.state import State
from nodewise.errors import BadInput, Problem, Unavailable, shown

DEFAULT_FOLDER: Final = Path("/var/lib/kubelet")
CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
STATIC: Final = "static"
_LONGEST_BYTES: Final = 16 * 1024 * 1024

INSTEAD: Final[Mapping[str, str]] = {
    EXCLUSIVE: (
        "cpuManagerPolicy static gives whole CPUs to containers of Guaranteed pods; with the option full-pcpus-only "
        "whole cores, as a pool's lists are; with distribute-cpus-across-numa evenly from several NUMA nodes, with "
        "align-by-socket from one socket, with prefer-align-cpus-by-uncorecache from one cache, with "
        "distribute-cpus-across-cores from many cores; with the feature PodLevelResourceManagers (alpha in 1.36) to a "
        "pod's containers together"
    ),
    SHARED: "cpuManagerPolicy static leaves all CPUs that it gave to nobody to all other containers together",
    INFRA: (
        "reservedSystemCPUs keeps CPUs for the system's daemons, and with the option strict-cpu-reservation no "
        "container runs on them"
    ),
}
"""What of the kubelet's own would replace a pool."""


class Given(NamedTuple):
    """CPUs that the kubelet gave to one container, or, where none is named, to a pod's containers together."""

    pod: str
    container: str
    cpus: frozenset[int]

    def __str__(self) -> str:
        who = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        return f"{who} has CPUs {cpulist.format_ranges(self.cpus)}"


class Kubelet(NamedTuple):
    """The policies, in the kubelet's words, and what the CPU manager gave away."""

    policy: str
    left: frozenset[int] = frozenset()
    """CPUs that all other containers share, and that it gives away from."""
    given: tuple[Given, ...] = ()
    memory_policy: str = "None"

    @property
    def is_static(self) -> bool:
        return self.policy == STATIC


def read(folder: Path = DEFAULT_FOLDER) -> Kubelet | None:
    """None where no kubelet wrote a checkpoint. Unavailable, BadInput."""
    cpu, memory = _text(folder / CPU_STATE), _text(folder / MEMORY_STATE)
    return None if cpu is None else parse(cpu, memory)


def _text(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            trusted_files.check_open(opened.fileno(), file)
            return opened.read(_LONGEST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            "cannot read the kubelet's checkpoint", [Problem(str(file), str(error), "")]
        ) from error


def parse(cpu: str, memory: str | None = None) -> Kubelet:
    """From the texts of the two checkpoints, the first of any of its three versions."""
    told = _object(cpu, CPU_STATE)
    left = _cpus(told.get("defaultCpuSet", ""), f"{CPU_STATE}: defaultCpuSet")
    remembered = _object(memory, MEMORY_STATE) if memory is not None else {}
    return Kubelet(
        str(told.get("policyName", "none")),
        left,
        tuple(_given(told)),
        str(remembered.get("policyName", "None")),
    )


def _object(text: str, field: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(text), "a JSON object")])
    return found


def _given(told: Mapping[str, Any]) -> Iterator[Given]:
    for pod, entry in _mapping(told.get("entries"), "entries").items():
        if isinstance(entry, str):
            # version 1 knows containers only, by id
            yield Given("", pod, _cpus(entry, f"entries.{pod}"))
            continue
        for container, text in _mapping(entry, f"entries.{pod}").items():
            yield Given(pod, container, _cpus(text, f"entries.{pod}.{container}"))
    for pod, entry in _mapping(told.get("podEntries"), "podEntries").items():
        text = _mapping(entry, f"podEntries.{pod}").get("cpuSet", "")
        yield Given(pod, "", _cpus(text, f"podEntries.{pod}.cpuSet"))


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(value), "an object")])


def _cpus(text: object, field: str) -> frozenset[int]:
    if not isinstance(text, str):
        raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(text), "a CPU list")])
    return frozenset(cpulist.parse_list(text, field))


def conflicts(kubelet: Kubelet, state: State) -> Sequence[Problem]:
    """Where the kubelet's managers and the pools are at odds, with what to do about it."""
    if not kubelet.is_static:
        return []
    ours = {cpu for _, slot in state.slots for cpu in slot.cpus}
    alone = {cpu for pool, slot in state.slots if pool.is_exclusive for cpu in slot.cpus}
    problems = [
        Problem(
            str(given), f"CPUs {cpulist.format_ranges(given.cpus & ours)} are in the node's pools", "others"
        )
        for given in kubelet.given
        if given.cpus & ours
    ]
    if open_to_all := kubelet.left & alone:
        seen = f"CPUs {cpulist.format_ranges(open_to_all)} of exclusive pools are open to all containers"
        wanted = "reservedSystemCPUs to have them, and the policy option strict-cpu-reservation"
        problems.append(Problem(f"kubelet's cpuManagerPolicy {kubelet.policy}", seen, wanted))
    if kubelet.memory_policy.lower() == STATIC:
        seen = "sets the NUMA nodes of containers of Guaranteed pods, as the node agent does with --enforce"
        problems.append(Problem("kubelet's memoryManagerPolicy Static", seen, "None"))
    return problems


def instead(state: State) -> Mapping[str, str]:
    """Of each pool of the node what of the kubelet's own would replace it."""
    names = {NON_ISOLCPUS: EXCLUSIVE}
    return {pool: INSTEAD[names.get(pool, pool)] for pool in state.pools if names.get(pool, pool) in INSTEAD}
