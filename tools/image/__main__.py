"""`python -m tools.image`: writes dist/nodewise-VERSION.oci.tar, for this machine's or, with `--architecture`, others.

`make image` runs it.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import nodewise
from nodewise.base.errors import NodewiseError
from tools.image import image_assembly, image_constants, oci
from tools.image.command_execution_and_errors import ImageError, say
from tools.image.image_assembly import ImageInputs
from tools.image.oci import ImageIdentity

_ALL: Final = "all"  # all architectures


def identity(revision: str = "", architecture: str = "") -> ImageIdentity:
    """Version, time, architecture and revision of this source tree's image; the default architecture is this machine's.

    ImageError if SOURCE_DATE_EPOCH is invalid.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(image_constants.EPOCH_S)
    if not text.isdecimal():
        raise ImageError(f"SOURCE_DATE_EPOCH: found {text!r}, expected seconds since 1970")
    return ImageIdentity(
        nodewise.__version__, int(text), architecture or image_constants.architecture(), revision
    )


def main() -> int:
    """The exit code: 0, or 1 with an error message."""
    parser = argparse.ArgumentParser(prog="make image", description="Writes the image as an OCI archive.")
    parser.add_argument("--into", type=Path, default=Path("dist"), help="folder; default: dist")
    parser.add_argument(
        "--architecture",
        choices=[*image_constants.MACHINES, _ALL],
        help=f"default: that of this machine; {_ALL}: one archive for all",
    )
    parser.add_argument("--revision", default="", help="the commit, for a label")
    parser.add_argument("--folders", type=Path, help="write the layers as folders here, and no archive")
    parser.add_argument("--offline", action="store_true", help="use the Debian packages of the last build")
    arguments = parser.parse_args()
    try:
        with image_assembly.locked_cache() as cache:
            _make(arguments, ImageInputs(cache, fresh=not arguments.offline))
    except (ImageError, NodewiseError, OSError) as error:
        say(f"no image: {error}")
        return 1
    return 0


def _make(arguments: argparse.Namespace, inputs: ImageInputs) -> None:
    if arguments.architecture == _ALL:
        _make_all(arguments, inputs)
        return
    wanted = identity(arguments.revision, arguments.architecture)
    if arguments.folders:
        image_assembly.folders(arguments.folders, inputs, wanted)
        return
    file = _file(arguments.into, arguments.architecture)
    made = image_assembly.make(file, inputs, wanted)
    say(f"{made.size_bytes / 1e6:6.1f} MB  in all")
    print(file, made.digest)


def _make_all(arguments: argparse.Namespace, inputs: ImageInputs) -> None:
    """Write one archive of the images of all architectures, and beside it the SBOM of each."""
    if arguments.folders:
        raise ImageError("--folders: found --architecture all, expected one architecture")
    arguments.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodewise-images-") as temporary:
        archives = [_file(Path(temporary), architecture) for architecture in image_constants.MACHINES]
        for archive, architecture in zip(archives, image_constants.MACHINES, strict=True):
            image_assembly.make(archive, inputs, identity(arguments.revision, architecture))
            shutil.copy(image_assembly.sbom_path(archive), arguments.into)
        file = _file(arguments.into)
        print(file, oci.combine(file, archives, identity(arguments.revision)))


def _file(folder: Path, architecture: str = "") -> Path:
    suffix = f"-{architecture}" if architecture else ""
    return folder / f"{image_constants.NAME}-{nodewise.__version__}{suffix}.oci.tar"


if __name__ == "__main__":
    sys.exit(main())
