"""Builds the image from packages and wheels. Layers that change rarely come first; a cache keeps them."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from nodewise_cpu import bundle
from nodewise_cpu.cli.install import bundled_modules
from tools.image import (
    debian_packages,
    digests,
    foreign_program,
    image_constants,
    layers,
    oci,
    python_wheels,
    sbom,
    scheduler_templates,
    shared_library_check,
)
from tools.image.command_execution_and_errors import ImageError, say
from tools.image.debian_packages import Package
from tools.image.layers import Layer
from tools.image.oci import ImageIdentity
from tools.image.python_wheels import PythonTarget
from tools.image.sbom import ProgramOrigin

_KEPT: Final = 16
"""Number of layers in the cache; the newest stay. The images of both architectures and the plugin have eight."""


class ImageSummary(NamedTuple):
    """Digest and layers of a built image."""

    digest: str
    layers: Sequence[Layer]

    @property
    def size_bytes(self) -> int:
        """Compressed size of all layers."""
        return sum(layer.size_bytes for layer in self.layers)


class ImageInputs(NamedTuple):
    """Inputs of a build besides this source tree."""

    cache: Path
    program: Path | None = None
    """Output folder of `nodewise cpu install --build` for images of this machine's architecture; None builds it."""
    fresh: bool = True
    """Whether to fetch current package lists; else the packages of the last build are used."""


class BuiltLayer(NamedTuple):
    """A layer with its source folder."""

    folder: Path
    layer: Layer


@contextlib.contextmanager
def locked_cache() -> Iterator[Path]:
    """The cache folder of packages and layers, outside the source tree, for one process at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodewise" / "image"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def make(file: Path, inputs: ImageInputs, identity: ImageIdentity) -> ImageSummary:
    """Write the archive and, beside it, the SBOM. ImageError for missing tools or packages, and if the image is too
    large.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodewise-image-") as temporary:
        parts = _parts(inputs, identity, Path(temporary))
        image_layers = [part.layer for part in parts]
        _check_size(image_layers)
        part = file.with_name(f".{file.name}.part")
        digest = oci.write(part, image_layers, identity)
        shutil.copyfile(parts[-1].folder / image_constants.SBOM.lstrip("/"), sbom_path(file))
        part.replace(file)
    return ImageSummary(digest, image_layers)


def folders(into: Path, inputs: ImageInputs, identity: ImageIdentity) -> None:
    """Write each layer as a folder, for a builder that creates layers itself. ImageError as in `make`."""
    with tempfile.TemporaryDirectory(prefix="nodewise-image-") as temporary:
        parts = _parts(inputs, identity, Path(temporary))
        _check_size([part.layer for part in parts])
        for name, part in zip(image_constants.FOLDERS, parts, strict=True):
            shutil.copytree(part.folder, into / name, symlinks=True)
            layers.set_modes(into / name)


def sbom_path(file: Path) -> Path:
    """Path of the SBOM of an archive."""
    return file.with_name(file.name.removesuffix(".oci.tar") + ".cdx.json")


def _check_size(image_layers: Sequence[Layer]) -> None:
    size_bytes = sum(layer.size_bytes for layer in image_layers)
    for layer in image_layers:
        say(f"{layer.size_bytes / 1e6:6.1f} MB  {layer.title}")
    if size_bytes > image_constants.LARGEST_BYTES:
        raise ImageError(
            f"{size_bytes / 1e6:.1f} MB in all, more than {image_constants.LARGEST_BYTES / 1e6:.0f} MB"
        )


def _packages(inputs: ImageInputs, architecture: str) -> list[Package]:
    """Debian's packages, for another architecture with the library of Python, which its program for hosts needs."""
    home = debian_home(inputs.cache, architecture)
    cached = None if inputs.fresh else debian_packages.cached_packages(home)
    additional = () if _is_native(architecture) else (python_wheels.machine_library(),)
    return cached or debian_packages.resolve(home, architecture, additional, require_fresh=inputs.fresh)


def _is_native(architecture: str) -> bool:
    return architecture == image_constants.architecture()


def debian_home(cache: Path, architecture: str) -> Path:
    """Cache folder of Debian's packages of an architecture."""
    release = debian_packages.release()
    return cache / f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}-{architecture}"


def _parts(inputs: ImageInputs, identity: ImageIdentity, work: Path) -> list[BuiltLayer]:
    fetched = _packages(inputs, identity.architecture)
    home = debian_home(inputs.cache, identity.architecture)
    packages = [package for package in fetched if not re.fullmatch(r"libpython3\.\d+", package.name)]
    tree = LayerCache(inputs.cache, identity.time_s)
    target, system = _system(home, tree, packages, identity.architecture)
    wheels = _wheels(tree, target, debian_packages.key(packages))
    sources = digests.of_sources()
    own = _own(tree, target, work, sources)
    if _is_native(identity.architecture):
        program, origin = _program(tree, inputs.program, sources), ProgramOrigin()
    else:

        def unpack() -> Path:
            debian_packages.unpack(fetched, home, work / "packages")
            return work / "packages"

        key = [sources, debian_packages.key(fetched)]
        program = _foreign_program(tree, target, unpack, wheels.folder / target.packages, key)
        versions = {package.name: package.version for package in fetched}
        origin = ProgramOrigin(target.full_version, versions)
    root = work / "bill"
    sbom_file = root / image_constants.SBOM.lstrip("/")
    ready = program.folder / image_constants.READY.lstrip("/")
    system_sources = (packages, target.root)
    sbom.write(sbom_file, identity, system_sources, wheels.folder, (ready, origin), debian_packages.release())
    bill = layers.make("the SBOM", root, root.with_suffix(".tar.gz"), identity.time_s)
    return [system, wheels, own, program, BuiltLayer(root, bill)]


def _system(
    home: Path, tree: "LayerCache", packages: Sequence[Package], architecture: str
) -> tuple[PythonTarget, BuiltLayer]:
    """Debian's layer, and the Python in it."""
    versions = {package.name: package.version.partition("-")[0] for package in packages}
    glibc, machine = versions["libc6"], image_constants.machine(architecture)
    python_version = next(versions[name] for name in versions if re.fullmatch(r"python3\.\d+", name))

    def target(root: Path) -> PythonTarget:
        if _is_native(architecture):
            return python_wheels.target(root, glibc, machine)
        return python_wheels.foreign_target(root, glibc, machine, python_version)

    def fill(root: Path) -> None:
        debian_packages.unpack(packages, home, root)
        python_wheels.compile_modules(target(root), root)

    part = tree.part(
        "Debian's packages",
        [debian_packages, python_wheels],
        [debian_packages.key(packages), image_constants.USER, image_constants.HOME],
        fill,
    )
    return target(part.folder), part


def _wheels(tree: "LayerCache", target: PythonTarget, key: str) -> BuiltLayer:
    lines = python_wheels.requirements(python_wheels.export_lock(), target)

    def fill(root: Path) -> None:
        python_wheels.install(lines, target, root)
        shared_library_check.check([target.root, root])

    return tree.part("Python's wheels", [python_wheels, shared_library_check], [key, *lines], fill)


def _own(tree: "LayerCache", target: PythonTarget, work: Path, sources: str) -> BuiltLayer:
    """nodewise's modules, which are the same bytes for all architectures with the same Python."""

    def fill(root: Path) -> None:
        say("building nodewise's wheels")
        python_wheels.install_own(python_wheels.build_wheels(work), target, root)
        scheduler_templates.write(root)

    return tree.part("nodewise", [], [sources, target.full_version], fill)


_PROGRAM: Final = "the program for hosts"


def _program(tree: "LayerCache", ready: Path | None, sources: str) -> BuiltLayer:
    def fill(root: Path) -> None:
        folder = root / image_constants.READY.lstrip("/")
        if ready is None:
            say("building the program that `nodewise cpu install` puts on hosts")
            bundle.build(folder, bundled_modules())
        else:
            shutil.copytree(ready, folder, symlinks=True)

    return tree.part(_PROGRAM, [], [sources], fill)


def _foreign_program(
    tree: "LayerCache", target: PythonTarget, packages: Callable[[], Path], wheels: Path, key: Sequence[str]
) -> BuiltLayer:
    def fill(root: Path) -> None:
        folder = root / image_constants.READY.lstrip("/")
        folder.parent.mkdir(parents=True)
        foreign_program.build(folder, target, packages(), wheels)

    return tree.part(_PROGRAM, [], [target.machine, *key], fill)


class LayerCache:
    """Cache of layers and their source folders, keyed by their inputs, including the source code that creates them."""

    def __init__(self, home: Path, time_s: int) -> None:
        self.home, self.time_s = home / "layers", time_s
        self.home.mkdir(parents=True, exist_ok=True)

    def part(
        self, title: str, by: Sequence[ModuleType], parts: Sequence[str], fill: Callable[[Path], None]
    ) -> BuiltLayer:
        """Return a cached layer; if there is none, `fill` creates its folder."""
        code = [Path(str(module.__file__)).read_text() for module in (*by, layers)]
        words = "\0".join([*code, str(self.time_s), title, *parts])
        home = self.home / sha256(words.encode()).hexdigest()[:16]
        if not home.is_dir():
            self._make(home, title, fill)
        home.touch()
        digest, diff_id, size_bytes = json.loads((home / "layer.json").read_text())
        layer = Layer(title, home / "layer.tar.gz", digest, diff_id, size_bytes)
        digests.verify(layer.file, f"sha256:{digests.of_file(layer.file)}", digest)
        # programs of this folder run during the build, and the SBOM is generated from it
        digests.verify(home / "root", layers.diff_id(home / "root", self.time_s), diff_id)
        return BuiltLayer(home / "root", layer)

    def _make(self, home: Path, title: str, fill: Callable[[Path], None]) -> None:
        """Create an entry; a rename makes it appear atomically."""
        part = home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        fill(part / "root")
        layer = layers.make(title, part / "root", part / "layer.tar.gz", self.time_s)
        (part / "layer.json").write_text(json.dumps([layer.digest, layer.diff_id, layer.size_bytes]))
        part.rename(home)
        for old in sorted(self.home.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(old)
