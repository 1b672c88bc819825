"""The licenses of what a frozen program contains: Python's packages, and Debian's libraries."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

_LICENSE: Final = re.compile(r"(licen[sc]e|copying|notice|authors)", re.IGNORECASE)


def write(into: Path, package: str, extras: Iterable[str], libraries: Path) -> None:
    """Write a folder for each package that `package` needs with these extras, and for each of Debian's packages.

    `libraries` is a folder with copies of libraries. Libraries that are not of Debian are left out.
    """
    for dist in _distributions(package, extras):
        for file in dist.files or ():
            folder, _, name = file.as_posix().removeprefix("../").partition("/")
            if folder.endswith(".dist-info") and _LICENSE.search(name):
                target = into / dist.name / name.removeprefix("licenses/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(dist.locate_file(file)), target)
    for name in _debian_packages(path.name for path in sorted(libraries.glob("lib*.so*"))):
        copyright_file = Path("/usr/share/doc", name, "copyright")
        if copyright_file.is_file():
            (into / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(copyright_file, into / name)


def _distributions(package: str, extras: Iterable[str]) -> Iterator[Distribution]:
    """The package and all that it needs here."""
    wanted = [(package, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        name, extras_of_name = wanted.pop()
        if (name, extras_of_name) in seen:
            continue
        seen.add((name, extras_of_name))
        dist = distribution(name)
        yield dist
        for text in dist.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras_of_name | {""}):
                wanted.append((requirement.name, frozenset(requirement.extras)))


def _debian_packages(names: Iterable[str]) -> set[str]:
    """The packages of Debian with libraries of these names; none elsewhere."""
    if shutil.which("dpkg-query") is None:
        return set()
    command = ["dpkg-query", "--search", *(f"*/{name}" for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {line.partition(":")[0] for line in done.stdout.splitlines()}
