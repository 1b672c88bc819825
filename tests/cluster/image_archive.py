"""The container image of nodewise, built once from the current tree.

archive = image_archive.archive()   # an OCI archive; once it is imported, image_archive.NAME is the image of pods
"""

from pathlib import Path

from tools.image import digests, image_assembly, image_constants, oci
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
    suffix = f"-{architecture}" if architecture else ""
    file = home / digests.of_sources() / f"{image_constants.NAME}{suffix}.oci.tar"
    if not file.exists():  # `make image` and `make release` of another test hold the lock for long
        with image_assembly.locked_cache() as cache:
            if not file.exists():
                _make(file, cache, architecture)
            go_toolchain.tidy({path.parent for path in home.glob("*/*.oci.tar")}, _KEPT)
    file.parent.touch()
    return file


def _make(file: Path, cache: Path, architecture: str) -> None:
    program = None if architecture else host_program_installation.ready()
    inputs = ImageInputs(cache, program, fresh=False)
    try:
        image_assembly.make(file, inputs, identity(architecture=architecture))
    except ImageError as error:
        raise MissingError(f"no image: {error}", "see `make image`") from error


def combined(into: Path) -> str:
    """Write the archive for all architectures. Return the digest of its index. Raises MissingError."""
    own = image_constants.architecture()
    archives = [archive("" if name == own else name) for name in image_constants.MACHINES]
    return oci.combine(into, archives, identity())
