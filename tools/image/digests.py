"""SHA-256 digests of files in the cache and of the sources, and the verification of the former."""

import hashlib
import platform
import sys
from pathlib import Path
from typing import Final

from tools.image import image_constants
from tools.image.command_execution_and_errors import ImageError

_SOURCES: Final = ("src", "packages/*/src", "examples", "deploy", "tools/image")
_FILES: Final = ("README.md", "LICENSE", "pyproject.toml")
_MACHINE_PACKAGES: Final = Path("/var/lib/dpkg/status")
"""The packages of this machine, whose C library and tools become part of the programs."""


def of_sources() -> str:
    """A cache key of what is built from this source tree, its lock file and this machine's programs: 16 digits."""
    root = image_constants.ROOT
    packages = _MACHINE_PACKAGES.read_bytes() if _MACHINE_PACKAGES.exists() else b""
    files = [path for folder in _SOURCES for top in root.glob(folder) for path in top.rglob("*")]
    files += [path for name in _FILES for path in (*root.glob(name), *root.glob(f"packages/*/{name}"))]
    digest = hashlib.sha256(f"{sys.version} {platform.libc_ver()}".encode() + packages)
    for path in sorted([*files, root / "uv.lock"]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def of_file(file: Path) -> str:
    """The digest in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def verify(path: Path, actual: str, expected: str) -> None:
    """ImageError unless the digests are equal. A wrong file is not replaced silently, so that the cause is found."""
    if actual != expected:
        raise ImageError(
            f"{path}: found SHA-256 digest {actual}, expected {expected}; the cache is damaged or was changed: "
            "find out why, remove the path, and make the image again without --offline"
        )
