"""SHA-256 digests of files in the cache, and their verification."""

import hashlib
from pathlib import Path

from tools.image.command_execution_and_errors import ImageError


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
