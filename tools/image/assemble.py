"""The steps from packages and wheels to the archive. Layers that change seldom come first, and are kept in a cache."""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from nodewise.cli.cpu.install import modules
from nodewise.cpu.install import packaging
from tools.image import contents, debian, layers, oci, python, templates
from tools.image.debian import Package
from tools.image.errors import ImageError, say
from tools.image.layers import Layer
from tools.image.oci import Identity

_KEPT: Final = 8
"""Layers and unpacked packages that stay in the cache, the newest."""


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


def make(file: Path, inputs: Inputs, identity: Identity) -> Made:
    """Writes the archive. ImageError names what is missing, or that it has become too large."""
    packages = _packages(inputs)
    with tempfile.TemporaryDirectory(prefix="nodewise-image-") as temporary:
        made = _layers(inputs, identity, packages, Path(temporary))
        size_bytes = sum(layer.size_bytes for layer in made)
        for layer in made:
            say(f"{layer.size_bytes / 1e6:6.1f} MB  {layer.title}")
        if size_bytes > contents.LARGEST_BYTES:
            raise ImageError(
                f"{size_bytes / 1e6:.1f} MB in all, more than {contents.LARGEST_BYTES / 1e6:.0f} MB"
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        digest = oci.write(part, made, identity)
        part.replace(file)
    return Made(digest, made)


def _packages(inputs: Inputs) -> list[Package]:
    home = _debian_home(inputs.cache)
    kept = None if inputs.fresh else debian.remembered(home)
    return kept or debian.resolve(home)


def _debian_home(cache: Path) -> Path:
    release = debian.release()
    return cache / f"{release.get('ID', 'none')}-{release.get('VERSION_ID', '')}-{contents.architecture()}"


def _layers(inputs: Inputs, identity: Identity, packages: Sequence[Package], work: Path) -> list[Layer]:
    tree = _Cache(inputs.cache, identity.time_s)
    target, system = _system(inputs, tree, packages)
    lines = python.requirements(python.exported(), target)
    wheels = tree.layer(
        "Python's wheels",
        [tree.key(target.full_version, target.glibc, *lines, *_key(packages))],
        lambda folder: python.install(lines, target, folder),
    )
    return [system, wheels, _own(tree, target, work), _program(tree, inputs.program, work)]


def _key(packages: Sequence[Package]) -> list[str]:
    return [debian.key(packages)]


def _system(inputs: Inputs, tree: "_Cache", packages: Sequence[Package]) -> tuple[python.Target, Layer]:
    """Debian's layer, and the Python that is unpacked for it."""
    glibc = next(one.version for one in packages if one.name == "libc6").partition("-")[0]
    machine = debian.platform.machine()

    def fill(root: Path) -> None:
        debian.unpack(packages, _debian_home(inputs.cache), root)
        python.compiled(python.target(root, glibc, machine), root)

    root = tree.folder("debian", _key(packages), fill)
    layer = tree.layer_of("Debian's packages", _key(packages), root)
    return python.target(root, glibc, machine), layer


def _own(tree: "_Cache", target: python.Target, work: Path) -> Layer:
    say("making nodewise's wheel")
    root = work / "nodewise"
    python.install_own(python.built(work), target, root)
    templates.write(root)
    return layers.make("nodewise", root, work / "nodewise.tar.gz", tree.time_s)


def _program(tree: "_Cache", ready: Path | None, work: Path) -> Layer:
    root = work / "program"
    folder = root / contents.READY.lstrip("/")
    if ready is None:
        say("building the program that `nodewise cpu install` puts on hosts")
        packaging.build(folder, modules())
    else:
        shutil.copytree(ready, folder, symlinks=True)
    return layers.make("the program for hosts", root, work / "program.tar.gz", tree.time_s)


class _Cache:
    """Folders and layers by what they are made of; this code counts as well."""

    def __init__(self, home: Path, time_s: int) -> None:
        self.home, self.time_s = home / "layers", time_s
        self._code = sha256(
            b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
        )
        self.home.mkdir(parents=True, exist_ok=True)

    def key(self, *parts: str) -> str:
        """A digest."""
        return sha256("\0".join([self._code.hexdigest(), str(self.time_s), *parts]).encode()).hexdigest()[:16]

    def folder(self, name: str, parts: Sequence[str], fill: Callable[[Path], None]) -> Path:
        """A folder that stays."""
        home = self.home / f"{name}-{self.key(*parts)}"
        if not home.is_dir():
            part = home.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            fill(part)
            part.rename(home)
        home.touch()
        return home

    def layer(self, title: str, parts: Sequence[str], fill: Callable[[Path], None]) -> Layer:
        """A layer, of a folder that is only made for it."""
        with tempfile.TemporaryDirectory(dir=self.home, prefix=".part-") as temporary:
            return self._layer(title, parts, lambda: self._filled(Path(temporary) / "root", fill))

    def layer_of(self, title: str, parts: Sequence[str], root: Path) -> Layer:
        """A layer of a folder that is there."""
        return self._layer(title, parts, lambda: root)

    def _layer(self, title: str, parts: Sequence[str], root: Callable[[], Path]) -> Layer:
        file = self.home / f"{self.key(title, *parts)}.tar.gz"
        about = file.with_suffix(".json")
        if not (about.exists() and file.exists()):
            made = layers.make(title, root(), file, self.time_s)
            about.write_text(json.dumps([made.digest, made.diff_id, made.size_bytes]))
            self._trim()
        file.touch()
        digest, diff_id, size_bytes = json.loads(about.read_text())
        return Layer(title, file, digest, diff_id, size_bytes)

    def _filled(self, root: Path, fill: Callable[[Path], None]) -> Path:
        fill(root)
        return root

    def _trim(self) -> None:
        old = sorted(self.home.iterdir(), key=lambda path: path.stat().st_mtime)[: -3 * _KEPT]
        for path in old:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
