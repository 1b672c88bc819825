"""Reads the files of real machines in tests/data/machines."""

import csv
import tarfile
from functools import cache
from pathlib import Path

from nodewise_cpu import topology
from nodewise_cpu.topology import Topology

FOLDER = Path(__file__).parents[1] / "data" / "machines"
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz"))
LSCPU = sorted(path.name.removesuffix(".lscpu.csv") for path in FOLDER.glob("*.lscpu.csv"))


def unpack(name: str, into: Path) -> Path:
    """Unpack a machine. Returns the folder with its `sys` and `proc`."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into


@cache
def texts(name: str) -> dict[str, str]:
    """The files of a machine in the form of the result of `machine_features.read_sysfs_files`."""
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {path: file.read().decode() if file else "" for path, file in files.items()}


def machine(name: str) -> Topology:
    return topology.parse(texts(name))


def lscpu(name: str) -> list[tuple[int, int, int, int | None]]:
    """The CPU, core, socket and NUMA node of each row of lscpu."""
    with (FOLDER / f"{name}.lscpu.csv").open() as file:
        return [
            (int(row["cpu"]), int(row["core"]), int(row["socket"]), int(row["node"]) if row["node"] else None)
            for row in csv.DictReader(file)
        ]
