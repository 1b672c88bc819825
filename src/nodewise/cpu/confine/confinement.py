"""What containers may use, and the file that says what they could use before they were confined."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from nodewise import trusted_files
from nodewise.cpu import cpulist
from nodewise.errors import BadInput, Problem, Unavailable, shown

Cpus = frozenset[int]


class Confinement(NamedTuple):
    """CPUs, and NUMA nodes for memory. An empty set says nothing of it."""

    cpus: Cpus = frozenset()
    mems: Cpus = frozenset()

    def __str__(self) -> str:
        mems = f", NUMA nodes {cpulist.format_ranges(self.mems)}" if self.mems else ""
        return f"CPUs {cpulist.format_ranges(self.cpus)}{mems}"


class Found(NamedTuple):
    """A container that runs: what the runtime was told of it, and what it has where the runtime was told nothing."""

    told: Confinement
    inherited: Confinement

    @property
    def now(self) -> Confinement:
        return Confinement(self.told.cpus or self.inherited.cpus, self.told.mems or self.inherited.mems)


class Containers(Protocol):
    """The containers of a node, by id. Both methods raise `Unavailable` or `Refused`."""

    def find(self, container: str) -> Found | None:
        """None if it does not run (any more)."""
        ...

    def confine(self, container: str, to: Confinement) -> None:
        """Sets what is not empty; a container that is gone is no error."""
        ...


def parse(cpus: str, mems: str, field: str) -> Confinement:
    """From two lists as the kernel writes them; BadInput names `field`."""
    return Confinement(*(frozenset(cpulist.parse_list(text, field)) for text in (cpus, mems)))


def recall(file: Path) -> dict[str, Confinement]:
    """By container what it had before; nothing if there is no such file. Unavailable, BadInput."""
    try:
        trusted_files.check_folder(file.parent)
        told = json.loads(trusted_files.read_bytes(file))
        return {
            container: parse(one["cpus"], one["mems"], f"{file}: {container}")
            for container, one in told.items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(
            "cannot tell what containers had before", [Problem(str(file), str(error), "")]
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        remedy = "remove the file: containers that are confined now stay so until they end"
        problem = Problem(str(file), shown(error), "what nodewise wrote")
        raise BadInput("cannot tell what containers had before", [problem], remedy=remedy) from error


def remember(file: Path, before: Mapping[str, Confinement]) -> None:
    """Writes it whole or not at all. Unavailable if it cannot be written."""
    told = {
        container: {"cpus": cpulist.format_ranges(one.cpus), "mems": cpulist.format_ranges(one.mems)}
        for container, one in before.items()
    }
    new = file.with_suffix(".new")
    try:
        trusted_files.check_folder(file.parent)
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new.write_text(json.dumps(told), encoding="utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError as error:
        raise Unavailable(
            "cannot keep what containers had before", [Problem(str(file), str(error), "")]
        ) from error
