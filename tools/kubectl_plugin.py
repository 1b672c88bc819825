"""`make plugin`: writes the archive of the kubectl plugin for this machine's platform; its manifest for krew.

The archive contains the program with Python, all libraries, the C library and its loader, so it runs on any Linux of
the same architecture. Without krew, unpack it anywhere and put a link to `kubectl-nodewise` on the PATH. The name of
the link selects the command line: `kubectl-nodewise`, `nodewise`, or `kubectl_complete-nodewise`, with which kubectl
completes the first one.
"""

import argparse
import hashlib
import itertools
import pkgutil
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from PyInstaller.utils.hooks import copy_metadata

import nodewise
import nodewise_cpu
import nodewise_scorers
from nodewise.base import distributions
from nodewise.base.errors import NodewiseError
from nodewise_cpu import bundle
from nodewise_cpu.bundle import Program
from tools import bundled_licenses
from tools.image import digests, image_assembly, image_constants
from tools.image.image_assembly import LayerCache

ROOT: Final = Path(__file__).parents[1]
TEMPLATE: Final = ROOT / "deploy/krew/nodewise.yaml"
"""The manifest without version, homepage and platforms."""
LARGEST_BYTES: Final = 70_000_000
"""Maximum size of the archive."""
_PREFIX: Final = f"kubectl-nodewise-{nodewise.__version__}-"
_SUFFIX: Final = ".tar.gz"
_PROGRAM: Final = "nodewise"
_LIBRARIES: Final = "lib"
_PACKAGES: Final = (nodewise, nodewise_cpu, nodewise_scorers)
_EXTRAS: Final = ("risk",)
_EXCLUDED: Final = (
    "readline",  # the GPL; commands read no lines
    "matplotlib", "PIL", "grpc", "google", "opentelemetry",  # the extras `plots`, `cri` and `traces`
    # the agent safe uses scipy.special only
    *(f"scipy.{name}" for name in ("cluster", "fft", "fftpack", "integrate", "interpolate", "io", "linalg", "ndimage",
                                   "odr", "optimize", "signal", "sparse", "spatial", "stats")),
    "tkinter", "setuptools", "pkg_resources", "pip", "pytest", "PyInstaller",
)  # fmt: skip
_NOT_STRIPPED: Final = ("numpy", "numpy.libs", "scipy", "scipy.libs")
"""Folders of libraries that `strip` damages, because their wheels' tools have changed them."""
_LAUNCHER: Final = """\
import os
import sys

from nodewise.cli import completion, main

# PyInstaller's start program sets it for itself; plugins for credentials are other programs
original = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
os.environ.pop("LD_LIBRARY_PATH", None)
if original is not None:
    os.environ["LD_LIBRARY_PATH"] = original

sys.executable = os.path.join(os.path.dirname(sys.executable), "..", "kubectl-nodewise")
name = sys.argv.pop(1)
if name == "kubectl_complete-nodewise":
    completion.run_for_kubectl()
elif name == "nodewise":
    main.run(name=name)
else:
    main.run_as_kubectl_plugin()
"""
_SCRIPT: Final = """\
#!/bin/sh
# Starts nodewise with its own C library. krew, for example, calls this file by a link.
file=$(readlink -f "$0")
folder=${{file%/*}}/program
exec "$folder/{libraries}/{loader}" --library-path "$folder/{libraries}" "$folder/{program}" "${{0##*/}}" "$@"
"""


def build(folder: Path) -> Path:
    """The path of the archive for this machine's platform, written into `folder`. BadInput if PyInstaller fails.

    The cache of image layers keeps it for the same sources.
    """
    file = folder / f"{_PREFIX}linux-{image_constants.architecture()}{_SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    with image_assembly.locked_cache() as cache:
        tree = LayerCache(cache, image_constants.EPOCH_S)
        by = [sys.modules[__name__], bundled_licenses]
        shutil.copyfile(tree.part(file.name, by, [digests.of_sources()], _fill).layer.file, file)
    return file


def _fill(root: Path) -> None:
    """Write the content of the archive."""
    root.mkdir()
    program = Program(
        _PROGRAM, _LAUNCHER, _LIBRARIES, _modules(), _EXCLUDED, data=list(_data()), can_strip=False
    )
    with tempfile.TemporaryDirectory(prefix="nodewise-plugin-") as temporary:
        made = Path(shutil.move(bundle.freeze(program, Path(temporary)), root / "program"))
    libraries = made / _LIBRARIES
    bundle.copy_system_libraries(made, libraries)
    bundled_licenses.write(root / "licenses", "nodewise", _EXTRAS, libraries)
    _reduce(libraries)
    (loader,) = libraries.glob("ld-linux*")
    loader.chmod(0o755)
    script = root / "kubectl-nodewise"
    script.write_text(_SCRIPT.format(program=_PROGRAM, libraries=_LIBRARIES, loader=loader.name))
    script.chmod(0o755)
    shutil.copy(ROOT / "LICENSE", root)


def _reduce(libraries: Path) -> None:
    """Remove links, which krew refuses, and symbols.

    The links lead to numpy's and scipy's libraries, which find each other without them.
    """
    for path in sorted(libraries.rglob("*.so*")):
        if path.is_symlink():
            path.unlink()
        elif path.relative_to(libraries).parts[0] not in _NOT_STRIPPED:
            bundle.run_command(["strip", "--strip-unneeded", path], "strip")


def check(archive: Path) -> None:
    """Unpack the archive and run commands that need its libraries, data files and sources. BadInput if one fails."""
    with tempfile.TemporaryDirectory(prefix="nodewise-plugin-") as temporary:
        with tarfile.open(archive) as files:
            files.extractall(temporary, filter="data")
        program = Path(temporary, "kubectl-nodewise")
        example = Path(temporary, f"program/{_LIBRARIES}/nodewise/examples/health-metric")
        for command in (
            ["decide", example, "--agents=telemetry,gpu,safe"],
            ["policy", "lint", example],
            ["policy", "library", "psi"],
            ["configure", "--mode=native", "--kubernetes-version=1.36"],
            ["agents", "new", "check", "--folder", Path(temporary, "agent")],
            ["demo"],
        ):
            bundle.run_command([program, *command], str(program))


def _modules() -> list[str]:
    """All modules of nodewise's distributions: commands and agents are imported by name."""
    modules = itertools.chain.from_iterable(
        pkgutil.walk_packages(package.__path__, f"{package.__name__}.") for package in _PACKAGES
    )
    return [module.name for module in modules if not module.name.endswith("__main__")]


def _data() -> Iterable[tuple[str, str]]:
    """The files that the wheel has: sources, which `--help` and `agents new` read, data files, examples, manifests."""
    for package in _PACKAGES:
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield str(path), str(Path(package.__name__, path.relative_to(folder)).parent)
    for name in distributions.EXTRAS:
        yield from copy_metadata(name)
    yield str(ROOT / "examples"), "nodewise/examples"
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        name = path.relative_to(ROOT)
        if name.parts[1] not in {"chart", "kustomize", "krew", "metrics"}:
            yield str(path), str(Path("nodewise", name).parent)


def manifest(archives: Sequence[Path], url: str) -> str:
    """The manifest for krew, with one platform for each archive, which are published below `url`."""
    document = yaml.load(TEMPLATE.read_text(), yaml.CSafeLoader)
    document["spec"] |= {
        "version": f"v{nodewise.__version__}",
        "homepage": url,
        "platforms": [_platform(archive, url) for archive in archives],
    }
    return yaml.safe_dump(document, sort_keys=False, width=1000)


def _platform(archive: Path, url: str) -> dict[str, Any]:
    """A platform of the manifest. krew moves all files of the archive if the platform names none."""
    system, architecture = archive.name.removeprefix(_PREFIX).removesuffix(_SUFFIX).split("-")
    return {
        "selector": {"matchLabels": {"os": system, "arch": architecture}},
        "uri": f"{url}/releases/download/v{nodewise.__version__}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": "kubectl-nodewise",
    }


def find_archives(folder: Path) -> list[Path]:
    """The archives of this version in a folder."""
    return sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))


def main() -> int:
    """The exit code: 0, or 1 with an error message."""
    parser = argparse.ArgumentParser(
        prog="make plugin", description="Writes the archive of the kubectl plugin."
    )
    parser.add_argument("--into", type=Path, default=Path("dist"), help="folder; default: dist")
    if platform.system() != "Linux":
        print("no plugin: only Linux is supported; elsewhere install the wheel", file=sys.stderr)
        return 1
    try:
        file = build(parser.parse_args().into)
        check(file)
    except NodewiseError as error:
        print(f"no plugin: {error}", file=sys.stderr)
        return 1
    size_bytes = file.stat().st_size
    print(f"{file}: {size_bytes / 1e6:.1f} MB")
    return 0 if size_bytes <= LARGEST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
