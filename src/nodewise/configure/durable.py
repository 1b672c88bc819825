"""Names on the disk: what was renamed or removed outlives the power only when its folder was written as well."""

import os
from pathlib import Path


def settle(folder: str | Path) -> None:
    """Have the folder's names written. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
