"""The error of the image build, progress messages, and the execution of tools."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class ImageError(Exception):
    """A message with the problem and its remedy."""


def say(line: str) -> None:
    """Print progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def run(
    command: Sequence[str | Path],
    what: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output. ImageError, with its last lines, if it fails or does not exist."""
    words = list(map(str, command))
    try:
        process = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ImageError(f"{what}: {words[0]} is not installed") from error
    if process.returncode:
        last = " / ".join((process.stderr or process.stdout).strip().splitlines()[-3:]) or "no output"
        raise ImageError(f"{what}: {words[0]} ended with {process.returncode}: {last}")
    return process.stdout
