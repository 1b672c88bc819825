"""The steps from packages and wheels to the archive. Layers that change seldom come first, and are kept in a cache."""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from nodewise.cli.cpu.install import modules
from nodewise.cpu.install import bundle
from tools.image import contents, debian, digests, layers, libraries, oci, python, sbom, templates
from tools.image.debian import Package
from tools.image.errors import ImageError, say
from tools.image.layers import Layer
from tools.image.oci import Identity

_KEPT: Final = 4
"""Layers that stay in the cache, the newest."""


class Made(NamedTuple):
    """What came of it."""

    digest: str
    layers: Sequence[Layer]

    @property
    def size_bytes(self) -> int:
        """As it is transferred."""
        return sum(layer.size_bytes for layer in self.layers)


class Inputs(NamedTuple):
    """What an image is made of, besides this tree."""

    cache: Path
    program: Path | None = None
    """A ready folder of `nodewise cpu install --build`; None: it is built."""
    fresh: bool = True
    """Whether Debian is asked for what is new; else what was fetched last is taken."""


class Part(NamedTuple):
    """A layer with the folder that it was made of."""

    folder: Path
    layer: Layer


def make(file: Path, inputs: Inputs, identity: Identity) -> Made:
    """Writes the archive, and beside it the list of what is in it. ImageError names what is missing, or that it has
    become too large.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodewise-image-") as temporary:
        parts = _parts(inputs, identity, Path(temporary))
        made = [part.layer for part in parts]
        _check_size(made)
        part = file.with_name(f".{file.name}.part")
        digest = oci.write(part, made, identity)
        part.replace(file)
        shutil.copyfile(parts[-1].folder / contents.BILL.lstrip("/"), bill(file))
    return Made(digest, made)


def folders(into: Path, inputs: Inputs, identity: Identity) -> None:
    """Writes each layer as a folder, for a builder that makes layers itself. ImageError as `make`."""
    with tempfile.TemporaryDirectory(prefix="nodewise-image-") as temporary:
        parts = _parts(inputs, identity, Path(temporary))
        _check_size([part.layer for part in parts])
        for name, part in zip(contents.FOLDERS, parts, strict=True):
            shutil.copytree(part.folder, into / name, symlinks=True)
            layers.set_modes(into / name)


def bill(file: Path) -> Path:
    """Where the list of what is in an archive is."""
    return file.with_name(file.name.removesuffix(".oci.tar") + ".cdx.json")


def _check_size(made: Sequence[Layer]) -> None:
    size_bytes = sum(layer.size_bytes for layer in made)
    for layer in made:
        say(f"{layer.size_bytes / 1e6:6.1f} MB  {layer.title}")
    if size_bytes > contents.LARGEST_BYTES:
        raise ImageError(f"{size_bytes / 1e6:.1f} MB in all, more than {contents.LARGEST_BYTES / 1e6:.0f} MB")


def _packages(inputs: Inputs) -> list[Package]:
    home = debian_home(inputs.cache)
    kept = None if inputs.fresh else debian.remembered(home)
    return kept or debian.resolve(home, has_to_be_new=inputs.fresh)


def debian_home(cache: Path) -> Path:
    """Where Debian's packages stay."""
    release = debian.release()
    return cache / f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}-{contents.architecture()}"


def _parts(inputs: Inputs, identity: Identity, work: Path) -> list[Part]:
    packages = _packages(inputs)
    tree = _Cache(inputs.cache, identity.time_s)
    target, system = _system(inputs, tree, packages)
    wheels = _wheels(tree, target, debian.key(packages))
    own = _own(target, work, identity)
    program = _program(inputs.program, work, identity)
    root = work / "bill"
    listed = root / contents.BILL.lstrip("/")
    ready = program.folder / contents.READY.lstrip("/")
    sbom.write(listed, identity, (packages, target.root), wheels.folder, ready, debian.release())
    return [system, wheels, own, program, _part("the list of what is in it", root, identity)]


def _part(title: str, folder: Path, identity: Identity) -> Part:
    return Part(folder, layers.make(title, folder, folder.with_suffix(".tar.gz"), identity.time_s))


def _system(inputs: Inputs, tree: "_Cache", packages: Sequence[Package]) -> tuple[python.Target, Part]:
    """Debian's layer, and the Python that is unpacked for it."""
    glibc = next(package.version for package in packages if package.name == "libc6").partition("-")[0]
    machine = debian.platform.machine()

    def fill(root: Path) -> None:
        debian.unpack(packages, debian_home(inputs.cache), root)
        python.compiled(python.target(root, glibc, machine), root)

    part = tree.part(
        "Debian's packages", [debian, python], [debian.key(packages), contents.USER, contents.HOME], fill
    )
    return python.target(part.folder, glibc, machine), part


def _wheels(tree: "_Cache", target: python.Target, key: str) -> Part:
    lines = python.requirements(python.exported(), target)

    def fill(root: Path) -> None:
        python.install(lines, target, root)
        libraries.check([target.root, root])

    return tree.part("Python's wheels", [python, libraries], [key, *lines], fill)


def _own(target: python.Target, work: Path, identity: Identity) -> Part:
    say("making nodewise's wheel")
    root = work / "nodewise"
    python.install_own(python.built(work), target, root)
    templates.write(root)
    return _part("nodewise", root, identity)


def _program(ready: Path | None, work: Path, identity: Identity) -> Part:
    root = work / "program"
    folder = root / contents.READY.lstrip("/")
    if ready is None:
        say("building the program that `nodewise cpu install` puts on hosts")
        bundle.build(folder, modules())
    else:
        shutil.copytree(ready, folder, symlinks=True)
    return _part("the program for hosts", root, identity)


class _Cache:
    """Layers, with the folders that they were made of, by what went into them; what made them counts as well."""

    def __init__(self, home: Path, time_s: int) -> None:
        self.home, self.time_s = home / "layers", time_s
        self.home.mkdir(parents=True, exist_ok=True)

    def part(
        self, title: str, by: Sequence[ModuleType], parts: Sequence[str], fill: Callable[[Path], None]
    ) -> Part:
        """The folder, which `fill` makes where it must be, with its layer."""
        code = [Path(str(module.__file__)).read_text() for module in (*by, layers)]
        words = "\0".join([*code, str(self.time_s), title, *parts])
        home = self.home / sha256(words.encode()).hexdigest()[:16]
        if not home.is_dir():
            self._make(home, title, fill)
        home.touch()
        digest, diff_id, size_bytes = json.loads((home / "layer.json").read_text())
        layer = Layer(title, home / "layer.tar.gz", digest, diff_id, size_bytes)
        digests.verify(layer.file, f"sha256:{digests.of_file(layer.file)}", digest)
        # programs of this folder run while the image is made, and the list of what is in the image comes from it
        digests.verify(home / "root", layers.diff_id(home / "root", self.time_s), diff_id)
        return Part(home / "root", layer)

    def _make(self, home: Path, title: str, fill: Callable[[Path], None]) -> None:
        """It appears whole, by a rename."""
        part = home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        fill(part / "root")
        made = layers.make(title, part / "root", part / "layer.tar.gz", self.time_s)
        (part / "layer.json").write_text(json.dumps([made.digest, made.diff_id, made.size_bytes]))
        part.rename(home)
        for old in sorted(self.home.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            shutil.rmtree(old)
