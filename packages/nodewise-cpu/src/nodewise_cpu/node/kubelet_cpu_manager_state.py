"""The kubelet's own CPU and memory managers on this node, and their conflicts with the pools.

With the policy `static` the kubelet allocates CPUs to containers and writes their cpusets; its checkpoints
(pkg/kubelet/cm/cpumanager/state and memorymanager/state of Kubernetes) hold these allocations. With `none` it does
neither.

The CPU manager's checkpoint has no version number. Its four versions differ in their fields: `entries` by container id
(1), by pod and container (2), with `podEntries` (3, Kubernetes 1.36), and with everything as JSON text in `data` (4,
Kubernetes 1.37 and 1.38), where the other fields are a copy without pod-level CPUs for older kubelets.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Problem, Unavailable, shown, truncate
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.pool_allocations import Allocations
from nodewise_cpu.pool_planning import EXCLUSIVE, INFRA, NON_ISOLCPUS, SHARED

DEFAULT_FOLDER: Final = Path("/var/lib/kubelet")
CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
STATIC: Final = "static"
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_FIELDS_TEXT: Final = 200
KNOWN_VERSIONS: Final = "the fields of version 1 to 4 (Kubernetes 1.38 and older)"
_FIELDS: Final = frozenset(
    {"policyName", "defaultCpuSet", "entries", "podEntries", "checksum", "data", "dataChecksum"}
)
_DATA_FIELDS: Final = frozenset({"policyName", "defaultCpuSet", "entries", "podEntries", "baselines"})

_ALTERNATIVES: Final[Mapping[str, str]] = {
    EXCLUSIVE: (
        "cpuManagerPolicy static gives whole CPUs to containers of Guaranteed pods; with the option full-pcpus-only "
        "whole cores, as a pool's lists are; with distribute-cpus-across-numa evenly from several NUMA nodes, with "
        "align-by-socket from one socket, with prefer-align-cpus-by-uncorecache from one cache, with "
        "distribute-cpus-across-cores from many cores; with the feature PodLevelResourceManagers (beta in 1.37, "
        "disabled by default) to a pod's containers together"
    ),
    SHARED: "cpuManagerPolicy static leaves all CPUs that it has not allocated to all other containers together",
    INFRA: (
        "reservedSystemCPUs keeps CPUs for the system's daemons, and with the option strict-cpu-reservation no "
        "container runs on them"
    ),
}
"""The features of the kubelet that could replace each pool."""


class KubeletAllocation(NamedTuple):
    """CPUs that the kubelet allocated to a container or, without a container, to all containers of a pod together."""

    pod: str
    container: str
    cpus: frozenset[int]

    def __str__(self) -> str:
        who = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        return f"{who} has CPUs {cpu_set_formats.format_cpu_ranges(self.cpus)}"


class KubeletState(NamedTuple):
    """The policies, by the kubelet's names, and the allocations of its CPU manager."""

    policy: str
    shared_pool: frozenset[int] = frozenset()
    """CPUs that are not allocated; all other containers share them."""
    allocations: tuple[KubeletAllocation, ...] = ()
    memory_policy: str = "None"
    unknown_fields: tuple[str, ...] = ()
    """Fields of the CPU manager's checkpoint that no known version has, so that it may contain other allocations."""

    @property
    def is_static(self) -> bool:
        return self.policy == STATIC


def read(folder: Path = DEFAULT_FOLDER) -> KubeletState | None:
    """The state in the checkpoints; None if there is none. Unavailable or BadInput if it cannot be read."""
    cpu, memory = _read_checkpoint(folder / CPU_STATE), _read_checkpoint(folder / MEMORY_STATE)
    return None if cpu is None else parse_checkpoints(cpu, memory)


def _read_checkpoint(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            trusted_files.check_open_file_trust(opened.fileno(), file)
            return opened.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            "cannot read the kubelet's checkpoint", [Problem(str(file), str(error), "")]
        ) from error


def parse_checkpoints(cpu: str, memory: str | None = None) -> KubeletState:
    """The state in the texts of the two checkpoints. The CPU manager's may be of any of its four versions.

    Of an unknown version it contains what is written as in a known one. BadInput if the policy is not.
    """
    checkpoint = _parse_json_object(cpu, CPU_STATE)
    unknown = [field for field in checkpoint if field not in _FIELDS]
    cpu_state = checkpoint
    if checkpoint.get("data"):
        # like the kubelet, which reads nothing else in version 4
        cpu_state = _parse_json_object(checkpoint["data"], f"{CPU_STATE}: data")
        unknown += [f"data.{field}" for field in cpu_state if field not in _DATA_FIELDS]
    if not isinstance(cpu_state.get("policyName"), str):
        # every version has it, and without it a static policy would count as none
        text = shown(cpu_state.get("policyName"))
        raise BadInput(
            "cannot read the kubelet's checkpoint",
            [Problem(f"{CPU_STATE}: policyName", text, KNOWN_VERSIONS)],
        )
    memory_state = _parse_json_object(memory, MEMORY_STATE) if memory is not None else {}
    return KubeletState(
        cpu_state["policyName"],
        _parse_cpus(cpu_state.get("defaultCpuSet", ""), f"{CPU_STATE}: defaultCpuSet"),
        tuple(_parse_kubelet_allocations(cpu_state)),
        str(memory_state.get("policyName", "None")),
        tuple(sorted(unknown)),
    )


def _parse_json_object(text: object, field: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(text), "a JSON object")])
    return value


def _parse_kubelet_allocations(cpu_state: Mapping[str, Any]) -> Iterator[KubeletAllocation]:
    for pod, entry in _check_mapping(cpu_state.get("entries"), "entries").items():
        if isinstance(entry, str):
            # version 1 has containers by id, without their pods
            yield KubeletAllocation("", pod, _parse_cpus(entry, f"entries.{pod}"))
            continue
        for container, text in _check_mapping(entry, f"entries.{pod}").items():
            yield KubeletAllocation(pod, container, _parse_cpus(text, f"entries.{pod}.{container}"))
    for pod, entry in _check_mapping(cpu_state.get("podEntries"), "podEntries").items():
        text = _check_mapping(entry, f"podEntries.{pod}").get("cpuSet", "")
        yield KubeletAllocation(pod, "", _parse_cpus(text, f"podEntries.{pod}.cpuSet"))


def _check_mapping(value: object, field: str) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(value), "an object")])


def _parse_cpus(text: object, field: str) -> frozenset[int]:
    if not isinstance(text, str):
        raise BadInput("cannot read the kubelet's checkpoint", [Problem(field, shown(text), "a CPU list")])
    return frozenset(cpu_set_formats.parse_cpu_numbers(text, field))


def conflicts(kubelet: KubeletState, allocations: Allocations) -> Sequence[Problem]:
    """The conflicts of the kubelet's managers with the pools, each with its remedy."""
    problems: list[Problem] = []
    if kubelet.unknown_fields:
        fields = truncate(", ".join(kubelet.unknown_fields), _MAX_FIELDS_TEXT)
        unknown = f"an unknown version with {fields}: it may give CPUs to containers that are not listed here"
        problems.append(Problem(f"kubelet's checkpoint {CPU_STATE}", unknown, KNOWN_VERSIONS))
    if not kubelet.is_static:
        return problems
    ours = allocations.cpus
    exclusive = {
        cpu for pool, cpu_list in allocations.cpu_lists if pool.is_exclusive for cpu in cpu_list.cpus
    }
    problems += [
        Problem(
            str(allocation),
            f"CPUs {cpu_set_formats.format_cpu_ranges(allocation.cpus & ours)} are in the node's pools",
            "others",
        )
        for allocation in kubelet.allocations
        if allocation.cpus & ours
    ]
    if open_to_all := kubelet.shared_pool & exclusive:
        seen = f"CPUs {cpu_set_formats.format_cpu_ranges(open_to_all)} of exclusive pools are open to all containers"
        wanted = "reservedSystemCPUs to have them, and the policy option strict-cpu-reservation"
        problems.append(Problem(f"kubelet's cpuManagerPolicy {kubelet.policy}", seen, wanted))
    if kubelet.memory_policy.lower() == STATIC:
        seen = "sets the NUMA nodes of containers of Guaranteed pods, as the node agent does with --enforce"
        problems.append(Problem("kubelet's memoryManagerPolicy Static", seen, "None"))
    return problems


def describe_kubelet_alternatives(allocations: Allocations) -> Mapping[str, str]:
    """The features of the kubelet that could replace each of the node's pools."""
    names = {NON_ISOLCPUS: EXCLUSIVE}
    return {
        pool: _ALTERNATIVES[names.get(pool, pool)]
        for pool in allocations.pools
        if names.get(pool, pool) in _ALTERNATIVES
    }
