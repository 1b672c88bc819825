"""The SBOM of the image, in CycloneDX format: Debian packages, Python wheels, and the program for hosts."""

import email
import hashlib
import platform
import re
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tools.image import image_constants
from tools.image.debian_packages import Package
from tools.image.oci import ImageIdentity

_SPDX: Final = {
    "agpl-3": "AGPL-3.0-only",
    "apache-2.0": "Apache-2.0",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-4-clause": "BSD-4-Clause",
    "cc0-1.0": "CC0-1.0",
    "expat": "MIT",
    "gpl-1+": "GPL-1.0-or-later",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "isc": "ISC",
    "lgpl-2": "LGPL-2.0-only",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only",
    "lgpl-3+": "LGPL-3.0-or-later",
    "mit": "MIT",
    "mpl-1.1": "MPL-1.1",
    "mpl-2.0": "MPL-2.0",
    "x11": "X11",
    "zlib": "Zlib",
}
"""SPDX identifiers by Debian's short names."""
_SHORT: Final = re.compile(
    r"^License:[ \t]+([A-Za-z][\w.+-]*(?: (?:and|or|with) [\w.+ -]+)?)[ \t]*$", re.MULTILINE
)
_FORMAT_HEADER: Final = "Format:"  # first field of machine-readable copyright files
_MACHINE_LIBRARY: Final = re.compile(r"lib.*\.so|ld.*\.so")
"""Libraries of the build machine, not modules of Python."""


class ProgramOrigin(NamedTuple):
    """The system that the program for hosts has its Python and its libraries from."""

    python_version: str = platform.python_version()
    versions: Mapping[str, str] | None = None
    """The versions by package; None means that the packages are those of the build machine."""


def write(
    file: Path,
    identity: ImageIdentity,
    system: tuple[Sequence[Package], Path],
    wheels: Path,
    program: tuple[Path, ProgramOrigin],
    distribution: Mapping[str, str],
) -> None:
    """Write the SBOM. `system` and `wheels` are the unpacked folders, `program` that of the program for hosts."""
    packages, root = system
    image = Component(
        name=image_constants.NAME,
        version=identity.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image:{image_constants.NAME}",
        licenses=[_license("Apache-2.0")],
    )
    bom = Bom(metadata=BomMetaData(component=image, timestamp=datetime.fromtimestamp(identity.time_s, UTC)))
    bom.components.update(_debian_components(packages, root, distribution))
    bom.components.update(_python_components(wheels))
    bom.components.add(_program_component(*program, identity))
    bom.register_dependency(image, list(bom.components))
    refs = "\n".join(sorted(str(component.bom_ref) for component in bom.components))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, refs + identity.version)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")


def _debian_components(
    packages: Iterable[Package], root: Path, distribution: Mapping[str, str]
) -> Iterator[Component]:
    for package in packages:
        name = distribution.get("ID", "debian")
        about = {"arch": package.architecture, "distro": f"{name}-{distribution.get('VERSION_ID', '')}"}
        url = PackageURL("deb", name, package.name, package.version, about)
        yield Component(
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=url.to_string(),
            licenses=[_license(license_name) for license_name in _debian_licenses(root, package.name)],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.digest)],
            properties=[Property(name="nodewise:source", value=package.source)],
        )


def _debian_licenses(root: Path, name: str) -> list[str]:
    """Licences of a package; without machine-readable fields, a reference to its copyright file in the image."""
    path = f"usr/share/doc/{name}/copyright"
    try:
        text = (root / path).read_text(errors="replace")
    except OSError:
        text = ""
    return licenses(text) or [f"see /{path}"]


def licenses(text: str) -> list[str]:
    """Licence names in a Debian copyright file, as SPDX identifiers where known; empty for free text."""
    named = _SHORT.findall(text) if text.startswith(_FORMAT_HEADER) else []
    return sorted({_SPDX.get(name.lower(), name) for name in named})


def _license(name: str) -> License:
    license_: License = LicenseFactory().make_from_string(name)
    # CycloneDX allows only one expression, and Debian's names are no SPDX expressions
    return license_ if isinstance(license_, DisjunctiveLicense) else DisjunctiveLicense(name=name)


def _python_components(wheels: Path) -> Iterator[Component]:
    for file in sorted(wheels.rglob("*.dist-info/METADATA")):
        about = email.message_from_string(file.read_text(errors="replace"))
        name = re.sub(r"[-_.]+", "-", str(about["Name"])).lower()
        url = PackageURL("pypi", None, name, str(about["Version"]))
        yield Component(
            name=name,
            version=str(about["Version"]),
            type=ComponentType.LIBRARY,
            purl=url,
            bom_ref=url.to_string(),
            licenses=[_license(_wheel_license(about))] if _wheel_license(about) else [],
        )


def _wheel_license(about: Any) -> str:
    """The licence in a wheel's metadata, from the newest of the three fields."""
    classifiers = [text for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    text = about["License-Expression"] or (classifiers[0].rpartition(":: ")[2] if classifiers else "")
    return str(text or about["License"] or "").strip().partition("\n")[0]


def _program_component(folder: Path, origin: ProgramOrigin, identity: ImageIdentity) -> Component:
    """The program for hosts, with the Python and the libraries of its system."""
    libraries = sorted(path for path in (folder / "lib").glob("*.so*") if _MACHINE_LIBRARY.match(path.name))
    version = origin.python_version
    url = PackageURL("generic", None, "python", version)
    python = Component(name="python", version=version, purl=url, bom_ref=f"program:{url}")
    return Component(
        name="cmk",
        version=identity.version,
        type=ComponentType.APPLICATION,
        bom_ref="program:cmk",
        properties=[Property(name="nodewise:path", value=image_constants.READY)],
        components=[python, *(_library_component(path, origin) for path in libraries)],
    )


def _library_component(path: Path, origin: ProgramOrigin) -> Component:
    """A library with its package if dpkg knows it: packages have the same names on all architectures."""
    package = _query("dpkg-query", "--search", f"*/{path.name}").partition(":")[0].partition(",")[0]
    if origin.versions is not None:
        version = origin.versions.get(package, "")
    else:
        version = _query("dpkg-query", "--show", "--showformat=${Version}", package) if package else ""
    return Component(
        name=path.name,
        version=version or None,
        type=ComponentType.FILE,
        bom_ref=f"program:{path.name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(path.read_bytes()).hexdigest())],
        properties=[Property(name="nodewise:package", value=package)] if package else [],
    )


def _query(*command: str) -> str:
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return process.stdout.strip() if not process.returncode else ""
