"""The container image of nodewise, built once from the current tree.

archive = image_archive.archive()   # an OCI archive; once it is imported, image_archive.NAME is the image of pods
"""

import fcntl
import hashlib
from pathlib import Path

from tools.image import image_assembly, image_constants, oci
from tools.image.__main__ import identity
from tools.image.command_execution_and_errors import ImageError
from tools.image.image_assembly import ImageInputs

import nodewise
from tests.cluster import go_toolchain
from tests.cluster.go_toolchain import MissingError
from tests.node import host_program_installation

NAME = f"{image_constants.NAME}:{nodewise.__version__}"
"""The image name in pods."""
REFERENCE = f"docker.io/library/{NAME}"
"""The image name for the command `ctr`."""
_KEPT = 3  # number of newest images that stay in the cache


def archive(architecture: str = "") -> Path:
    """The archive, built if necessary, which takes about a minute, the first time longer. Raises MissingError.

    The default architecture is that of this machine.
    """
    home = go_toolchain.cache() / "image"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = home / _digest()
        suffix = f"-{architecture}" if architecture else ""
        file = folder / f"{image_constants.NAME}{suffix}.oci.tar"
        if not file.exists():
            program = None if architecture else host_program_installation.ready()
            try:
                image_assembly.make(
                    file, ImageInputs(home, program, fresh=False), identity(architecture=architecture)
                )
            except ImageError as error:
                raise MissingError(f"no image: {error}", "see `make image`") from error
        folder.touch()
        go_toolchain.tidy({path.parent for path in home.glob("*/*.oci.tar")}, _KEPT)
        return file


def combined(into: Path) -> str:
    """Write the archive for all architectures. Return the digest of its index. Raises MissingError."""
    own = image_constants.architecture()
    archives = [archive("" if name == own else name) for name in image_constants.MACHINES]
    return oci.combine(into, archives, identity())


def _digest() -> str:
    root = image_constants.ROOT
    digest = hashlib.sha256(identity().version.encode())
    folders = (root / "src", root / "packages", root / "tools/image", root / "examples")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if _counts(path)]
    for path in (*files, root / "uv.lock", root / "pyproject.toml"):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
