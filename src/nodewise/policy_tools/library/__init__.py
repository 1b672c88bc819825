"""The files of the library of policies, one for each preset. `policy_library` parses them.

Shell completion imports this module, so that it imports nothing else.
"""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent


def preset_names() -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob("*.yaml"))


def read_preset(name: str) -> bytes:
    """The file of a preset that exists."""
    return (_FOLDER / f"{name}.yaml").read_bytes()
