"""A feature file for Node Feature Discovery (NFD): whether the core power classes of this node differ (SST-CP).

CMK had a script that overwrote the file `cpu`, which may hold other features. This is a separate file, with the full
name of the label, so that it is the same for versions of NFD that prefix features with the file's name and for others.
NFD ignores files whose name begins with a dot; the file has such a name until it is complete.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodewise.base import trusted_files
from nodewise.base.errors import Problem, Refused
from nodewise_cpu.cmk_names import SST_CP

FOLDER: Final = Path("/etc/kubernetes/node-feature-discovery/features.d")
FILE: Final = "nodewise-cpu"


def write(folder: Path, preferences: Iterable[str]) -> bool:
    """Write or remove the file, given the energy performance preference of each CPU. Returns whether it changed.

    Nothing is written if the folder does not exist: NFD is not installed then. Refused if the file cannot be written,
    BadInput if users other than root can write to the folder.
    """
    if not folder.is_dir():
        return False
    trusted_files.check_folder(folder)
    file = folder / FILE
    text = f"{SST_CP}=true\n" if len(set(preferences)) > 1 else ""
    try:
        if not text:
            existed = file.exists()
            file.unlink(missing_ok=True)
            return existed
        if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
            return False
        _replace_file_atomically(file, text)
    except OSError as error:
        problem = Problem(str(file), str(error), "a folder that may be written to")
        raise Refused("cannot write the feature file for Node Feature Discovery", [problem]) from error
    return True


def _replace_file_atomically(file: Path, text: str) -> None:
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
