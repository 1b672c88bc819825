"""The machines of the numbered cases: their CPUs in order, each with a core id and a package."""

from collections.abc import Callable, Mapping

from nodewise_cpu.topology import CPUS

SPARSE = (0, 1, 2, 8, 9, 10)
MACHINES: Mapping[str, tuple[int, Callable[[int], tuple[int, int]]]] = {
    "B2": (2, lambda cpu: (cpu, 0)),
    "B2d": (2, lambda cpu: (0, cpu)),
    "T4": (8, lambda cpu: (cpu % 4, 0)),
    "T4n": (4, lambda cpu: (cpu, 0)),
    "T8": (16, lambda cpu: (cpu % 8, 0)),
    "D8a": (16, lambda cpu: (cpu // 2, cpu // 8)),
    "D8s": (16, lambda cpu: (cpu % 8, cpu % 8 // 4)),
    "D8r": (16, lambda cpu: (cpu % 4, cpu // 8)),
    "Ddoc": (16, lambda cpu: (cpu % 4 + cpu // 8 * 4, cpu // 8)),
    "D24": (48, lambda cpu: (cpu % 24, cpu % 24 // 12)),
    "SP": (12, lambda cpu: (SPARSE[cpu % 6], 0)),
}


def texts(name: str, isolated: str = "") -> dict[str, str]:
    """The files of a machine. Its kernel's command line isolates these CPUs."""
    count, place = MACHINES[name]
    places = {cpu: place(cpu) for cpu in range(count)}
    files = {
        f"{CPUS}/online": f"0-{count - 1}",
        f"{CPUS}/present": f"0-{count - 1}",
        f"{CPUS}/possible": "0-63",
    }
    files["proc/cmdline"] = f"quiet isolcpus={isolated}" if isolated else "quiet"
    for cpu, (core_id, package) in places.items():
        threads = [sibling for sibling, other in places.items() if other == places[cpu]]
        folder = f"{CPUS}/cpu{cpu}/topology"
        files[f"{folder}/core_id"] = f"{core_id}\n"
        files[f"{folder}/physical_package_id"] = f"{package}\n"
        files[f"{folder}/thread_siblings_list"] = ",".join(map(str, threads)) + "\n"
    return files
