"""What keeps the image from being made."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class ImageError(Exception):
    """What is wrong, and what to do about it."""


def say(line: str) -> None:
    """Progress goes to stderr."""
    print(line, file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    what: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What the command prints. ImageError, with the last lines that it said, if it failed or is not there."""
    words = list(map(str, command))
    try:
        process = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ImageError(f"{what}: there is no {words[0]} here") from error
    if process.returncode:
        last = " / ".join((process.stderr or process.stdout).strip().splitlines()[-3:]) or "it said nothing"
        raise ImageError(f"{what}: {words[0]} ended with {process.returncode}: {last}")
    return process.stdout
